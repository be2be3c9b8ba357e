//! What the code claims about NVIDIA's headers, as data for the test that asks a C compiler.
//!
//! The layout of a block is written once, in the `layouts!` below its file's structs: sizes and
//! offsets are asserted there when this crate is compiled, and `tests/abi_headers.rs` asserts the
//! same numbers against the headers of a driver.

use super::branch::Branch;
use super::{alloc, class, control, escape, hold, r550, r570, r580, r595, status, uvm};

/// A block of memory that the driver reads and writes, as the headers name it.
pub trait Block {
    /// What the headers must say about it.
    const LAYOUT: Layout;
}

/// What the headers must say about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The C type.
    pub c_type: &'static str,
    /// Bytes.
    pub size: usize,
    /// Every field but the padding.
    pub fields: &'static [Field],
    /// The branches whose type this is.
    pub branches: &'static [Branch],
}

/// What the headers must say about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name in C; with dots for a field of a field.
    pub c_name: &'static str,
    /// Bytes from the beginning of the block.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// What the headers must say about a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// A macro, or an expression of several.
    pub c_expression: &'static str,
    /// Its value.
    pub value: u64,
    /// The branches that have it.
    pub branches: &'static [Branch],
}

/// What the headers must say about a control command: its number, and which block goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// The macro.
    pub c_name: &'static str,
    /// Its value.
    pub command: u32,
    /// The block.
    pub layout: Layout,
}

/// Every block.
pub const BLOCKS: &[&[Layout]] = &[
    alloc::LAYOUTS,
    control::group::LAYOUTS,
    control::root::LAYOUTS,
    control::subdevice::LAYOUTS,
    escape::LAYOUTS,
    r550::LAYOUTS,
    r570::LAYOUTS,
    r580::LAYOUTS,
    r595::LAYOUTS,
    hold::LAYOUTS,
    uvm::LAYOUTS,
];

/// Every number but those of control commands.
pub const NUMBERS: &[&[Number]] = &[
    class::NUMBERS,
    control::group::NUMBERS,
    control::root::NUMBERS,
    control::subdevice::NUMBERS,
    escape::NUMBERS,
    hold::NUMBERS,
    status::NUMBERS,
    uvm::NUMBERS,
];

/// Every control command.
pub const COMMANDS: &[Command] = control::COMMANDS;

/// How many bytes the field has that `_field` finds.
pub(crate) const fn field_size<T, F>(_field: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Asserts the layout of blocks and collects them in `LAYOUTS`.
macro_rules! layouts {
    ($(
        $block:ident = $c_type:literal in $branches:expr, $size:literal bytes:
        $($field:ident = $c_name:literal at $offset:literal),+ $(,)?;
    )+) => {
        /// Every block of this file.
        pub(crate) const LAYOUTS: &[$crate::nvidia::abi::table::Layout] =
            &[$(<$block as $crate::nvidia::abi::table::Block>::LAYOUT),+];
        $(
            const _: () = assert!(size_of::<$block>() == $size);
            $(const _: () = assert!(core::mem::offset_of!($block, $field) == $offset);)+

            impl $crate::nvidia::abi::table::Block for $block {
                const LAYOUT: $crate::nvidia::abi::table::Layout =
                    $crate::nvidia::abi::table::Layout {
                        c_type: $c_type,
                        size: $size,
                        fields: &[$($crate::nvidia::abi::table::Field {
                            c_name: $c_name,
                            offset: $offset,
                            size: $crate::nvidia::abi::table::field_size(
                                |block: &$block| &block.$field
                            ),
                        }),+],
                        branches: $branches,
                    };
            }
        )+
    };
}

/// Collects numbers in `NUMBERS`.
macro_rules! numbers {
    ($($c_expression:literal in $branches:expr => $value:expr),+ $(,)?) => {
        /// Every number of this file.
        pub(crate) const NUMBERS: &[$crate::nvidia::abi::table::Number] =
            &[$($crate::nvidia::abi::table::Number {
                c_expression: $c_expression,
                // CAST: what is collected here is unsigned and has at most 64 bits.
                value: $value as u64,
                branches: $branches,
            }),+];
    };
}

pub(crate) use {layouts, numbers};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_branch_has_two_layouts_for_one_type() {
        let layouts: Vec<&Layout> = BLOCKS.iter().copied().flatten().collect();
        for branch in Branch::ALL {
            let mut names: Vec<&str> = layouts
                .iter()
                .filter(|layout| layout.branches.contains(&branch))
                .map(|layout| layout.c_type)
                .collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "{branch}");
        }
    }

    #[test]
    fn every_type_exists_in_every_branch() {
        // What is used in one branch alone is known in that one alone.
        let everywhere =
            |layout: &&Layout| ![hold::LAYOUTS, uvm::LAYOUTS].concat().contains(layout);
        for layout in BLOCKS.iter().copied().flatten().filter(everywhere) {
            for branch in Branch::ALL {
                let has = |l: &&Layout| l.c_type == layout.c_type && l.branches.contains(&branch);
                let count = BLOCKS.iter().copied().flatten().filter(has).count();
                assert_eq!(count, 1, "{} in {branch}", layout.c_type);
            }
        }
    }
}
