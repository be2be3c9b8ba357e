//! The queues of processes, from everywhere the kernel tells of them.
//!
//! A session's snapshot has everything but the priority, and needs a session. sysfs has names and
//! devices for everybody. debugfs has the rest for root, but no names: a queue is found there by
//! its ring.

mod listing;
mod mqd;
mod sysfs;

use super::abi::block::QueueType;
use super::abi::trap::QueueEntry;
pub use listing::{Line, listing};
pub use mqd::{Dump, Hardware, MqdProcess, MqdQueue};
pub use sysfs::{ListedQueue, queues_of, users};

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Kernels.
    Compute,
    /// Copies.
    Copy,
    /// Something else, by its number.
    Other(u32),
}

impl Kind {
    /// As snapshots count.
    pub const fn of_snapshot(number: u32) -> Self {
        const COMPUTE: u32 = QueueType::Compute as u32;
        const COMPUTE_AQL: u32 = QueueType::ComputeAql as u32;
        const SDMA: u32 = QueueType::Sdma as u32;
        const SDMA_XGMI: u32 = QueueType::SdmaXgmi as u32;
        match number {
            COMPUTE | COMPUTE_AQL => Self::Compute,
            SDMA | SDMA_XGMI | 4 => Self::Copy,
            number => Self::Other(number),
        }
    }

    /// As sysfs counts, where 2 is a queue of the kernel's own. Behind that kernels differ in how
    /// they number queues for copies.
    pub const fn of_sysfs(number: u32) -> Self {
        match number {
            0 => Self::Compute,
            1 | 3..=5 => Self::Copy,
            number => Self::Other(number),
        }
    }
}

/// What the hardware has for a queue of a process, if the dump shows it.
pub fn hardware_of(dump: &Dump, pid: u32, queue: &QueueEntry) -> Option<Hardware> {
    let queues = dump.processes.iter().filter(|process| process.pid == pid);
    let mut queues = queues.flat_map(|process| &process.queues);
    queues.find_map(|found| {
        let hardware = found.hardware()?;
        (found.gpu_id == queue.gpu_id && hardware.ring_base == queue.ring_base).then_some(hardware)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ways_of_counting_are_kept_apart() {
        assert_eq!(Kind::of_snapshot(2), Kind::Compute);
        assert_eq!(Kind::of_sysfs(2), Kind::Other(2));
        assert_eq!(Kind::of_snapshot(3), Kind::Copy);
        assert_eq!(Kind::of_sysfs(4), Kind::Copy);
        assert_eq!(Kind::of_snapshot(9), Kind::Other(9));
    }
}
