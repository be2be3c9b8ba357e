//! What happens next: virtual time as a list of appointments.
//!
//! Appointments at the same instant are kept in the order they were made, so a run is the same
//! every time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

/// Something that will happen. An `epoch` tells an appointment that still holds from one that was
/// overtaken by events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    /// A wave has served its busy time.
    WaveReady { queue: QueueId, group: u32, wave: u32, epoch: u64 },
    /// The device looks into a ring.
    Fetch { queue: QueueId },
    /// A client learns that a launch is complete.
    Seen { queue: QueueId, number: u64 },
    /// A context was saved.
    Saved { queue: QueueId, epoch: u64 },
    /// A context was restored.
    Restored { queue: QueueId, epoch: u64 },
    /// A runlist switched from one group to the next.
    Switched { device: usize, epoch: u64 },
    /// A group's slice is over.
    SliceOver { device: usize, epoch: u64 },
    /// Queues without a slot have waited long enough.
    SlotTurn { device: usize },
    /// The call a device's worker is in has reached the hardware.
    CallReaches { device: usize, epoch: u64 },
    /// Killed launches were submitted again.
    Resubmitted { queue: QueueId, epoch: u64 },
    /// The hold watcher looks at the rings.
    HoldPoll { device: usize, epoch: u64 },
    /// The hardware sees a hold placed or released.
    HoldSeen { queue: QueueId, placed: bool },
    /// A process starts.
    TaskStart { task: usize },
    /// A request arrives at a process.
    Arrive { task: usize },
    /// A process announces its next request.
    Announce { task: usize },
    /// A process has done the part of a request that runs on its own processor.
    CpuDone { task: usize, request: u64 },
    /// The scheduler is told of a process's end.
    EndNoticed { task: usize },
    /// Somebody gives a process another priority.
    PriorityChange { task: usize, change: usize },
    /// Something goes wrong.
    FaultBegins { fault: usize },
    /// The scheduler's loop runs.
    SchedulerStep { epoch: u64 },
    /// A scheduler starts.
    SchedulerStart,
    /// The keeper undoes what a dead scheduler left.
    KeeperActs,
}

/// Appointments in order of time.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    now: Instant,
    made: u64,
    heap: BinaryHeap<Reverse<(Instant, u64, What)>>,
}

impl Agenda {
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    /// Something will happen `after` from now.
    pub(crate) fn after(&mut self, after: Duration, what: What) {
        self.at(self.now + after, what);
    }

    /// Something will happen at a time that is not in the past.
    pub(crate) fn at(&mut self, at: Instant, what: What) {
        assert!(at >= self.now, "{what:?} would be in the past");
        self.made += 1;
        self.heap.push(Reverse((at, self.made, what)));
    }

    /// The next thing, and the clock with it.
    pub(crate) fn pop(&mut self) -> Option<What> {
        let Reverse((at, _, what)) = self.heap.pop()?;
        self.now = at;
        Some(what)
    }

    /// Lets time pass until then, or until the next thing happens if that is sooner.
    pub(crate) fn pass_to(&mut self, to: Instant) {
        let to = self.next_at().map_or(to, |at| at.min(to));
        self.now = self.now.max(to);
    }

    /// How many appointments there are.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Forgets appointments that nobody keeps.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&What) -> bool) {
        self.heap.retain(|Reverse((_, _, what))| keeps(what));
    }

    /// When the next thing happens.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_first_and_equals_in_the_order_they_were_made() {
        let mut agenda = Agenda::default();
        let at = Instant::from_nanos;
        agenda.at(at(5), What::Arrive { task: 1 });
        agenda.at(at(5), What::Arrive { task: 0 });
        agenda.at(at(3), What::SchedulerStart);
        assert_eq!(agenda.pop(), Some(What::SchedulerStart));
        assert_eq!(agenda.now(), at(3));
        assert_eq!(agenda.pop(), Some(What::Arrive { task: 1 }));
        assert_eq!(agenda.pop(), Some(What::Arrive { task: 0 }));
        assert_eq!(agenda.pop(), None);
    }
}
