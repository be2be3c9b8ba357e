//! A kernel's code, ready to run.

use std::fmt;

use super::instruction::Instruction;

/// A kernel's code: instructions and the LDS they need.
///
/// # Invariants
/// At least one instruction and at most [`INSTRUCTIONS_MAX`](super::INSTRUCTIONS_MAX); at most
/// [`LDS_BYTES_MAX`](super::LDS_BYTES_MAX) of LDS. The only way in is [`Program::assemble`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: String,
    lds_bytes: u32,
    instructions: Vec<Instruction>,
}

impl Program {
    /// The caller has checked the invariants.
    pub(super) fn new(name: &str, lds_bytes: u32, instructions: Vec<Instruction>) -> Self {
        Self { name: name.to_owned(), lds_bytes, instructions }
    }

    /// What people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// LDS of one work-group, which begins as zeros.
    pub fn lds_bytes(&self) -> usize {
        usize::try_from(self.lds_bytes).expect("at most 64 KiB")
    }

    /// Everything it does, from the start.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// The instruction at `pc`, if the program is that long.
    pub fn instruction(&self, pc: u32) -> Option<Instruction> {
        let index = usize::try_from(pc).ok()?;
        self.instructions.get(index).copied()
    }
}

impl fmt::Display for Program {
    /// The program as text that assembles to the same program.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lds_bytes > 0 {
            writeln!(f, ".lds {}", self.lds_bytes)?;
        }
        for instruction in &self.instructions {
            writeln!(f, "    {instruction}")?;
        }
        Ok(())
    }
}
