//! `libgpreempt.so`: queues, hints and submission with priority, for programs in C and Python.
//!
//! It runs inside other programs. So it prints nothing, never exits, never unwinds into its caller,
//! starts no thread, and does nothing before it is called. Every error is a code with a sentence.
//!
//! ```text
//!   C --> c_api --> ffi_guard::guarded --> requests --> session --> gpreemptd
//!                                          hints    --> a page shared with gpreemptd
//!                                          submit   --> CUDA, the emulated GPU
//!                                          amd      --> KFD, for queues of this process
//! ```
//!
//! Each process has one connection (`session`). A forked child has none: `fork` closes what it
//! inherited, and its first call connects again.
#![warn(missing_docs)]

mod amd;
pub mod c_api;
mod error;
mod ffi_guard;
mod fork;
mod hints;
mod memory;
mod requests;
mod session;
mod submit;
