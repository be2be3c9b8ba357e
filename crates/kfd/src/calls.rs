//! The operations of KFD, one method each. Every method builds its argument block and passes it to
//! an [`Ioctl`]; arguments and results are plain values, errors are the kernel's numbers.
//!
//! Nothing is interpreted here, and no rule is checked: KFD decides which thread may call what.

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::abi::block::{
    self, CreateQueue, Criu, CriuOperation, DestroyQueue, GetVersion, RuntimeEnable, UpdateQueue,
};
use crate::abi::exception::{Exceptions, RUNTIME_CODE};
use crate::abi::patched::{
    ALL_QUEUES, FLAG_ANY_OWNER, FLAG_GRACE, PREEMPT_QUEUE, PreemptEntry, PreemptQueue,
    RESUME_QUEUE, ResumeQueue, SET_PREEMPT_PRIORITY, SetPreemptPriority,
};
use crate::abi::trap::{
    DBG_TRAP, DebugEvent, DeviceEntry, Enable, ExceptionInfo, Operation, QueueEntry, ResumeQueues,
    RuntimeInfo, Snapshot, SuspendQueues, Trap,
};
use crate::abi::version::Version;
use crate::ioctl::{Call, DebuggerIoctl, Ioctl, Passed, Pointed};

/// What a process calls for itself.
pub trait KfdClientCalls: Ioctl {
    /// Registers or unregisters the runtime of the caller. Blocks until the caller's debugger
    /// replies, if it has one. `EBUSY`: it is registered already.
    fn runtime_enable(&self, begins: bool) -> Result<(), Errno> {
        let mut block = RuntimeEnable { r_debug: 0, mode: u32::from(begins), capabilities: 0 };
        self.call(Call::plain(block::RUNTIME_ENABLE, block.as_mut_bytes()))
    }

    /// Creates a queue and writes its id into the block.
    fn create_queue(&self, block: &mut CreateQueue) -> Result<(), Errno> {
        self.call(Call::plain(block::CREATE_QUEUE, block.as_mut_bytes()))
    }

    /// Destroys a queue. Blocks while a debugger has it suspended.
    fn destroy_queue(&self, queue: u32) -> Result<(), Errno> {
        let mut block = DestroyQueue { queue_id: queue, padding: 0 };
        self.call(Call::plain(block::DESTROY_QUEUE, block.as_mut_bytes()))
    }

    fn update_queue(&self, block: &UpdateQueue) -> Result<(), Errno> {
        let mut block = *block;
        self.call(Call::plain(block::UPDATE_QUEUE, block.as_mut_bytes()))
    }
}

/// The calls of a KFD with the patches of `kernel/`. A KFD without them replies `ENOTTY`.
pub trait KfdPatchedCalls: Ioctl {
    /// Preempts queues of any processes, with one run list update per device. The queues belong to
    /// the caller until it resumes them, ends, or `timeout_ms` have passed (0: no limit). Each
    /// entry gets its own result. `EPERM`: a queue of another process without `CAP_SYS_ADMIN`;
    /// nothing is preempted then.
    fn preempt_queues(
        &self,
        entries: &mut [PreemptEntry],
        grace: Option<u32>,
        timeout_ms: u32,
    ) -> Result<(), Errno> {
        let mut block = PreemptQueue {
            count: length_of(entries.len())?,
            entry_size: ENTRY_BYTES,
            flags: if grace.is_some() { FLAG_GRACE } else { 0 },
            grace: grace.unwrap_or(0),
            timeout_ms,
            ..PreemptQueue::default()
        };
        let at = offset_of!(PreemptQueue, entries);
        let array = Some(Pointed { at, bytes: entries.as_mut_bytes() });
        self.call(Call { array, ..Call::plain(PREEMPT_QUEUE, block.as_mut_bytes()) })
    }

    /// Resumes queues that the caller preempted, or with `any_owner` that any process preempted.
    fn unpreempt_queues(&self, entries: &mut [PreemptEntry], any_owner: bool) -> Result<(), Errno> {
        let mut block = ResumeQueue {
            count: length_of(entries.len())?,
            entry_size: ENTRY_BYTES,
            flags: if any_owner { FLAG_ANY_OWNER } else { 0 },
            ..ResumeQueue::default()
        };
        let at = offset_of!(ResumeQueue, entries);
        let array = Some(Pointed { at, bytes: entries.as_mut_bytes() });
        self.call(Call { array, ..Call::plain(RESUME_QUEUE, block.as_mut_bytes()) })
    }

