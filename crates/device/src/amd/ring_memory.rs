//! Reads the ring indices of a queue from the memory of its process.
//!
//! The addresses come from a snapshot or from debugfs. They lie in memory of the process or, on
//! newer devices, in memory of the driver that only `/proc/PID/mem` can read.
//!
//! The process advances its index before a packet is complete, and the device advances its index
//! when it has fetched a packet, not when the kernel has finished: equal indices do not mean idle.
//! Copy queues and queues without AQL packets count bytes or words.
//!
//! If the last fetched packet has a completion signal that is not set, its kernel still runs. The
//! reverse does not hold: earlier packets may still run, and most packets have no signal. So this
//! module never reports that a queue has finished.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use gpreempt_core::ring::RingView;

use super::abi::block::QueueType;
use super::abi::trap::QueueEntry;

/// Bytes of an AQL packet.
const PACKET: u64 = 64;
/// The offset of the completion signal in a packet.
const SIGNAL: u64 = 56;
/// The offset of the value in a signal. A value of 0 or less means complete.
const VALUE: u64 = 8;

#[derive(Debug)]
pub struct ProcessMemory {
    file: File,
    #[cfg(test)]
    pid: u32,
}

impl ProcessMemory {
    /// Opens the memory of the process that has this pid now. If the pid is reused later, the file
    /// does not refer to the new process.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            file: File::open(format!("/proc/{pid}/mem"))?,
            #[cfg(test)]
            pid,
        })
    }

    /// The indices of a ring. None if they cannot be read: an unreadable ring is not an empty one.
    pub fn observe(&self, queue: &QueueEntry) -> Option<RingView> {
        // In this order the fetched count cannot exceed the submitted count.
        let get = self.load(queue.read_pointer)?;
        let put = self.load(queue.write_pointer)?;
        let running = (put == get).then(|| self.runs_on(queue, get)).flatten();
        Some(RingView { put, get, running })
    }

    /// The sums of several rings. None if one of them cannot be read.
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

    /// True if the last fetched packet has a completion signal that is not set.
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

/// Processes whose memory does not respond, as if it were in a file system of their own.
#[cfg(test)]
pub(crate) mod slow {
    use std::collections::BTreeSet;
    use std::sync::{Condvar, Mutex, PoisonError};
    use std::time::Duration;

    static SLOW: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    static CHANGED: Condvar = Condvar::new();
    /// A test that waits longer fails instead of hanging.
    const LIMIT: Duration = Duration::from_secs(60);

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
    fn indices_are_read_from_their_addresses() {
        let indices = Box::new([5_u64, 3]);
        let address = |index: usize| std::ptr::from_ref(&indices[index]).addr() as u64;
        let queue = QueueEntry {
            write_pointer: address(0),
            read_pointer: address(1),
            ..QueueEntry::default()
        };
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let view = memory.observe(&queue).unwrap();
        assert_eq!((view.put, view.get, view.running), (5, 3, None));
        assert!(view.has_work());
    }

    #[test]
    fn an_unset_signal_shows_a_running_kernel() {
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
        let memory = ProcessMemory::open(std::process::id()).unwrap();
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
    fn equal_indices_are_not_idle_and_unreadable_ones_are_none() {
        let index = Box::new(7_u64);
        let address = std::ptr::from_ref(&*index).addr() as u64;
        let queue =
            QueueEntry { write_pointer: address, read_pointer: address, ..QueueEntry::default() };
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let view = memory.observe(&queue).unwrap();
        assert!(!view.has_work() && !view.is_done());
        assert_eq!(memory.observe(&QueueEntry::default()), None);
        // Addresses that cannot be mapped, and beyond the address space.
        for nowhere in [8, u64::MAX - 3, 1 << 63] {
            assert_eq!(memory.observe(&QueueEntry { read_pointer: nowhere, ..queue }), None);
        }
        assert!(ProcessMemory::open(u32::MAX).is_err());
    }
}
