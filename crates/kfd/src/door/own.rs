//! What a patched KFD does, as blocks.

use std::fmt::Debug;
use std::mem::offset_of;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::own::{
    ALL_QUEUES, FLAG_ANY_OWNER, FLAG_GRACE, PREEMPT_QUEUE, PreemptEntry, PreemptQueue,
    RESUME_QUEUE, ResumeQueue, SET_PREEMPT_PRIORITY, SetPreemptPriority,
};
use crate::ioctl::{Call, Ioctl, Pointed};

/// Queues of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meant {
    /// All there are and will be.
    All,
    /// The one of that name, if it has that serial number; 0 is any.
    One {
        /// Its name.
        id: u32,
        /// Its serial number.
        serial: u64,
    },
}

/// The calls of our own patches. A KFD without them answers `ENOTTY`.
pub trait OwnDoor: Debug + Send + Sync {
    /// Takes queues of any processes off their devices, with one update for each device. They
    /// belong to the caller until it resumes them, ends, or `timeout_ms` are over (0: never). What
    /// became of each is in its entry.
    ///
    /// # Errors
    /// `EPERM` if a queue is somebody else's and the caller has no `CAP_SYS_ADMIN`, `EINVAL` if
    /// there are none or too many. Nothing is preempted then.
    fn preempt_queues(
        &self,
        entries: &mut [PreemptEntry],
        grace: Option<u32>,
        timeout_ms: u32,
    ) -> Result<(), Errno>;

    /// Lets queues on again that the caller preempted, or with `any_owner` anybody.
    ///
    /// # Errors
    /// Likewise.
    fn unpreempt_queues(&self, entries: &mut [PreemptEntry], any_owner: bool) -> Result<(), Errno>;

    /// Says how important queues of a process are to the kernel's scheduler. Says how many queues
    /// that are.
    ///
    /// # Errors
    /// `EPERM` without the right, `ESRCH` without the process, `ENOENT` without the queue, `ESTALE`
    /// if it is another one by now.
    fn set_preempt_priority(&self, pid: u32, queue: Meant, priority: u32) -> Result<u32, Errno>;
}

const ENTRY_BYTES: u32 = 24;
const _: () = assert!(size_of::<PreemptEntry>() == ENTRY_BYTES as usize);

fn length_of(entries: &[PreemptEntry]) -> Result<u32, Errno> {
    u32::try_from(entries.len()).map_err(|_| Errno::INVAL)
}

/// Makes a call whose block points to entries from there.
fn call_about(
    door: &impl Ioctl,
    call: Call<'_>,
    at: usize,
    entries: &mut [PreemptEntry],
) -> Result<(), Errno> {
    door.call(Call { array: Some(Pointed { at, bytes: entries.as_mut_bytes() }), ..call })
}

impl<T: Ioctl> OwnDoor for T {
    fn preempt_queues(
        &self,
        entries: &mut [PreemptEntry],
        grace: Option<u32>,
        timeout_ms: u32,
    ) -> Result<(), Errno> {
        let mut block = PreemptQueue {
            count: length_of(entries)?,
            entry_size: ENTRY_BYTES,
            flags: if grace.is_some() { FLAG_GRACE } else { 0 },
            grace: grace.unwrap_or(0),
            timeout_ms,
            ..PreemptQueue::default()
        };
        let at = offset_of!(PreemptQueue, entries);
        call_about(self, Call::plain(PREEMPT_QUEUE, block.as_mut_bytes()), at, entries)
    }

    fn unpreempt_queues(&self, entries: &mut [PreemptEntry], any_owner: bool) -> Result<(), Errno> {
        let mut block = ResumeQueue {
            count: length_of(entries)?,
            entry_size: ENTRY_BYTES,
            flags: if any_owner { FLAG_ANY_OWNER } else { 0 },
            ..ResumeQueue::default()
        };
        let at = offset_of!(ResumeQueue, entries);
        call_about(self, Call::plain(RESUME_QUEUE, block.as_mut_bytes()), at, entries)
    }

    fn set_preempt_priority(&self, pid: u32, queue: Meant, priority: u32) -> Result<u32, Errno> {
        let (queue_id, serial) = match queue {
            Meant::All => (ALL_QUEUES, 0),
            Meant::One { id, serial } => (id, serial),
        };
        let mut block =
            SetPreemptPriority { pid, queue_id, serial, priority, ..SetPreemptPriority::default() };
        self.call(Call::plain(SET_PREEMPT_PRIORITY, block.as_mut_bytes()))?;
        Ok(block.done)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use zerocopy::FromBytes;

    use super::*;

    /// Keeps what it is asked, and does every second queue.
    #[derive(Debug, Default)]
    struct Recorder {
        asked: Mutex<Vec<(u32, Vec<u8>)>>,
    }

    impl Ioctl for Recorder {
        fn call(&self, call: Call<'_>) -> Result<(), Errno> {
            let size = usize::try_from(call.opcode >> 16 & 0x3fff).unwrap();
            assert_eq!(size, call.block.len(), "the number says how long the block is");
            self.asked.lock().unwrap().push((call.opcode, call.block.to_vec()));
            if let Some(array) = call.array {
                assert_eq!(array.at, 0);
                let entries = <[PreemptEntry]>::mut_from_bytes(array.bytes).unwrap();
                let count = call.block[8..12].first_chunk().unwrap();
                assert_eq!(u32::from_le_bytes(*count), u32::try_from(entries.len()).unwrap());
                for entry in entries.iter_mut().skip(1).step_by(2) {
                    entry.result = -2;
                }
            } else {
                call.block[24] = 3;
            }
            Ok(())
        }
    }

    #[test]
    fn calls_are_the_blocks_that_the_patches_want() {
        let kfd = Recorder::default();
        let mut entries =
            [1, 2, 3].map(|pid| PreemptEntry { pid, queue_id: 9, ..PreemptEntry::default() });
        let one = Meant::One { id: 1, serial: 1 << 40 };
        kfd.preempt_queues(&mut entries, Some(5), 700).unwrap();
        assert_eq!(entries.map(|entry| entry.result), [0, -2, 0]);
        kfd.preempt_queues(&mut entries, None, 0).unwrap();
        kfd.unpreempt_queues(&mut entries, true).unwrap();
        assert_eq!(kfd.set_preempt_priority(7, one, 12), Ok(3));
        let asked = kfd.asked.into_inner().unwrap();
        let preempt = |at: usize| PreemptQueue::read_from_bytes(&asked[at].1).unwrap();
        assert_eq!((preempt(0).flags, preempt(0).grace, preempt(0).timeout_ms), (1, 5, 700));
        assert_eq!((preempt(1).flags, preempt(1).grace, preempt(1).count), (0, 0, 3));
        let resume = ResumeQueue::read_from_bytes(&asked[2].1).unwrap();
        assert_eq!((asked[2].0, resume.flags, resume.entry_size), (RESUME_QUEUE, 1, 24));
        let set = SetPreemptPriority::read_from_bytes(&asked[3].1).unwrap();
        assert_eq!((set.pid, set.queue_id, set.serial), (7, 1, 1 << 40));
        assert_eq!((set.priority, set.flags), (12, 0));
    }
}
