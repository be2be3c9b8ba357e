//! Unified memory: the address spaces of programs, reached through an open `/dev/nvidia-uvm`.
#![expect(unsafe_code, reason = "blocks are passed by address")]

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::abi::status::Status;
use super::abi::uvm::{self, Attributes, MapObject, Range, RegisterChannel, UnregisterChannel};
use super::rm::{Handle, Rm, RmError};
use crate::ioctl::exchange;

/// An open `/dev/nvidia-uvm` of some process.
#[derive(Debug)]
pub struct Uvm {
    file: OwnedFd,
}

/// A piece of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub base: u64,
    /// How many bytes it has.
    pub length: u64,
}

impl Uvm {
    /// Through that file.
    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Takes a piece of the address space and maps an object of a client there, as one GPU sees it.
    /// If that does not work, the piece is given back.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn map(
        &self,
        piece: Piece,
        uuid: [u8; 16],
        rm: &Rm,
        (client, object): (Handle, Handle),
    ) -> Result<(), RmError> {
        let mut range = Range::new(piece.base, piece.length);
        self.exchange(uvm::TAKE_RANGE, &mut range, |range| range.status)?;
        // Nine kilobytes, most of them for GPUs that nobody has.
        let mut block = Box::new(MapObject::new_zeroed());
        (block.base, block.length, block.count) = (piece.base, piece.length, 1);
        block.attributes[0].uuid = uuid;
        block.attributes[0].mapping = Attributes::READ_WRITE_ATOMIC;
        block.control_file = rm.file().as_raw_fd();
        (block.client, block.memory) = (client, object);
        self.exchange(uvm::MAP_OBJECT, &mut *block, |block| block.status).inspect_err(|_| {
            let _ = self.free(piece);
        })
    }

    /// Gives a piece back.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn free(&self, piece: Piece) -> Result<(), RmError> {
        let mut range = Range::new(piece.base, piece.length);
        self.exchange(uvm::FREE_RANGE, &mut range, |range| range.status)
    }

    /// Makes a channel known, so that it may run.
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn register(
        &self,
        uuid: [u8; 16],
        rm: &Rm,
        (client, channel): (Handle, Handle),
        piece: Piece,
    ) -> Result<(), RmError> {
        let mut block = RegisterChannel::new_zeroed();
        (block.uuid, block.control_file) = (uuid, rm.file().as_raw_fd());
        (block.client, block.channel) = (client, channel);
        (block.base, block.length) = (piece.base, piece.length);
        self.exchange(uvm::REGISTER_CHANNEL, &mut block, |block| block.status)
    }

    /// Undoes a [`Uvm::register`].
    ///
    /// # Errors
    /// If the kernel or the driver refuses.
    pub fn unregister(
        &self,
        uuid: [u8; 16],
        (client, channel): (Handle, Handle),
    ) -> Result<(), RmError> {
        let mut block = UnregisterChannel::new_zeroed();
        block.uuid = uuid;
        (block.client, block.channel) = (client, channel);
        self.exchange(uvm::UNREGISTER_CHANNEL, &mut block, |block| block.status)
    }

    fn exchange<T: FromBytes + IntoBytes>(
        &self,
        opcode: Opcode,
        block: &mut T,
        status: impl Fn(&T) -> Status,
    ) -> Result<(), RmError> {
        let file: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(&self.file);
        // SAFETY: every caller above passes the block that goes with its number, and no block has
        // an address in it that the driver follows in this process.
        unsafe { exchange(file, opcode, block) }.map_err(RmError::Os)?;
        match status(block) {
            Status::OK => Ok(()),
            status => Err(RmError::Refused(status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_file_that_is_something_else_is_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let uvm = Uvm::new(null.into());
        let piece = Piece { base: 0xe0_0000_0000, length: 0x1_0000 };
        assert_eq!(uvm.free(piece), Err(RmError::Os(Errno::NOTTY)));
        assert_eq!(uvm.unregister([0; 16], (1, 2)), Err(RmError::Os(Errno::NOTTY)));
    }
}
