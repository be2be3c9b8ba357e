//! Real devices, and the emulated one where there are none.
//!
//! The only crate that opens `/dev/nvidia*` and `/dev/kfd`. It finds processes that use a
//! GPU, reads what they do, and carries out what the scheduler decides. It does not decide anything
//! itself, except to undo: whatever is changed in somebody else's process is written down before
//! ([`journal`]) and undone when its time is up or whoever asked for it is gone ([`keeper`]).

pub mod act;
pub mod amd;
pub mod controller;
pub mod emulated;
pub mod hardware;
pub mod hold_pages;
mod ioctl;
pub mod journal;
pub mod keeper;
pub mod ledger;
pub mod nvidia;
pub mod process;
pub mod registry;
pub mod urgency;
