//! What a program can do wrong.

use crate::isa::Space;

/// Why a wave cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaveFault {
    /// Words begin at multiples of four.
    #[error("address {address:#x} of {space} is not a multiple of 4")]
    Misaligned {
        /// The kind of memory.
        space: Space,
        /// The address in bytes.
        address: u32,
    },
    /// There is no such word.
    #[error("address {address:#x} is outside of {space}")]
    OutOfBounds {
        /// The kind of memory.
        space: Space,
        /// The address in bytes.
        address: u32,
    },
    /// The program ended without `end`.
    #[error("there is no instruction {pc}; programs finish with `end`")]
    PastEnd {
        /// The instruction that is not there.
        pc: u32,
    },
    /// The program does not seem to end; only a run without time reports this.
    #[error("the program does not end")]
    Endless,
}
