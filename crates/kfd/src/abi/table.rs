//! The versions of KFD's interface, and every block and number of the kernel's header.
//!
//! `numbers!` defines constants and enumerations and lists them in `NUMBERS`, as
//! [`blocks!`](crate::blocks) does with argument blocks.

use rustix::ioctl::{Opcode, opcode};

use super::{block, exception, trap};
use crate::layout;

/// The ioctl group of KFD.
const MAGIC: u8 = b'K';

/// The number of an ioctl that fills a block.
pub(super) const fn reads<T>(number: u8) -> Opcode {
    opcode::read::<T>(MAGIC, number)
}

/// The number of an ioctl that reads a block.
pub(super) const fn writes<T>(number: u8) -> Opcode {
    opcode::write::<T>(MAGIC, number)
}

/// The number of an ioctl that reads and fills a block.
pub(super) const fn exchanges<T>(number: u8) -> Opcode {
    opcode::read_write::<T>(MAGIC, number)
}

/// The minor versions of the interface in which a claim holds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Minors {
    pub from: u32,
    pub to: u32,
}

impl Minors {
    pub const fn contain(self, minor: u32) -> bool {
        self.from <= minor && minor <= self.to
    }
}

pub const ALWAYS: Minors = Minors { from: 0, to: u32::MAX };
/// Since processes can be paused (`AMDKFD_IOC_CRIU_OP`).
pub const SINCE_7: Minors = Minors { from: 7, to: u32::MAX };
/// Since the debugger's interface (`AMDKFD_IOC_DBG_TRAP`).
pub const SINCE_13: Minors = Minors { from: 13, to: u32::MAX };
/// Before `CREATE_QUEUE` could name a copy engine.
pub const UNTIL_16: Minors = Minors { from: 0, to: 16 };
/// Since `CREATE_QUEUE` can name a copy engine.
pub const SINCE_17: Minors = Minors { from: 17, to: u32::MAX };

/// What the header must say about a block and about a number.
pub type Layout = layout::Layout<Minors>;
pub type Number = layout::Number<Minors>;

/// Every block of the kernel's own header.
pub const BLOCKS: &[&[Layout]] = &[block::LAYOUTS, block::GROWN, trap::LAYOUTS];

/// Every number of the kernel's own header.
pub const NUMBERS: &[&[Number]] = &[block::NUMBERS, exception::NUMBERS, trap::NUMBERS];

/// Defines constants and enumerations by their C names, and lists further expressions of the header
/// with the values that the code relies on.
macro_rules! numbers {
    (
        constants {
            $(
                $(#[$attribute:meta])*
                $name:ident: $type:ty = $constant:expr, $c_name:literal in $minors:expr;
            )*
        }
        $(
            $(#[$enum_attribute:meta])*
            enum $enum:ident in $enum_minors:ident {
                $(
                    $(#[$variant_attribute:meta])*
                    $variant:ident = $number:literal, $c_variant:literal;
                )+
            }
        )*
        $($c_expression:literal in $expression_minors:expr => $value:expr;)*
    ) => {
        $($(#[$attribute])* pub const $name: $type = $constant;)*
        $(
            $(#[$enum_attribute])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(u32)]
            pub enum $enum {
                $($(#[$variant_attribute])* $variant = $number,)+
            }

            impl $enum {
                /// The variant of a number that a caller passed.
                pub const fn of(number: u32) -> Option<Self> {
                    match number {
                        $($number => Some(Self::$variant),)+
                        _ => None,
                    }
                }
            }
        )*

        pub const NUMBERS: &[$crate::abi::table::Number] = &[
            $($crate::abi::table::numbers!(@one $c_name, $name, $minors),)*
            $($($crate::abi::table::numbers!(@one $c_variant, $enum::$variant, $enum_minors),)+)*
            $($crate::abi::table::numbers!(@one $c_expression, $value, $expression_minors),)*
        ];
    };
    (@one $c_expression:expr, $value:expr, $minors:expr) => {
        $crate::abi::table::Number {
            c_expression: $c_expression,
            // CAST: every value in these tables is unsigned and has at most 64 bits.
            value: $value as u64,
            versions: &$minors,
        }
    };
}

pub(crate) use numbers;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_version_has_two_layouts_for_one_type() {
        for minor in [0, 7, 11, 13, 14, 16, 17, 18] {
            let layouts = BLOCKS.iter().copied().flatten();
            let mut names: Vec<&str> = layouts
                .filter(|layout| layout.versions.contain(minor))
                .map(|layout| layout.c_type)
                .collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all, "1.{minor}");
        }
    }
}
