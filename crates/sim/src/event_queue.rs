//! The event queue of the simulation. Events at the same instant are handled in the order in which
//! they were added, so a run is the same every time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use crate::process_memory::ProcessId;

/// A future event. An `epoch` distinguishes valid events from those that were superseded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SimEvent {
    /// A wave has served its busy time.
    WaveReady { queue: QueueId, group: u32, wave: u32, epoch: u64 },
    /// The command processor reads a ring.
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
    /// The slot of the longest mapped queue goes to a waiting one.
    SlotTurn { device: usize },
    /// The current call of a device's worker has reached the hardware.
    CallReaches { device: usize, epoch: u64 },
    /// A step of a checkpoint has taken its time.
    StepReaches { process: ProcessId, epoch: u64 },
    /// It may be time to move the memory of a process.
    MemoryDue,
    /// Killed launches were submitted again.
    Resubmitted { queue: QueueId, epoch: u64 },
    /// The hold watcher reads the rings.
    HoldPoll { device: usize, epoch: u64 },
    /// A hold is placed or released in hardware.
    HoldSeen { queue: QueueId, placed: bool },
    /// A process starts.
    TaskStart { task: usize },
    /// A request arrives at a process.
    Arrive { task: usize },
    /// A process announces its next request.
    Announce { task: usize },
    /// A process has done the CPU part of a request.
    CpuDone { task: usize, request: u64 },
    /// The scheduler learns of a process's end.
    EndNoticed { task: usize },
    /// A process gets another priority.
    PriorityChange { task: usize, change: usize },
    /// A fault of the scenario begins.
    FaultBegins { fault: usize },
    /// The scheduler's loop runs.
    SchedulerStep { epoch: u64 },
    /// A scheduler starts.
    SchedulerStart,
    /// The keeper reverts a dead scheduler's changes.
    KeeperRuns,
}

/// Events in order of time.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    now: Instant,
    made: u64,
    heap: BinaryHeap<Reverse<(Instant, u64, SimEvent)>>,
}

impl EventQueue {
    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn after(&mut self, after: Duration, event: SimEvent) {
        self.at(self.now + after, event);
    }

    /// Adds an event at a time that is not in the past.
    pub(crate) fn at(&mut self, at: Instant, event: SimEvent) {
        assert!(at >= self.now, "{event:?} would be in the past");
        self.made += 1;
        self.heap.push(Reverse((at, self.made, event)));
    }

    /// Removes the next event and sets the time to it.
    pub(crate) fn pop(&mut self) -> Option<SimEvent> {
        let Reverse((at, _, event)) = self.heap.pop()?;
        self.now = at;
        Some(event)
    }

    /// Advances the time to `to`, or to the next event if that is earlier.
    pub(crate) fn pass_to(&mut self, to: Instant) {
        let to = self.next_at().map_or(to, |at| at.min(to));
        self.now = self.now.max(to);
    }

    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&SimEvent) -> bool) {
        self.heap.retain(|Reverse((_, _, event))| keeps(event));
    }

    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_then_of_insertion() {
        let mut event_queue = EventQueue::default();
        let at = Instant::from_nanos;
        event_queue.at(at(5), SimEvent::Arrive { task: 1 });
        event_queue.at(at(5), SimEvent::Arrive { task: 0 });
        event_queue.at(at(3), SimEvent::SchedulerStart);
        assert_eq!(event_queue.pop(), Some(SimEvent::SchedulerStart));
        assert_eq!(event_queue.now(), at(3));
        assert_eq!(event_queue.pop(), Some(SimEvent::Arrive { task: 1 }));
        assert_eq!(event_queue.pop(), Some(SimEvent::Arrive { task: 0 }));
        assert_eq!(event_queue.pop(), None);
    }
}
