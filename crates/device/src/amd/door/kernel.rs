//! The kernel's own KFD.
#![expect(unsafe_code, reason = "blocks carry the addresses of arrays")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::Opcode;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::{ClientDoor, Door};
use crate::amd::abi::block::{self, CreateQueue, Criu, CriuOperation, UpdateQueue};
use crate::amd::abi::block::{DestroyQueue, GetVersion, RuntimeEnable};
use crate::amd::abi::exception::{Exceptions, RUNTIME_CODE};
use crate::amd::abi::trap::{
    DBG_TRAP, DebugEvent, DeviceEntry, Enable, ExceptionInfo, Operation, QueueEntry, ResumeQueues,
    RuntimeInfo, Snapshot, SuspendQueues, Trap,
};
use crate::amd::abi::version::Version;
use crate::amd::{node, ptrace};
use crate::ioctl::exchange;

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

    /// An operation whose block has no addresses.
    fn trap<B: IntoBytes + FromBytes + Immutable>(
        &self,
        pid: u32,
        operation: Operation,
        block: &B,
    ) -> Result<B, Errno> {
        let mut trap = Trap::new(pid, operation, block);
        // SAFETY: `Trap` is the block of this number; callers use operations without addresses,
        // or with addresses of memory that is theirs until this returns and as long as they say.
        unsafe { exchange(&self.file, DBG_TRAP, &mut trap) }?;
        Ok(trap.block())
    }

    /// A snapshot into `room` entries of any kind.
    fn snapshot<E: FromBytes + FromZeros + IntoBytes + Clone>(
        &self,
        pid: u32,
        operation: Operation,
        exceptions: Exceptions,
        room: u32,
    ) -> Result<(Vec<E>, u32), Errno> {
        let length = usize::try_from(room).map_err(|_| Errno::OVERFLOW)?;
        // The kernel refuses an array without an address, even if nothing is to go there.
        let mut entries = vec![E::new_zeroed(); length.max(1)];
        let entry_size = u32::try_from(size_of::<E>()).map_err(|_| Errno::OVERFLOW)?;
        let address = address_of(&mut entries);
        let block = Snapshot { exceptions, entries: address, count: room, entry_size };
        // The array is ours until the call returns and has room for what the block says.
        let answer = self.trap(pid, operation, &block)?;
        let filled = usize::try_from(answer.count.min(room)).map_err(|_| Errno::OVERFLOW)?;
        entries.truncate(filled);
        Ok((entries, answer.count))
    }

    /// An ioctl with a block that has no addresses.
    fn plain<B: FromBytes + IntoBytes>(
        file: impl AsFd,
        opcode: Opcode,
        block: &mut B,
    ) -> Result<(), Errno> {
        // SAFETY: every caller below passes the block of that number, and none has an address that
        // KFD follows: those of queues are the device's, and of `Criu` they are zero.
        unsafe { exchange(file, opcode, block) }
    }
}

/// Where an array is.
fn address_of<T>(array: &mut [T]) -> u64 {
    // CAST: an address has 64 bits.
    array.as_mut_ptr().expose_provenance() as u64
}

fn length_of<T>(array: &[T]) -> Result<u32, Errno> {
    u32::try_from(array.len()).map_err(|_| Errno::INVAL)
}

impl Door for KernelDoor {
    fn version(&self) -> Result<Version, Errno> {
        let mut block = GetVersion::new_zeroed();
        Self::plain(&self.file, block::GET_VERSION, &mut block)?;
        Ok(Version { major: block.major, minor: block.minor })
    }

    fn seize(&self, pid: u32) -> Result<(), Errno> {
        ptrace::seize(pid)
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        ptrace::tracer_of(pid)
    }

    fn enable(
        &self,
        pid: u32,
        exceptions: Exceptions,
        events: BorrowedFd<'_>,
    ) -> Result<RuntimeInfo, Errno> {
        let mut infos = [RuntimeInfo::default()];
        let info_size = u32::try_from(size_of::<RuntimeInfo>()).map_err(|_| Errno::OVERFLOW)?;
        let events = u32::try_from(events.as_raw_fd()).map_err(|_| Errno::BADF)?;
        let info = address_of(&mut infos);
        let block = Enable { exceptions, info, info_size, events };
        self.trap(pid, Operation::Enable, &block)?;
        Ok(infos[0])
    }

