//! What instructions work on: registers and numbers.

use std::fmt;

use super::{SCALAR_REGISTERS, VECTOR_REGISTERS};

/// One of the scalar registers.
///
/// # Invariants
/// The index is below [`SCALAR_REGISTERS`]; the only way in is [`ScalarRegister::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalarRegister(u8);

/// One of the vector registers.
///
/// # Invariants
/// The index is below [`VECTOR_REGISTERS`]; the only way in is [`VectorRegister::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorRegister(u8);

/// One value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalarOperand {
    /// What the register holds.
    Register(ScalarRegister),
    /// The number itself.
    Immediate(u32),
}

/// A value for each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorOperand {
    /// Each lane its own.
    Vector(VectorRegister),
    /// The same for all.
    Scalar(ScalarOperand),
}

impl ScalarRegister {
    /// Register `s<index>`, if there is such a register.
    pub fn new(index: u8) -> Option<Self> {
        (usize::from(index) < SCALAR_REGISTERS).then_some(Self(index))
    }

    /// The register's number.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl VectorRegister {
    /// Register `v<index>`, if there is such a register.
    pub fn new(index: u8) -> Option<Self> {
        (usize::from(index) < VECTOR_REGISTERS).then_some(Self(index))
    }

    /// The register's number.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for ScalarRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

impl fmt::Display for VectorRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
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
