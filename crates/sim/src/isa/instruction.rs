//! One instruction, decoded.

use std::fmt;

use super::operand::{ScalarOperand, ScalarRegister, VectorOperand, VectorRegister};

/// What a wave does in one step of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Copies a value into a scalar register.
    ScalarMove {
        /// Where to.
        to: ScalarRegister,
        /// What.
        from: ScalarOperand,
    },
    /// Copies a value into every lane of a vector register.
    VectorMove {
        /// Where to.
        to: VectorRegister,
        /// What.
        from: VectorOperand,
    },
    /// Puts each lane's number into it.
    Lane {
        /// Where to.
        to: VectorRegister,
    },
    /// Copies lane 0 into a scalar register, so that a program can branch on it.
    First {
        /// Where to.
        to: ScalarRegister,
        /// The vector.
        from: VectorRegister,
    },
    /// Computes one value.
    ScalarCompute {
        /// How.
        operator: Operator,
        /// Where the result goes.
        to: ScalarRegister,
        /// The first value.
        left: ScalarRegister,
        /// The second value.
        right: ScalarOperand,
    },
    /// Computes a value in every lane.
    VectorCompute {
        /// How.
        operator: Operator,
        /// Where the results go.
        to: VectorRegister,
        /// The first values.
        left: VectorRegister,
        /// The second values.
        right: VectorOperand,
    },
    /// Reads or writes one word.
    ScalarAccess {
        /// Where the word lives.
        space: Space,
        /// What happens to it.
        access: Access,
        /// The register that is filled or stored.
        data: ScalarRegister,
        /// Holds the address in bytes.
        address: ScalarRegister,
        /// Added to the address.
        offset: u32,
    },
    /// Reads or writes one word for each lane, lane 0 first.
    VectorAccess {
        /// Where the words live.
        space: Space,
        /// What happens to them.
        access: Access,
        /// The register that is filled or stored.
        data: VectorRegister,
        /// Holds the addresses in bytes.
        address: VectorRegister,
        /// Added to each address.
        offset: u32,
    },
    /// Goes elsewhere if the condition holds.
    Branch {
        /// When.
        condition: Condition,
        /// The first value compared.
        left: ScalarRegister,
        /// The second value compared.
        right: ScalarOperand,
        /// The instruction to go on with.
        target: u32,
    },
    /// Goes elsewhere.
    Jump {
        /// The instruction to go on with.
        target: u32,
    },
    /// Is busy for a while.
    Work {
        /// How long, in nanoseconds.
        ns: ScalarOperand,
    },
    /// Waits until every wave of the work-group that has not ended is here.
    Barrier,
    /// The wave is done.
    End,
}

/// How two numbers become one. Everything wraps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// Left plus right.
    Add,
    /// Left minus right.
    Sub,
    /// The low half of the product.
    Mul,
    /// Bits set in both.
    And,
    /// Bits set in one or both.
    Or,
    /// Bits set in just one.
    Xor,
    /// Left shifted up by right modulo 32.
    Shl,
    /// Left shifted down by right modulo 32, zeros from above.
    Shr,
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
}

/// A comparison of unsigned numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less than.
    Lt,
    /// At most.
    Le,
    /// More than.
    Gt,
    /// At least.
    Ge,
}

/// Where a word lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The task's memory.
    Global,
    /// The work-group's own fast memory.
    Lds,
}

/// What happens to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The register gets it.
    Load,
    /// It gets the register's value.
    Store,
    /// The register's value is added to it, atomically.
    Add,
}

impl Operator {
    /// Every operator, in the order they are documented.
    pub const ALL: [Self; 10] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::Shl,
        Self::Shr,
        Self::Min,
        Self::Max,
    ];

    /// The name in assembly.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::And => "and",
            Self::Or => "or",
            Self::Xor => "xor",
            Self::Shl => "shl",
            Self::Shr => "shr",
            Self::Min => "min",
            Self::Max => "max",
        }
    }

    /// The result for two numbers.
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
    /// Every condition, in the order they are documented.
    pub const ALL: [Self; 6] = [Self::Eq, Self::Ne, Self::Lt, Self::Le, Self::Gt, Self::Ge];

    /// The branch's name in assembly.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eq => "branch_eq",
            Self::Ne => "branch_ne",
            Self::Lt => "branch_lt",
            Self::Le => "branch_le",
            Self::Gt => "branch_gt",
            Self::Ge => "branch_ge",
        }
    }

    /// Whether it is true of two numbers.
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

impl Access {
    /// Every way to reach a word, with the name it has in assembly.
    pub const ALL: [(Space, Self, &'static str); 6] = [
        (Space::Global, Self::Load, "global_load"),
        (Space::Global, Self::Store, "global_store"),
        (Space::Global, Self::Add, "global_add"),
        (Space::Lds, Self::Load, "lds_load"),
        (Space::Lds, Self::Store, "lds_store"),
        (Space::Lds, Self::Add, "lds_add"),
    ];

    /// The name in assembly, on words of `space`.
    pub const fn name(self, space: Space) -> &'static str {
        match (space, self) {
            (Space::Global, Self::Load) => "global_load",
            (Space::Global, Self::Store) => "global_store",
            (Space::Global, Self::Add) => "global_add",
            (Space::Lds, Self::Load) => "lds_load",
            (Space::Lds, Self::Store) => "lds_store",
            (Space::Lds, Self::Add) => "lds_add",
        }
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Global => "memory",
            Self::Lds => "LDS",
        })
    }
}
