//! The instruction set of the emulated device.
//!
//! Waves really compute, so that a test can prove that a preempted kernel lost nothing: a small
//! machine with a program counter, scalar and vector registers, LDS and memory.
//!
//! ```text
//! registers    s0 .. s15  one u32 each            v0 .. v7  eight lanes of u32 each
//! operands     S scalar register   V vector register   N number (12, 0x1f)
//!              L label, or @N for instruction N
//!
//! mov   S, S|N            mov   V, V|S|N          copy; into a vector: to every lane
//! add   S, S, S|N         add   V, V, V|S|N       also sub mul and or xor shl shr min max
//! lane  V                                         the number of each lane
//! first S, V                                      lane 0
//! global_load  S, [S + N]    global_load  V, [V + N]
//! global_store [S + N], S    global_store [V + N], V
//! global_add   [S + N], S    global_add   [V + N], V      atomic
//! lds_load  lds_store  lds_add                    the same on the work-group's LDS
//! branch_eq S, S|N, L                             also ne lt le gt ge
//! jump  L
//! work  S|N                                       so many nanoseconds, can be interrupted
//! barrier                                         wait for the waves of the work-group
//! end
//!
//! name:          a label            ; comment    # comment
//! .lds 512       bytes of LDS a work-group needs, at most 64 KiB
//! ```
//!
//! Numbers are unsigned and wrap; shifts count modulo 32. A wave starts with its place and its
//! kernel's arguments in `s0` to `s7` (see [`Launch`](crate::wave::Launch)) and zero elsewhere.

mod instruction;
mod parse;
mod program;

pub use instruction::{
    Access, Condition, Instruction, Operator, ScalarOperand, ScalarRegister, Space, VectorOperand,
    VectorRegister,
};
pub use program::{AssembleError, Program};

/// Lanes of a vector register.
pub const LANES: usize = 8;
/// Scalar registers of a wave.
pub const SCALAR_REGISTERS: usize = 16;
/// Vector registers of a wave.
pub const VECTOR_REGISTERS: usize = 8;
/// The longest program.
pub const INSTRUCTIONS_MAX: usize = 4096;
/// The most LDS a work-group can have.
pub const LDS_BYTES_MAX: u32 = 64 * 1024;
