//! AMD's KFD interface: the structures and numbers of `linux/kfd_ioctl.h`, and one method per
//! operation.
//!
//! [`abi`] holds plain data, which `tests/kfd_headers.rs` of `device` compares with kernel headers
//! through a C compiler. [`calls`] builds the argument block of each operation. An [`Ioctl`]
//! carries the block: to the kernel, to an emulated KFD in another process, or to one in the same
//! process.
//! This crate never opens a device and never decides whether a call is permitted.

/// The kernel's header as data: argument blocks, ioctl numbers, versions.
pub mod abi {
    pub mod block;
    pub mod exception;
    pub mod patched;
    pub mod table;
    pub mod trap;
    pub mod version;
}
pub mod calls;
pub mod ioctl;
pub mod layout;

pub use calls::{KfdClientCalls, KfdDebugCalls, KfdPatchedCalls, QueueSelector};
pub use ioctl::{Call, DebuggerIoctl, Ioctl, Passed, Pointed};
