//! What a ring shows, read in its process's own memory.
//!
//! The addresses come from a snapshot or from debugfs. They lie in memory of the process or, on
//! newer devices, in memory of the driver that only `/proc/PID/mem` can read.
//!
//! The process counts a packet before it is complete, and the device when it has fetched it, not
//! when it is done: equal counts do not mean idle. Queues for copies and those without HSA's
//! packets count bytes or words instead of packets.
//!
//! Where the last packet has a signal that is still to come, its kernel still runs. The opposite is
//! not certain (others may have been started before it without an end of their own), and most
//! packets have none: so that a queue is done is never claimed here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use gpreempt_core::ring::RingView;

use super::abi::block::QueueType;
use super::abi::trap::QueueEntry;

/// Bytes of a packet of HSA's.
const PACKET: u64 = 64;
/// Where in a packet its signal is.
const SIGNAL: u64 = 56;
/// Where in a signal its value is: 0 or less when what it stands for is done.
const VALUE: u64 = 8;

/// The memory of a process.
#[derive(Debug)]
pub struct Memory {
    file: File,
    #[cfg(test)]
    pid: u32,
}

impl Memory {
    /// Of that process, as it is now: a number that is given to another process later does not
    /// lead there.
    ///
    /// # Errors
    /// If there is none, or we may not read it (the rules are those of tracing).
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            file: File::open(format!("/proc/{pid}/mem"))?,
            #[cfg(test)]
            pid,
        })
    }

    /// What the ring of a queue shows. None if it could not be read: an unread ring is not an empty
    /// one.
    pub fn observe(&self, queue: &QueueEntry) -> Option<RingView> {
        // In this order what is fetched cannot seem more than what was put in.
        let get = self.load(queue.read_pointer)?;
        let put = self.load(queue.write_pointer)?;
        let running = (put == get).then(|| self.runs_on(queue, get)).flatten();
        Some(RingView { put, get, running })
    }

    /// Several rings as one. None if one of them could not be read.
    pub fn observe_all(&self, queues: &[QueueEntry]) -> Option<RingView> {
        let mut sum = RingView::default();
        for queue in queues {
            let view = self.observe(queue)?;
            sum.put = sum.put.wrapping_add(view.put);
            sum.get = sum.get.wrapping_add(view.get);
            sum.running = sum.running.or(view.running);
        }
        Some(sum)
    }

    /// True if the last packet that was fetched has a signal that is still to come.
    fn runs_on(&self, queue: &QueueEntry, get: u64) -> Option<bool> {
        let packets = u64::from(queue.ring_size) / PACKET;
        if queue.queue_type != QueueType::ComputeAql as u32 || packets == 0 {
            return None;
        }
        let place = get.checked_sub(1)? % packets * PACKET;
        let signal = self.load(queue.ring_base.checked_add(place + SIGNAL)?)?;
        let value = self.load(signal.checked_add(VALUE).filter(|_| signal != 0)?)?;
        (value.cast_signed() > 0).then_some(true)
    }

    pub(super) fn load(&self, address: u64) -> Option<u64> {
        if address == 0 {
            return None;
        }
        #[cfg(test)]
        slow::pass(self.pid);
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// Processes whose memory does not answer, as if it lay in a file system of their own.
#[cfg(test)]
pub(crate) mod slow {
    use std::collections::BTreeSet;
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::Duration;

    static SLOW: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    static CHANGED: Condvar = Condvar::new();
    /// A test that waits for it fails then, instead of never ending.
    const LIMIT: Duration = Duration::from_secs(60);

    /// From now on, or no longer.
    pub(crate) fn set(pid: u32, is_slow: bool) {
        let mut slow = SLOW.lock().unwrap_or_else(PoisonError::into_inner);
        if is_slow {
            slow.insert(pid);
        } else {
            slow.remove(&pid);
        }
        CHANGED.notify_all();
    }

    pub(super) fn pass(pid: u32) {
        let slow = SLOW.lock().unwrap_or_else(PoisonError::into_inner);
        drop(CHANGED.wait_timeout_while(slow, LIMIT, |slow| slow.contains(&pid)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_read_where_they_are() {
        let indices = Box::new([5_u64, 3]);
        let address = |index: usize| std::ptr::from_ref(&indices[index]).addr() as u64;
        let queue = QueueEntry {
            write_pointer: address(0),
            read_pointer: address(1),
            ..QueueEntry::default()
        };
        let memory = Memory::open(std::process::id()).unwrap();
        let view = memory.observe(&queue).unwrap();
        assert_eq!((view.put, view.get, view.running), (5, 3, None));
        assert!(view.has_work());
    }

    #[test]
    fn a_signal_that_is_still_to_come_shows_that_something_runs() {
        let mut signal = Box::new([1_u64, 1]);
        let mut ring = Box::new([0_u64; 16]);
        let index = Box::new(4_u64);
        let address = |place: &u64| std::ptr::from_ref(place).addr() as u64;
        // The second packet of two: four were fetched.
        ring[15] = address(&signal[0]);
        let queue = QueueEntry {
            write_pointer: address(&index),
            read_pointer: address(&index),
            ring_base: address(&ring[0]),
            ring_size: 128,
            queue_type: QueueType::ComputeAql as u32,
            ..QueueEntry::default()
        };
        let memory = Memory::open(std::process::id()).unwrap();
        let running = |queue: &QueueEntry| memory.observe(queue).unwrap().running;
        assert_eq!(running(&queue), Some(true));
        signal[1] = 0;
        std::hint::black_box(&signal);
        assert_eq!(running(&queue), None, "others may run still");
        signal[1] = u64::MAX;
        std::hint::black_box(&signal);
        assert_eq!(running(&queue), None);
        assert_eq!(running(&QueueEntry { ring_base: 8, ..queue }), None, "it is not there");
        assert_eq!(running(&QueueEntry { queue_type: 0, ..queue }), None, "not HSA's packets");
        let sum = memory.observe_all(&[queue, queue]).unwrap();
        assert_eq!((sum.put, sum.get, sum.running), (8, 8, None));
    }

    #[test]
    fn equal_counts_are_not_idle_and_no_counts_are_not_equal() {
        let index = Box::new(7_u64);
        let address = std::ptr::from_ref(&*index).addr() as u64;
        let queue =
            QueueEntry { write_pointer: address, read_pointer: address, ..QueueEntry::default() };
        let memory = Memory::open(std::process::id()).unwrap();
        let view = memory.observe(&queue).unwrap();
        assert!(!view.has_work() && !view.is_done());
        assert_eq!(memory.observe(&QueueEntry::default()), None);
        // Below what anybody can map, and beyond what there is.
        for nowhere in [8, u64::MAX - 3, 1 << 63] {
            assert_eq!(memory.observe(&QueueEntry { read_pointer: nowhere, ..queue }), None);
        }
        assert!(Memory::open(u32::MAX).is_err());
    }
}