    fn disable(&self, pid: u32) -> Result<(), Errno> {
        self.trap(pid, Operation::Disable, &[0_u64; 3]).map(drop)
    }

    fn suspend_queues(&self, pid: u32, queues: &mut [u32], grace: u32) -> Result<(), Errno> {
        let count = length_of(queues)?;
        let queues = address_of(queues);
        let block = SuspendQueues { exceptions: Exceptions::NONE, queues, count, grace };
        self.trap(pid, Operation::SuspendQueues, &block).map(drop)
    }

    fn resume_queues(&self, pid: u32, queues: &mut [u32]) -> Result<(), Errno> {
        let count = length_of(queues)?;
        let block = ResumeQueues { queues: address_of(queues), count, padding: 0 };
        self.trap(pid, Operation::ResumeQueues, &block).map(drop)
    }

    fn queues(
        &self,
        pid: u32,
        noted: Exceptions,
        room: u32,
    ) -> Result<(Vec<QueueEntry>, u32), Errno> {
        self.snapshot(pid, Operation::QueueSnapshot, noted, room)
    }

    fn devices(&self, pid: u32, room: u32) -> Result<(Vec<DeviceEntry>, u32), Errno> {
        self.snapshot(pid, Operation::DeviceSnapshot, Exceptions::NONE, room)
    }

    fn next_event(&self, pid: u32, noted: Exceptions) -> Result<DebugEvent, Errno> {
        let block = DebugEvent { exceptions: noted, gpu_id: 0, queue_id: 0 };
        self.trap(pid, Operation::QueryDebugEvent, &block)
    }

    fn runtime_info(&self, pid: u32) -> Result<RuntimeInfo, Errno> {
        let mut infos = [RuntimeInfo::default()];
        let info_size = u32::try_from(size_of::<RuntimeInfo>()).map_err(|_| Errno::OVERFLOW)?;
        let info = address_of(&mut infos);
        let block = ExceptionInfo { info, info_size, source: 0, code: RUNTIME_CODE, clear: 1 };
        self.trap(pid, Operation::QueryExceptionInfo, &block)?;
        Ok(infos[0])
    }

    fn send_runtime_event(&self, pid: u32) -> Result<(), Errno> {
        let block = DebugEvent { exceptions: Exceptions::RUNTIME, gpu_id: 0, queue_id: 0 };
        self.trap(pid, Operation::SendRuntimeEvent, &block).map(drop)
    }

    fn criu(&self, pid: u32, operation: CriuOperation) -> Result<(), Errno> {
        let mut result = Err(Errno::NODEV);
        for file in node::borrowed_from(pid)? {
            let mut block = Criu::new_zeroed();
            // CAST: `CriuOperation` has 32 bits.
            block.operation = operation as u32;
            result = Self::plain(&file, block::CRIU, &mut block);
            // Files that it has from its parent are its parent's.
            if result != Err(Errno::BADF) {
                break;
            }
        }
        result
    }
}

impl ClientDoor for KernelDoor {
    fn runtime_enable(&self, begins: bool) -> Result<(), Errno> {
        let mut block = RuntimeEnable { r_debug: 0, mode: u32::from(begins), capabilities: 0 };
        Self::plain(&self.file, block::RUNTIME_ENABLE, &mut block)
    }

    fn create_queue(&self, block: &mut CreateQueue) -> Result<(), Errno> {
        Self::plain(&self.file, block::CREATE_QUEUE, block)
    }

    fn destroy_queue(&self, queue: u32) -> Result<(), Errno> {
        let mut block = DestroyQueue { queue_id: queue, padding: 0 };
        Self::plain(&self.file, block::DESTROY_QUEUE, &mut block)
    }

    fn update_queue(&self, block: &UpdateQueue) -> Result<(), Errno> {
        let mut block = *block;
        Self::plain(&self.file, block::UPDATE_QUEUE, &mut block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
