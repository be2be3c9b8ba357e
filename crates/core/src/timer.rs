//! The scheduler's timers.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::id::{DeviceId, QueueId, TaskId};
use crate::priority::Class;
use crate::time::Instant;

/// Each kind of timer, named by what is true when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The queue's ring has been empty long enough: it counts as idle.
    Idle(QueueId),
    /// The queue's preempt should have finished by now.
    Overdue(QueueId),
    /// The queue's failed command may be tried again.
    Retry(QueueId),
    /// The task's hint has expired.
    HintOver(TaskId),
    /// The slice of the run order's holder is over.
    SliceOver(DeviceId, Class),
    /// A queue of the device may have starved.
    Starving(DeviceId),
    /// The boost on the device is over.
    BoostOver(DeviceId),
    /// The device may have another command in the background.
    Background(DeviceId),
    /// The command for a queue that has vanished should have finished by now.
    Vanished(DeviceId, QueueId),
}

/// The running timers, in order of their ends.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    ends: BTreeSet<(Instant, Timer)>,
    running: BTreeMap<Timer, Instant>,
}

impl Timers {
    /// Starts `timer`, or moves it, to end at `at`.
    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        if let Some(before) = self.running.insert(timer, at) {
            self.ends.remove(&(before, timer));
        }
        self.ends.insert((at, timer));
    }

    pub(crate) fn stop(&mut self, timer: Timer) {
        if let Some(before) = self.running.remove(&timer) {
            self.ends.remove(&(before, timer));
        }
    }

    /// When `timer` ends, if it runs.
    pub(crate) fn end_of(&self, timer: Timer) -> Option<Instant> {
        self.running.get(&timer).copied()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.ends.first().map(|&(at, _)| at)
    }

    /// Removes the earliest timer that has ended by `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let &(at, timer) = self.ends.first()?;
        if at > now {
            return None;
        }
        self.stop(timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_end_in_order_and_can_be_moved_and_stopped() {
        let mut timers = Timers::default();
        let [first, second] = [Timer::Idle(QueueId(1)), Timer::HintOver(TaskId(2))];
        timers.set(first, Instant::from_nanos(10));
        timers.set(second, Instant::from_nanos(20));
        timers.set(first, Instant::from_nanos(30));
        assert_eq!(timers.next(), Some(Instant::from_nanos(20)));
        assert_eq!(timers.pop(Instant::from_nanos(19)), None);
        assert_eq!(timers.pop(Instant::from_nanos(40)), Some(second));
        timers.stop(first);
        assert_eq!(timers.pop(Instant::from_nanos(40)), None);
        assert_eq!(timers.next(), None);
    }
}
