//! What programs in C call. `include/gpreempt.h` is made from these files.
//!
//! Each function looks at its pointers, and does the rest inside `guarded`:
//! whatever goes wrong is a code, and nothing unwinds into C.

pub mod amd;
pub mod connection;
pub mod hints;
mod pointer;
pub mod processes;
pub mod queues;
pub mod submit;
pub mod types;
