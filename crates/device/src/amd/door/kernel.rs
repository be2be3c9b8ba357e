//! The kernel's own KFD.
#![expect(unsafe_code, reason = "blocks carry the addresses of arrays")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gpreempt_kfd::{Call, DebuggerIoctl, Ioctl};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::amd::{node, ptrace};
use crate::ioctl::exchange_bytes;

/// An open `/dev/kfd`. Everything goes through the process that opened it, and a copy of it in
/// another process is good for nothing.
#[derive(Debug)]
pub struct KernelDoor {
    file: OwnedFd,
}

impl KernelDoor {
    /// Opens the device.
    ///
    /// # Errors
    /// If there is none, or we may not.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self::new(rustix::fs::open(node::PATH, flags, Mode::empty())?))
    }

    /// Through that file.
    pub fn new(file: OwnedFd) -> Self {
        Self { file }
    }
}

/// Writes into the block where things are, and makes the call.
fn make(file: impl AsFd, call: Call<'_>) -> Result<(), Errno> {
    let Call { opcode, block, array, file: passed } = call;
    // A block that is shorter than its number says would be read and written beyond its end.
    if block.len() < size_of_block(opcode) {
        return Err(Errno::FAULT);
    }
    if let Some(array) = array {
        let address = array.bytes.as_mut_ptr().expose_provenance();
        // CAST: an address has 64 bits.
        put(block, array.at, &(address as u64).to_ne_bytes())?;
    }
    if let Some((at, passed)) = passed.and_then(|passed| Some((passed.at?, passed.file))) {
        put(block, at, &passed.as_raw_fd().to_ne_bytes())?;
    }
    // SAFETY: the block is as long as its number says. What KFD follows in it is the address of the
    // array, which is borrowed until this returns; that its length is what the block says is the
    // promise of whoever built the call (`gpreempt_kfd::door`, whose tests compare them).
    unsafe { exchange_bytes(file, opcode, block) }
}

/// The bytes of the block of an ioctl, as its number says.
fn size_of_block(opcode: rustix::ioctl::Opcode) -> usize {
    let size = opcode >> 16 & 0x3fff;
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), Errno> {
    let place = block.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
    place.ok_or(Errno::FAULT)?.copy_from_slice(bytes);
    Ok(())
}

impl Ioctl for KernelDoor {
    fn call(&self, call: Call<'_>) -> Result<(), Errno> {
        make(&self.file, call)
    }
}

impl DebuggerIoctl for KernelDoor {
    fn seize(&self, pid: u32) -> Result<(), Errno> {
        ptrace::seize(pid)
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        ptrace::tracer_of(pid)
    }

    fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
        let mut result = Err(Errno::NODEV);
        for file in node::borrowed_from(pid)? {
            let mut block = call.block.to_vec();
            result = make(&file, Call::plain(call.opcode, &mut block));
            // Files that it has from its parent are its parent's.
            if result != Err(Errno::BADF) {
                call.block.copy_from_slice(&block);
                break;
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use zerocopy::FromZeros;

    use super::*;
    use crate::amd::abi::block::{CreateQueue, CriuOperation, UpdateQueue};
    use crate::amd::abi::exception::Exceptions;
    use crate::amd::door::{ClientDoor, Door};

    #[test]
    fn a_file_that_is_not_kfd_says_so() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let door = KernelDoor::new(null.into());
        let pipe = rustix::pipe::pipe().unwrap();
        let refused = Some(Errno::NOTTY);
        assert_eq!(door.version().err(), refused);
        assert_eq!(door.enable(1, Exceptions::WANTED, pipe.1.as_fd()).err(), refused);
        assert_eq!(door.disable(1).err(), refused);
        assert_eq!(door.suspend_queues(1, &mut [1, 2], 0).err(), refused);
        assert_eq!(door.resume_queues(1, &mut [1, 2]).err(), refused);
        assert_eq!(door.queues(1, Exceptions::NONE, 0).err(), refused);
        assert_eq!(door.devices(1, 4).err(), refused);
        assert_eq!(door.next_event(1, Exceptions::NONE).err(), refused);
        assert_eq!(door.runtime_info(1).err(), refused);
        assert_eq!(door.send_runtime_event(1).err(), refused);
        assert_eq!(door.runtime_enable(true).err(), refused);
        assert_eq!(door.create_queue(&mut CreateQueue::new_zeroed()).err(), refused);
        assert_eq!(door.destroy_queue(1).err(), refused);
        assert_eq!(door.update_queue(&UpdateQueue::new_zeroed()).err(), refused);
    }

    #[test]
    fn a_process_without_a_device_cannot_be_paused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let door = KernelDoor::new(null.into());
        let own = std::process::id();
        assert_eq!(door.criu(own, CriuOperation::Unpause), Err(Errno::NODEV));
    }
}
