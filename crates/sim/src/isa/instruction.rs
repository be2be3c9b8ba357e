//! Decoded instructions, their operands and their text.

use std::fmt;

use super::{SCALAR_REGISTERS, VECTOR_REGISTERS};

/// One step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Copies a value.
    ScalarMove { to: ScalarRegister, from: ScalarOperand },
    /// Copies a value into every lane.
    VectorMove { to: VectorRegister, from: VectorOperand },
    /// Sets each lane to its number.
    Lane { to: VectorRegister },
    /// Copies lane 0 into a scalar register, so that a program can branch on it.
    First { to: ScalarRegister, from: VectorRegister },
    /// Computes one value.
    ScalarCompute {
        operator: Operator,
        to: ScalarRegister,
        left: ScalarRegister,
        right: ScalarOperand,
    },
    /// Computes a value for every lane.
    VectorCompute {
        operator: Operator,
        to: VectorRegister,
        left: VectorRegister,
        right: VectorOperand,
    },
    /// Reads or writes one word; address and offset are in bytes.
    ScalarAccess {
        space: Space,
        access: Access,
        data: ScalarRegister,
        address: ScalarRegister,
        offset: u32,
    },
    /// Reads or writes one word for each lane, lane 0 first.
    VectorAccess {
        space: Space,
        access: Access,
        data: VectorRegister,
        address: VectorRegister,
        offset: u32,
    },
    /// Continues at instruction `target` if the condition holds.
    Branch { condition: Condition, left: ScalarRegister, right: ScalarOperand, target: u32 },
    /// Continues at instruction `target`.
    Jump { target: u32 },
    /// Is busy for that many nanoseconds.
    Work { ns: ScalarOperand },
    /// Waits until every wave of the work-group that has not ended is here.
    Barrier,
    /// Ends the wave.
    End,
}

/// An enum whose variants have names in assembly.
macro_rules! named {
    ($(#[$meta:meta])* $type:ident { $($variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($variant,)+ }

        impl $type {
            /// Every variant, in the order in which they are documented.
            pub const ALL: [Self; [$(Self::$variant),+].len()] = [$(Self::$variant),+];

            /// The name in assembly.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }
        }
    };
}

named! {
    /// An operation on two unsigned numbers that wraps. Shifts count modulo 32.
    Operator {
        Add = "add",
        Sub = "sub",
        Mul = "mul",
        And = "and",
        Or = "or",
        Xor = "xor",
        Shl = "shl",
        Shr = "shr",
        Min = "min",
        Max = "max",
    }
}

named! {
    /// A comparison of unsigned numbers.
    Condition {
        Eq = "branch_eq",
        Ne = "branch_ne",
        Lt = "branch_lt",
        Le = "branch_le",
        Gt = "branch_gt",
        Ge = "branch_ge",
    }
}

impl Operator {
    pub fn apply(self, left: u32, right: u32) -> u32 {
        match self {
            Self::Add => left.wrapping_add(right),
            Self::Sub => left.wrapping_sub(right),
            Self::Mul => left.wrapping_mul(right),
            Self::And => left & right,
            Self::Or => left | right,
            Self::Xor => left ^ right,
            Self::Shl => left.wrapping_shl(right),
            Self::Shr => left.wrapping_shr(right),
            Self::Min => left.min(right),
            Self::Max => left.max(right),
        }
    }
}

impl Condition {
    pub const fn holds(self, left: u32, right: u32) -> bool {
        match self {
            Self::Eq => left == right,
            Self::Ne => left != right,
            Self::Lt => left < right,
            Self::Le => left <= right,
            Self::Gt => left > right,
            Self::Ge => left >= right,
        }
    }
}

/// The memory of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The task's memory.
    Global,
    /// The work-group's own fast memory.
    Lds,
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "memory",
            Self::Lds => "LDS",
        })
    }
}

/// How a word is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Load,
    Store,
    /// Adds the register's value to the word, atomically.
    Add,
}

impl Access {
    /// Every access, with its name in assembly.
    pub const ALL: [(Space, Self, &'static str); 6] = [
        (Space::Global, Self::Load, "global_load"),
        (Space::Global, Self::Store, "global_store"),
        (Space::Global, Self::Add, "global_add"),
        (Space::Lds, Self::Load, "lds_load"),
        (Space::Lds, Self::Store, "lds_store"),
        (Space::Lds, Self::Add, "lds_add"),
    ];

    /// The name in assembly, on words of `space`.
    pub fn name(self, space: Space) -> &'static str {
        let named = Self::ALL.iter().find(|(of, access, _)| (*of, *access) == (space, self));
        named.map_or("", |(.., name)| name)
    }
}

/// A register whose index is below a limit; the only constructor is `new`.
macro_rules! register {
    ($type:ident, $prefix:literal, $count:expr) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $type(u8);

        impl $type {
            /// The register of that index, if there is one.
            pub fn new(index: u8) -> Option<Self> {
                (usize::from(index) < $count).then_some(Self(index))
            }

            pub fn index(self) -> usize {
                usize::from(self.0)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

register!(ScalarRegister, "s", SCALAR_REGISTERS);
register!(VectorRegister, "v", VECTOR_REGISTERS);

/// One value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarOperand {
    Register(ScalarRegister),
    Immediate(u32),
}

/// A value for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorOperand {
    Vector(VectorRegister),
    /// The same value for every lane.
    Scalar(ScalarOperand),
}

impl fmt::Display for ScalarOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(register) => register.fmt(f),
            Self::Immediate(number) => number.fmt(f),
        }
    }
}

impl fmt::Display for VectorOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vector(register) => register.fmt(f),
            Self::Scalar(operand) => operand.fmt(f),
        }
    }
}

impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ScalarMove { to, from } => write!(f, "mov {to}, {from}"),
            Self::VectorMove { to, from } => write!(f, "mov {to}, {from}"),
            Self::Lane { to } => write!(f, "lane {to}"),
            Self::First { to, from } => write!(f, "first {to}, {from}"),
            Self::ScalarCompute { operator, to, left, right } => {
                write!(f, "{} {to}, {left}, {right}", operator.name())
            }
            Self::VectorCompute { operator, to, left, right } => {
                write!(f, "{} {to}, {left}, {right}", operator.name())
            }
            Self::ScalarAccess { space, access, data, address, offset } => {
                write_access(f, (space, access), &data, &address, offset)
            }
            Self::VectorAccess { space, access, data, address, offset } => {
                write_access(f, (space, access), &data, &address, offset)
            }
            Self::Branch { condition, left, right, target } => {
                write!(f, "{} {left}, {right}, @{target}", condition.name())
            }
            Self::Jump { target } => write!(f, "jump @{target}"),
            Self::Work { ns } => write!(f, "work {ns}"),
            Self::Barrier => f.write_str("barrier"),
            Self::End => f.write_str("end"),
        }
    }
}

/// The destination comes first: the register of a load, the address of a store.
fn write_access(
    f: &mut fmt::Formatter<'_>,
    (space, access): (Space, Access),
    data: &dyn fmt::Display,
    address: &dyn fmt::Display,
    offset: u32,
) -> fmt::Result {
    let name = access.name(space);
    match (access, offset) {
        (Access::Load, 0) => write!(f, "{name} {data}, [{address}]"),
        (Access::Load, _) => write!(f, "{name} {data}, [{address} + {offset}]"),
        (Access::Store | Access::Add, 0) => write!(f, "{name} [{address}], {data}"),
        (Access::Store | Access::Add, _) => write!(f, "{name} [{address} + {offset}], {data}"),
    }
}
