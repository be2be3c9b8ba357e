//! AMD's KFD as a language: what can be asked of it, in blocks of bytes.
//!
//! [`abi`] is what the kernel's header says. [`door`] has a method for each operation, and builds
//! the blocks. What carries them is an [`ioctl`]: the kernel's, or that of something with the same
//! rules in another process or in this one. Nothing in here opens a device.

pub mod abi;
pub mod door;
pub mod ioctl;

pub use door::{ClientDoor, Door, Meant, OwnDoor};
pub use ioctl::{Call, DebuggerIoctl, Ioctl, Passed, Pointed};
