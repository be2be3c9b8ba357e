//! The emulated GPU as a process in real time.
//!
//! [`server`] is `sim`'s GPU with its time tied to `CLOCK_MONOTONIC`: rings in memory that client
//! processes share, doorbells, context save in the middle of a kernel, control calls with their
//! costs. [`kfd`] is AMD's kernel driver on top of it, with its rules and its files. The protocol
//! and its clients are `gpreempt_wire::emulator` and `gpreempt_wire::emulated_kfd`; loads for it
//! are those of `gpreempt-load`. Nothing in here decides which queue runs.

pub mod kfd;
pub mod server;