    /// Sets the priority of queues for the in-kernel scheduler and returns how many queues that
    /// affects. `ESRCH`: no such process; `ENOENT`: no such queue; `ESTALE`: another serial number.
    fn set_preempt_priority(
        &self,
        pid: u32,
        queues: QueueSelector,
        priority: u32,
    ) -> Result<u32, Errno> {
        let (queue_id, serial) = match queues {
            QueueSelector::All => (ALL_QUEUES, 0),
            QueueSelector::One { id, serial } => (id, serial),
        };
        let mut block =
            SetPreemptPriority { pid, queue_id, serial, priority, ..SetPreemptPriority::default() };
        self.call(Call::plain(SET_PREEMPT_PRIORITY, block.as_mut_bytes()))?;
        Ok(block.done)
    }
}

/// Which queues of a process a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueSelector {
    /// All queues, including those that the process creates later.
    All,
    /// One queue. Serial number 0 matches any queue with that id.
    One { id: u32, serial: u64 },
}

const ENTRY_BYTES: u32 = 24;
const _: () = assert!(size_of::<PreemptEntry>() == ENTRY_BYTES as usize);

/// What a debugger calls about other processes.
pub trait KfdDebugCalls: KfdPatchedCalls + DebuggerIoctl {
    fn version(&self) -> Result<Version, Errno> {
        let mut block = GetVersion::new_zeroed();
        self.call(Call::plain(block::GET_VERSION, block.as_mut_bytes()))?;
        Ok(Version { major: block.major, minor: block.minor })
    }

    /// Starts a debug session. KFD writes a byte to `events`, a non-blocking pipe, for each of the
    /// `wanted` exceptions, and closes its end of the pipe when the session ends. `EPERM`: the
    /// caller is not the tracer; `EALREADY`: the process has a session.
    fn enable(
        &self,
        pid: u32,
        wanted: Exceptions,
        events: BorrowedFd<'_>,
    ) -> Result<RuntimeInfo, Errno> {
        let mut info = RuntimeInfo::default();
        let info_size = length_of(size_of::<RuntimeInfo>())?;
        let block = Enable { exceptions: wanted, info: 0, info_size, events: 0 };
        let mut trap = Trap::new(pid, Operation::Enable, &block);
        let at = REST + offset_of!(Enable, info);
        let array = Some(Pointed { at, bytes: info.as_mut_bytes() });
        let file = Some(Passed { at: Some(REST + offset_of!(Enable, events)), file: events });
        self.call(Call { opcode: DBG_TRAP, block: trap.as_mut_bytes(), array, file })?;
        Ok(info)
    }

    /// Ends a debug session; KFD resumes its suspended queues. `EINVAL`: there is no session;
    /// `EPERM`: it belongs to another process.
    fn disable(&self, pid: u32) -> Result<(), Errno> {
        trap(self, pid, Operation::Disable, &[0_u64; 3], None).map(drop)
    }

    /// Suspends queues, with bits in each id for its result. `EPERM`: the process has no runtime;
    /// nothing is suspended then.
    fn suspend_queues(&self, pid: u32, queues: &mut [u32], grace: u32) -> Result<(), Errno> {
        let count = length_of(queues.len())?;
        let block = SuspendQueues { exceptions: Exceptions::NONE, queues: 0, count, grace };
        let array = Some((offset_of!(SuspendQueues, queues), queues.as_mut_bytes()));
        trap(self, pid, Operation::SuspendQueues, &block, array).map(drop)
    }

    /// Resumes queues, likewise.
    fn resume_queues(&self, pid: u32, queues: &mut [u32]) -> Result<(), Errno> {
        let block = ResumeQueues { queues: 0, count: length_of(queues.len())?, padding: 0 };
        let array = Some((offset_of!(ResumeQueues, queues), queues.as_mut_bytes()));
        trap(self, pid, Operation::ResumeQueues, &block, array).map(drop)
    }

    /// At most `room` queues of a process, and how many it has. Clears the exceptions `cleared` of
    /// those queues. `EINVAL`: there is no session; `EPERM`: it belongs to another process.
    fn queues(
        &self,
        pid: u32,
        cleared: Exceptions,
        room: u32,
    ) -> Result<(Vec<QueueEntry>, u32), Errno> {
        snapshot(self, pid, Operation::QueueSnapshot, cleared, room)
    }

    /// At most `room` devices of a process, and how many it uses.
    fn devices(&self, pid: u32, room: u32) -> Result<(Vec<DeviceEntry>, u32), Errno> {
        snapshot(self, pid, Operation::DeviceSnapshot, Exceptions::NONE, room)
    }

