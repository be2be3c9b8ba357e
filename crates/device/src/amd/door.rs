//! Doors to KFD, with a method for each operation ([`Door`]).
//!
//! Behind a [`KernelDoor`] is the kernel, behind an [`EmulatedDoor`] an emulator; for tests its
//! rules alone are enough (`super::fake`). Which calls are permitted, and from which thread, the
//! kernel or the emulator decides: see [`super::session`].

mod emulated;
mod kernel;

pub use emulated::EmulatedDoor;
pub use gpreempt_kfd::{ClientDoor, Door, Meant};
pub use kernel::KernelDoor;
