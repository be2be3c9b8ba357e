//! What KFD's header (`linux/kfd_ioctl.h`) says: blocks, ioctl numbers, versions.
//!
//! Plain data, no calls. `tests/kfd_headers.rs` asks a C compiler whether the header agrees.

pub mod block;
pub mod exception;
pub mod own;
pub mod table;
pub mod trap;
pub mod version;

use rustix::ioctl::{Opcode, opcode};

/// The group of every ioctl of KFD.
const MAGIC: u8 = b'K';

/// The number of an ioctl that fills a block.
const fn reads<T>(number: u8) -> Opcode {
    opcode::read::<T>(MAGIC, number)
}

/// The number of an ioctl that takes a block.
const fn writes<T>(number: u8) -> Opcode {
    opcode::write::<T>(MAGIC, number)
}

/// The number of an ioctl that takes a block and fills it.
const fn exchanges<T>(number: u8) -> Opcode {
    opcode::read_write::<T>(MAGIC, number)
}
