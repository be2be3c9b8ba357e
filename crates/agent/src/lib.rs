//! `libgpreempt.so`: queues, hints and submitting with priority, for programs in C and Python.
//!
//! It lives in other people's processes. So it prints nothing, never ends the program, never
//! unwinds into it, starts no thread, and does nothing at all before it is called. Everything that
//! goes wrong is a code with a sentence.
//!
//! ```text
//!   C --> c_api --> entry::guarded --> processes, queues --> session --> gpreemptd
//!                                      hints             --> a page shared with gpreemptd
//!                                      submit            --> CUDA, the emulated GPU
//!                                      amd               --> KFD, for queues of this process
//! ```
//!
//! There is one connection for each process (`session`). A child that was forked has none of it:
//! `fork` closes what it inherited, and it connects by itself when it calls something.
#![warn(missing_docs)]

mod amd;
pub mod c_api;
mod code;
mod entry;
mod failure;
mod fork;
mod hints;
mod message;
mod processes;
mod queues;
mod session;
mod submit;