    /// The next event, whose exceptions `cleared` are cleared. `EAGAIN`: there is none.
    fn next_event(&self, pid: u32, cleared: Exceptions) -> Result<DebugEvent, Errno> {
        let block = DebugEvent { exceptions: cleared, gpu_id: 0, queue_id: 0 };
        trap(self, pid, Operation::QueryDebugEvent, &block, None)
    }

    /// The state of a process's runtime; clears the event that announced its change. `ENODATA`:
    /// there was no such event.
    fn runtime_info(&self, pid: u32) -> Result<RuntimeInfo, Errno> {
        let mut info = RuntimeInfo::default();
        let info_size = length_of(size_of::<RuntimeInfo>())?;
        let block = ExceptionInfo { info: 0, info_size, source: 0, code: RUNTIME_CODE, clear: 1 };
        let array = Some((offset_of!(ExceptionInfo, info), info.as_mut_bytes()));
        trap(self, pid, Operation::QueryExceptionInfo, &block, array)?;
        Ok(info)
    }

    /// Replies to a process that waits for its debugger, or will wait.
    fn send_runtime_event(&self, pid: u32) -> Result<(), Errno> {
        let block = DebugEvent { exceptions: Exceptions::RUNTIME, gpu_id: 0, queue_id: 0 };
        trap(self, pid, Operation::SendRuntimeEvent, &block, None).map(drop)
    }

    /// Pauses or unpauses a whole process through a descriptor of that process. `EBADF`: the
    /// caller is not its tracer; `EPERM`: no capability; `EINVAL`: it is not paused; `ENODEV`: it
    /// uses no device.
    fn criu(&self, pid: u32, operation: CriuOperation) -> Result<(), Errno> {
        // CAST: `CriuOperation` has 32 bits.
        let mut block = Criu { operation: operation as u32, ..Criu::default() };
        self.call_through(pid, Call::plain(block::CRIU, block.as_mut_bytes()))
    }
}

impl<T: Ioctl + ?Sized> KfdClientCalls for T {}
impl<T: Ioctl + ?Sized> KfdPatchedCalls for T {}
impl<T: DebuggerIoctl + ?Sized> KfdDebugCalls for T {}

/// The offset of an operation's own block.
const REST: usize = offset_of!(Trap, rest);

