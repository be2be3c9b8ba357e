//! What a debugger does, as blocks.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::Door;
use crate::abi::block::{self, Criu, CriuOperation, GetVersion};
use crate::abi::exception::{Exceptions, RUNTIME_CODE};
use crate::abi::trap::{
    DBG_TRAP, DebugEvent, DeviceEntry, Enable, ExceptionInfo, Operation, QueueEntry, ResumeQueues,
    RuntimeInfo, Snapshot, SuspendQueues, Trap,
};
use crate::abi::version::Version;
use crate::ioctl::{Call, DebuggerIoctl, Ioctl, Passed, Pointed};

/// Where the block of an operation begins.
const REST: usize = offset_of!(Trap, rest);

/// An operation with an array, if it has one: where its address goes, and its bytes.
fn trap<B: IntoBytes + FromBytes + Immutable>(
    ioctl: &impl Ioctl,
    pid: u32,
    operation: Operation,
    block: &B,
    array: Option<(usize, &mut [u8])>,
) -> Result<B, Errno> {
    let mut trap = Trap::new(pid, operation, block);
    let array = array.map(|(at, bytes)| Pointed { at: REST + at, bytes });
    ioctl.call(Call { array, ..Call::plain(DBG_TRAP, trap.as_mut_bytes()) })?;
    Ok(trap.block())
}

/// A snapshot into `room` entries of any kind.
fn snapshot<E: FromBytes + FromZeros + IntoBytes + Clone>(
    ioctl: &impl Ioctl,
    pid: u32,
    operation: Operation,
    exceptions: Exceptions,
    room: u32,
) -> Result<(Vec<E>, u32), Errno> {
    let length = usize::try_from(room).map_err(|_| Errno::OVERFLOW)?;
    // The kernel refuses an array without an address, even if nothing is to go there.
    let mut entries = vec![E::new_zeroed(); length.max(1)];
    let entry_size = length_of(size_of::<E>())?;
    let block = Snapshot { exceptions, entries: 0, count: room, entry_size };
    let at = offset_of!(Snapshot, entries);
    let array = Some((at, entries.as_mut_slice().as_mut_bytes()));
    let answer = trap(ioctl, pid, operation, &block, array)?;
    let filled = usize::try_from(answer.count.min(room)).map_err(|_| Errno::OVERFLOW)?;
    entries.truncate(filled);
    Ok((entries, answer.count))
}

fn length_of(length: usize) -> Result<u32, Errno> {
    u32::try_from(length).map_err(|_| Errno::INVAL)
}

impl<T: DebuggerIoctl> Door for T {
    fn version(&self) -> Result<Version, Errno> {
        let mut block = GetVersion::new_zeroed();
        self.call(Call::plain(block::GET_VERSION, block.as_mut_bytes()))?;
        Ok(Version { major: block.major, minor: block.minor })
    }

    fn is_gone(&self) -> bool {
        DebuggerIoctl::is_gone(self)
    }

    fn seize(&self, pid: u32) -> Result<(), Errno> {
        DebuggerIoctl::seize(self, pid)
    }

    fn tracer_of(&self, pid: u32) -> Option<u32> {
        DebuggerIoctl::tracer_of(self, pid)
    }

    fn enable(
        &self,
        pid: u32,
        exceptions: Exceptions,
        events: BorrowedFd<'_>,
    ) -> Result<RuntimeInfo, Errno> {
        let mut info = RuntimeInfo::default();
        let info_size = length_of(size_of::<RuntimeInfo>())?;
        let block = Enable { exceptions, info: 0, info_size, events: 0 };
        let mut trap = Trap::new(pid, Operation::Enable, &block);
        let at = REST + offset_of!(Enable, info);
        let array = Some(Pointed { at, bytes: info.as_mut_bytes() });
        let file = Some(Passed { at: Some(REST + offset_of!(Enable, events)), file: events });
        self.call(Call { opcode: DBG_TRAP, block: trap.as_mut_bytes(), array, file })?;
        Ok(info)
    }

    fn disable(&self, pid: u32) -> Result<(), Errno> {
        trap(self, pid, Operation::Disable, &[0_u64; 3], None).map(drop)
    }

    fn suspend_queues(&self, pid: u32, queues: &mut [u32], grace: u32) -> Result<(), Errno> {
        let count = length_of(queues.len())?;
        let block = SuspendQueues { exceptions: Exceptions::NONE, queues: 0, count, grace };
        let array = Some((offset_of!(SuspendQueues, queues), queues.as_mut_bytes()));
        trap(self, pid, Operation::SuspendQueues, &block, array).map(drop)
    }

    fn resume_queues(&self, pid: u32, queues: &mut [u32]) -> Result<(), Errno> {
        let block = ResumeQueues { queues: 0, count: length_of(queues.len())?, padding: 0 };
        let array = Some((offset_of!(ResumeQueues, queues), queues.as_mut_bytes()));
        trap(self, pid, Operation::ResumeQueues, &block, array).map(drop)
    }

    fn queues(
        &self,
        pid: u32,
        noted: Exceptions,
        room: u32,
    ) -> Result<(Vec<QueueEntry>, u32), Errno> {
        snapshot(self, pid, Operation::QueueSnapshot, noted, room)
    }

    fn devices(&self, pid: u32, room: u32) -> Result<(Vec<DeviceEntry>, u32), Errno> {
        snapshot(self, pid, Operation::DeviceSnapshot, Exceptions::NONE, room)
    }

    fn next_event(&self, pid: u32, noted: Exceptions) -> Result<DebugEvent, Errno> {
        let block = DebugEvent { exceptions: noted, gpu_id: 0, queue_id: 0 };
        trap(self, pid, Operation::QueryDebugEvent, &block, None)
    }

    fn runtime_info(&self, pid: u32) -> Result<RuntimeInfo, Errno> {
        let mut info = RuntimeInfo::default();
        let info_size = length_of(size_of::<RuntimeInfo>())?;
        let block = ExceptionInfo { info: 0, info_size, source: 0, code: RUNTIME_CODE, clear: 1 };
        let array = Some((offset_of!(ExceptionInfo, info), info.as_mut_bytes()));
        trap(self, pid, Operation::QueryExceptionInfo, &block, array)?;
        Ok(info)
    }

    fn send_runtime_event(&self, pid: u32) -> Result<(), Errno> {
        let block = DebugEvent { exceptions: Exceptions::RUNTIME, gpu_id: 0, queue_id: 0 };
        trap(self, pid, Operation::SendRuntimeEvent, &block, None).map(drop)
    }

    fn criu(&self, pid: u32, operation: CriuOperation) -> Result<(), Errno> {
        let mut block = Criu::new_zeroed();
        // CAST: `CriuOperation` has 32 bits.
        block.operation = operation as u32;
        self.call_through(pid, Call::plain(block::CRIU, block.as_mut_bytes()))
    }
}

#[cfg(test)]
mod tests;
