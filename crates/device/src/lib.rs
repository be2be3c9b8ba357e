//! Controls the GPUs: NVIDIA, AMD, and the emulated one.
//!
//! The only crate that opens `/dev/nvidia*` and `/dev/kfd`. It finds processes that use a GPU,
//! reads their queues, and carries out what the scheduler decides. It decides nothing itself,
//! except to undo: it records every change in another process before it makes it ([`journal`]), and
//! reverts it when its lease expires or its owner dies ([`keeper`]).

pub mod amd;
pub mod change;
pub mod client_process;
pub mod controller;
pub mod device_users;
pub mod emulated;
pub mod eviction;
pub mod gauge;
pub mod hardware;
pub mod hold_pages;
mod ioctl;
pub mod journal;
pub mod keeper;
pub mod mapping;
pub mod nvidia;
mod peer_pidfd;
pub mod process;
pub mod registry;
pub mod undo_log;
pub mod user_child;
mod worker_thread;
