//! The daemon as a process, with emulated GPUs, loads and clients around it.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test is a panic")]

mod amd;
mod bounds;
mod contention;
mod emulated;
mod lifecycle;
mod memory;
mod misbehaving_clients;
mod numbers;
mod permissions;
mod requests;
mod undo;