/// Makes a debugger's call. `array` is the offset of an address in the operation's block, and the
/// bytes it points to.
fn trap<B: IntoBytes + FromBytes + Immutable>(
    ioctl: &(impl Ioctl + ?Sized),
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

/// Reads a snapshot of at most `room` entries.
fn snapshot<E: FromBytes + FromZeros + IntoBytes + Clone>(
    ioctl: &(impl Ioctl + ?Sized),
    pid: u32,
    operation: Operation,
    exceptions: Exceptions,
    room: u32,
) -> Result<(Vec<E>, u32), Errno> {
    let length = usize::try_from(room).map_err(|_| Errno::OVERFLOW)?;
    // The kernel refuses a null address, even for no entries.
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::Mutex;

    use super::*;

    /// Opcode, block, array with the offset of its address, offset of a descriptor.
    type Recorded = (u32, Vec<u8>, Option<(usize, Vec<u8>)>, Option<usize>);

    /// Records calls, fills the array of a debugger's call with ones, and fails every second queue
    /// of a patched call.
    #[derive(Debug, Default)]
    struct Recorder {
        calls: Mutex<Vec<Recorded>>,
    }

    impl Recorder {
        fn last(&self) -> Recorded {
            self.calls.lock().unwrap().pop().unwrap()
        }
    }

    impl Ioctl for Recorder {
        fn call(&self, call: Call<'_>) -> Result<(), Errno> {
            let size = usize::try_from(call.opcode >> 16 & 0x3fff).unwrap();
            assert_eq!(size, call.block.len(), "the opcode contains the size of the block");
            let array = call.array.as_ref().map(|array| (array.at, array.bytes.to_vec()));
            let file = call.file.and_then(|file| file.at);
            self.calls.lock().unwrap().push((call.opcode, call.block.to_vec(), array, file));
            match call.array {
                Some(array) if call.opcode == DBG_TRAP => array.bytes.fill(1),
                Some(array) => {
                    assert_eq!(array.at, 0);
                    let entries = <[PreemptEntry]>::mut_from_bytes(array.bytes).unwrap();
                    let count = call.block[8..12].first_chunk().unwrap();
                    assert_eq!(u32::from_le_bytes(*count), u32::try_from(entries.len()).unwrap());
                    for entry in entries.iter_mut().skip(1).step_by(2) {
                        entry.result = -2;
                    }
                }
                None if call.opcode == SET_PREEMPT_PRIORITY => call.block[24] = 3,
                None => {}
            }
            Ok(())
        }
    }

    impl DebuggerIoctl for Recorder {
        fn seize(&self, _pid: u32) -> Result<(), Errno> {
            Err(Errno::PERM)
        }

        fn tracer_of(&self, _pid: u32) -> Option<u32> {
            None
        }

        fn call_through(&self, pid: u32, call: Call<'_>) -> Result<(), Errno> {
            if pid == 7 { self.call(call) } else { Err(Errno::NODEV) }
        }
    }

    #[test]
    fn references_are_at_the_offsets_of_the_header() {
        let recorder = Recorder::default();
        let pipe = rustix::pipe::pipe().unwrap();
        let info = recorder.enable(7, Exceptions::WANTED, pipe.1.as_fd()).unwrap();
        let (opcode, block, array, file) = recorder.last();
        assert_eq!((opcode, block.len()), (DBG_TRAP, 32));
        assert_eq!((array, file), (Some((16, vec![0; 16])), Some(28)));
        assert_eq!(info.ttmp_setup, 0x0101_0101);

        let mut queues = [3, 4];
        recorder.suspend_queues(7, &mut queues, 9).unwrap();
        let (_, block, array, _) = recorder.last();
        assert_eq!(array, Some((16, vec![3, 0, 0, 0, 4, 0, 0, 0])));
        assert_eq!((block[4], block[24], block[28]), (6, 2, 9));
        assert_eq!(queues, [0x0101_0101; 2]);

        recorder.resume_queues(7, &mut queues).unwrap();
        assert_eq!(recorder.last().2.map(|(at, _)| at), Some(8));
        recorder.runtime_info(7).unwrap();
        assert_eq!(recorder.last().2.map(|(at, _)| at), Some(8));
    }

    #[test]
    fn a_snapshot_has_room_for_one_entry_even_if_none_is_wanted() {
        let recorder = Recorder::default();
        let (entries, count) = recorder.queues(7, Exceptions::NONE, 0).unwrap();
        assert_eq!((entries.len(), count), (0, 0));
        assert_eq!(recorder.last().2, Some((16, vec![0; 64])));
        let (entries, _) = recorder.devices(7, 2).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1].gpu_id, 0x0101_0101);
    }

    #[test]
    fn blocks_without_references_carry_nothing_else() {
        let recorder = Recorder::default();
        recorder.runtime_enable(true).unwrap();
        let enabled = recorder.last();
        assert_eq!((enabled.0, enabled.1[8], enabled.2, enabled.3), (0xc010_4b25, 1, None, None));
        recorder.destroy_queue(5).unwrap();
        assert_eq!(recorder.last().1, [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(recorder.criu(8, CriuOperation::Unpause), Err(Errno::NODEV));
        recorder.criu(7, CriuOperation::Unpause).unwrap();
        assert_eq!(recorder.last().1[48], 2);
    }

    #[test]
    fn patched_calls_are_the_blocks_of_the_patches() {
        let kfd = Recorder::default();
        let mut entries =
            [1, 2, 3].map(|pid| PreemptEntry { pid, queue_id: 9, ..PreemptEntry::default() });
        let one = QueueSelector::One { id: 1, serial: 1 << 40 };
        kfd.preempt_queues(&mut entries, Some(5), 700).unwrap();
        assert_eq!(entries.map(|entry| entry.result), [0, -2, 0]);
        kfd.preempt_queues(&mut entries, None, 0).unwrap();
        kfd.unpreempt_queues(&mut entries, true).unwrap();
        assert_eq!(kfd.set_preempt_priority(7, one, 12), Ok(3));
        let calls = kfd.calls.into_inner().unwrap();
        let preempt = |at: usize| PreemptQueue::read_from_bytes(&calls[at].1).unwrap();
        assert_eq!((preempt(0).flags, preempt(0).grace, preempt(0).timeout_ms), (1, 5, 700));
        assert_eq!((preempt(1).flags, preempt(1).grace, preempt(1).count), (0, 0, 3));
        let resume = ResumeQueue::read_from_bytes(&calls[2].1).unwrap();
        assert_eq!((calls[2].0, resume.flags, resume.entry_size), (RESUME_QUEUE, 1, 24));
        let set = SetPreemptPriority::read_from_bytes(&calls[3].1).unwrap();
        assert_eq!((set.pid, set.queue_id, set.serial), (7, 1, 1 << 40));
        assert_eq!((set.priority, set.flags), (12, 0));
    }
}
