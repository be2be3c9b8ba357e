//! Unified memory: the address spaces of programs, reached through an open `/dev/nvidia-uvm`.
#![expect(unsafe_code, reason = "blocks are passed by address")]

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::abi::hold::{
    Attributes, FREE_RANGE, MAP_OBJECT, MapObject, REGISTER_CHANNEL, Range, RegisterChannel,
    TAKE_RANGE, UNREGISTER_CHANNEL, UnregisterChannel,
};
use super::abi::status::Status;
use super::rm::{Handle, Rm, RmError, check};
use crate::ioctl::exchange;

/// An open `/dev/nvidia-uvm` of some process.
#[derive(Debug)]
pub struct Uvm {
    file: OwnedFd,
}

/// A range of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    pub base: u64,
    pub length: u64,
}

impl Uvm {
    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }

    /// Reserves a range of the address space and maps an object of a client there for one GPU. If
    /// the mapping fails, the range is freed.
    pub fn map(
        &self,
        range: AddressRange,
        uuid: [u8; 16],
        rm: &Rm,
        (client, object): (Handle, Handle),
    ) -> Result<(), RmError> {
        let mut block = Range::new(range.base, range.length);
        self.exchange(TAKE_RANGE, &mut block, |block| block.status)?;
        // Nine kilobytes, most of them for GPUs that no machine has.
        let mut block = Box::new(MapObject::new_zeroed());
        (block.base, block.length, block.count) = (range.base, range.length, 1);
        block.attributes[0].uuid = uuid;
        block.attributes[0].mapping = Attributes::READ_WRITE_ATOMIC;
        block.control_file = rm.file().as_raw_fd();
        (block.client, block.memory) = (client, object);
        self.exchange(MAP_OBJECT, &mut *block, |block| block.status).inspect_err(|_| {
            let _ = self.free(range);
        })
    }

    pub fn free(&self, range: AddressRange) -> Result<(), RmError> {
        let mut block = Range::new(range.base, range.length);
        self.exchange(FREE_RANGE, &mut block, |block| block.status)
    }

    /// Registers a channel, so that it may run; the driver may map what it needs in `range`.
    pub fn register(
        &self,
        uuid: [u8; 16],
        rm: &Rm,
        (client, channel): (Handle, Handle),
        range: AddressRange,
    ) -> Result<(), RmError> {
        let mut block = RegisterChannel::new_zeroed();
        (block.uuid, block.control_file) = (uuid, rm.file().as_raw_fd());
        (block.client, block.channel) = (client, channel);
        (block.base, block.length) = (range.base, range.length);
        self.exchange(REGISTER_CHANNEL, &mut block, |block| block.status)
    }

    /// Reverts a [`Uvm::register`].
    pub fn unregister(
        &self,
        uuid: [u8; 16],
        (client, channel): (Handle, Handle),
    ) -> Result<(), RmError> {
        let mut block = UnregisterChannel::new_zeroed();
        block.uuid = uuid;
        (block.client, block.channel) = (client, channel);
        self.exchange(UNREGISTER_CHANNEL, &mut block, |block| block.status)
    }

    fn exchange<T: FromBytes + IntoBytes>(
        &self,
        opcode: Opcode,
        block: &mut T,
        status: impl Fn(&T) -> Status,
    ) -> Result<(), RmError> {
        // SAFETY: every caller above passes the block that goes with its number, and no block has
        // an address in it that the driver follows in this process.
        unsafe { exchange(&self.file, opcode, block) }.map_err(RmError::Os)?;
        check(status(block))
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
        let range = AddressRange { base: 0xe0_0000_0000, length: 0x1_0000 };
        assert_eq!(uvm.free(range), Err(RmError::Os(Errno::NOTTY)));
        assert_eq!(uvm.unregister([0; 16], (1, 2)), Err(RmError::Os(Errno::NOTTY)));
    }
}
