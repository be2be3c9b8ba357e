//! Doors to KFD, with a method for each operation ([`Door`]).
//!
//! Behind a [`KernelDoor`] is the kernel, behind an [`EmulatedDoor`] an emulator; for tests its
//! rules alone are enough ([`super::fake`]). Who may call what, and from which thread, is up to
//! whoever is behind it: see [`super::session`].

mod emulated;
mod kernel;

pub use emulated::EmulatedDoor;
pub use gpreempt_kfd::{ClientDoor, Door, Meant};
pub use kernel::KernelDoor;
