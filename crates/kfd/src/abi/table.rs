//! What the code claims about KFD's header, as data for the test that asks a C compiler.
//!
//! The layout of a block is written once, in the `layouts!` below its file's structs: sizes and
//! offsets are asserted there when this crate is compiled, and `tests/kfd_headers.rs` asserts the
//! same numbers against a kernel's header.

use super::{block, exception, trap};

/// The minor versions of the interface in which something is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minors {
    /// The first.
    pub from: u32,
    /// The last.
    pub to: u32,
}

impl Minors {
    /// Whether it is so in that one.
    pub const fn contain(self, minor: u32) -> bool {
        self.from <= minor && minor <= self.to
    }
}

/// In all of them.
pub const ALWAYS: Minors = Minors { from: 0, to: u32::MAX };
/// Where processes can be paused.
pub const SINCE_7: Minors = Minors { from: 7, to: u32::MAX };
/// Where there is a debugger's interface.
pub const SINCE_13: Minors = Minors { from: 13, to: u32::MAX };
/// Before queues could name a copy engine.
pub const UNTIL_16: Minors = Minors { from: 0, to: 16 };
/// Where queues can name a copy engine.
pub const SINCE_17: Minors = Minors { from: 17, to: u32::MAX };

/// A block of memory that KFD reads and writes, as the header names it.
pub trait Block {
    /// What the header must say about it.
    const LAYOUT: Layout;
}

/// What the header must say about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The C type.
    pub c_type: &'static str,
    /// Bytes.
    pub size: usize,
    /// Every field but the padding.
    pub fields: &'static [Field],
    /// Where it is so.
    pub minors: Minors,
}

/// What the header must say about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in C.
    pub c_name: &'static str,
    /// Bytes from the beginning of the block.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// What the header must say about a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// A macro, an enumerator, or an expression of several.
    pub c_expression: &'static str,
    /// Its value.
    pub value: u64,
    /// Where it is so.
    pub minors: Minors,
}

/// Every block.
pub const BLOCKS: &[&[Layout]] = &[block::LAYOUTS, block::GROWN, trap::LAYOUTS];

/// Every number.
pub const NUMBERS: &[&[Number]] = &[block::NUMBERS, exception::NUMBERS, trap::NUMBERS];

/// How many bytes the field has that `_field` finds.
pub(crate) const fn field_size<T, F>(_field: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Asserts the layout of blocks and collects them in `LAYOUTS`.
macro_rules! layouts {
    ($(
        $block:ident = $c_type:literal in $minors:expr, $size:literal bytes:
        $($field:ident = $c_name:literal at $offset:literal),+ $(,)?;
    )+) => {
        /// Every block of this file.
        pub(crate) const LAYOUTS: &[$crate::abi::table::Layout] =
            &[$(<$block as $crate::abi::table::Block>::LAYOUT),+];
        $(
            const _: () = assert!(size_of::<$block>() == $size);
            $(const _: () = assert!(core::mem::offset_of!($block, $field) == $offset);)+

            impl $crate::abi::table::Block for $block {
                const LAYOUT: $crate::abi::table::Layout = $crate::abi::table::Layout {
                    c_type: $c_type,
                    size: $size,
                    fields: &[$($crate::abi::table::Field {
                        c_name: $c_name,
                        offset: $offset,
                        size: $crate::abi::table::field_size(
                            |block: &$block| &block.$field
                        ),
                    }),+],
                    minors: $minors,
                };
            }
        )+
    };
}

/// Collects numbers in `NUMBERS`.
macro_rules! numbers {
    ($($c_expression:literal in $minors:expr => $value:expr),+ $(,)?) => {
        /// Every number of this file.
        pub(crate) const NUMBERS: &[$crate::abi::table::Number] =
            &[$($crate::abi::table::Number {
                c_expression: $c_expression,
                // CAST: what is collected here is unsigned and has at most 64 bits.
                value: $value as u64,
                minors: $minors,
            }),+];
    };
}

pub(crate) use {layouts, numbers};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_version_has_two_layouts_for_one_type() {
        for minor in [0, 7, 11, 13, 14, 16, 17, 18] {
            let layouts = BLOCKS.iter().copied().flatten();
            let mut names: Vec<&str> = layouts
                .filter(|layout| layout.minors.contain(minor))
                .map(|layout| layout.c_type)
                .collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "1.{minor}");
        }
    }
}
