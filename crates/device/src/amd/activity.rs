//! What a ring shows, read in its process's own memory.
//!
//! The addresses come from a snapshot or from debugfs. They lie in memory of the process or, on
//! newer devices, in memory of the driver that only `/proc/PID/mem` can read.
//!
//! The process counts a packet before it is complete, and the device when it has fetched it, not
//! when it is done: equal counts do not mean idle. Queues for copies and those without HSA's
//! packets count bytes or words instead of packets.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use gpreempt_core::ring::RingView;

use super::abi::trap::QueueEntry;

/// The memory of a process.
#[derive(Debug)]
pub struct Memory {
    file: File,
}

impl Memory {
    /// Of that process, as it is now: a number that is given to another process later does not
    /// lead there.
    ///
    /// # Errors
    /// If there is none, or we may not read it (the rules are those of tracing).
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/mem"))? })
    }

    /// What the ring of a queue shows. None if it could not be read: an unread ring is not an empty
    /// one.
    pub fn observe(&self, queue: &QueueEntry) -> Option<RingView> {
        // In this order what is fetched cannot seem more than what was put in.
        let get = self.load(queue.read_pointer)?;
        let put = self.load(queue.write_pointer)?;
        Some(RingView { put, get, running: None })
    }

    fn load(&self, address: u64) -> Option<u64> {
        if address == 0 {
            return None;
        }
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
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
