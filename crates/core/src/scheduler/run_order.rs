//! The run order: the queues of one class on one device, sorted by rank.
//!
//! A device that is controlled by preempting has one run order. A device with time slices has two,
//! one for each class: the hardware itself prefers the high class, so that the classes are ordered
//! separately. In a run order the highest rank runs and every queue below it is off.

use alloc::collections::BTreeSet;
use core::cmp::Reverse;
use core::ops::Bound;

use crate::id::{QueueId, TaskId};
use crate::policy::Rank;
use crate::time::Instant;

/// What takes turns: a task, or on a device with slices one queue of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntityKey {
    pub(crate) task: TaskId,
    pub(crate) queue: Option<QueueId>,
}

/// The sort key of a queue in a run order. The greatest runs first; among equals the oldest queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub(crate) rank: Rank,
    pub(crate) entity: Reverse<EntityKey>,
    pub(crate) queue: Reverse<QueueId>,
}

impl RunKey {
    /// Whether `self` must be off while `top` has work. Where only one entity may run, equal ranks
    /// do not run together.
    pub(crate) fn ranks_below(&self, top: &Self, exclusive: bool) -> bool {
        if exclusive {
            (self.rank, self.entity) < (top.rank, top.entity)
        } else {
            self.rank < top.rank
        }
    }
}

/// The set of the run order that a queue is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RunSet {
    /// In none: it has no work, a preempt is in flight, or it waits for a retry.
    #[default]
    Out,
    /// On, with work.
    On(RunKey),
    /// Off, with work.
    Off(RunKey),
    /// Being resumed, with work.
    Resuming(RunKey),
    /// On, and to be preempted at any rank, because its gang cannot run.
    GangBlocked,
    /// On, and to be preempted at any rank, because it is suspended. It belongs to that task.
    Suspended(TaskId),
    /// The result of its preempt is unknown, so it is resumed first, at any rank.
    MustResume,
    /// On with an empty ring, which does not prove that it is idle, where only one may run.
    UnprovenIdle,
    /// On with an empty ring, but a fetched kernel may still run: preempted like queues with work,
    /// but no other queue is off because of it.
    PossiblyRunning(RunKey),
    /// Off, without work: to be resumed. It belongs to that task.
    OffIdle(TaskId),
}

/// The queues of one class on one device, and whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct RunOrder {
    on: BTreeSet<RunKey>,
    off: BTreeSet<RunKey>,
    resuming: BTreeSet<RunKey>,
    gang_blocked: BTreeSet<QueueId>,
    suspended: BTreeSet<(TaskId, QueueId)>,
    must_resume: BTreeSet<QueueId>,
    unproven_idle: BTreeSet<QueueId>,
    possibly_running: BTreeSet<RunKey>,
    off_idle: BTreeSet<(TaskId, QueueId)>,
    /// Preempts in flight whose end is awaited.
    pub(crate) preempting: u32,
    /// The queue that is on and waits for these preempts, and since when.
    pub(crate) blocked: Option<(QueueId, Instant)>,
    /// The entities that have the turn: one, or several of one gang.
    pub(crate) holders: BTreeSet<EntityKey>,
    /// The virtual time of the last holder of each class: where new entities start.
    pub(crate) virtual_now: [u64; 2],
    /// Whether only one entity may be on at a time.
    pub(crate) exclusive: bool,
    /// Since when there has been work without a break.
    pub(crate) busy_since: Option<Instant>,
}

impl RunOrder {
    pub(crate) fn insert(&mut self, queue: QueueId, run_set: RunSet) {
        assert!(self.change(queue, run_set, true), "{queue} is in the run order already");
    }

    pub(crate) fn remove(&mut self, queue: QueueId, run_set: RunSet) {
        assert!(self.change(queue, run_set, false), "{queue} is not in the set {run_set:?}");
    }

    /// Adds a queue to a set or removes it. Returns whether that changed the set.
    fn change(&mut self, queue: QueueId, run_set: RunSet, add: bool) -> bool {
        fn apply<T: Ord>(set: &mut BTreeSet<T>, item: T, add: bool) -> bool {
            if add { set.insert(item) } else { set.remove(&item) }
        }
        match run_set {
            RunSet::Out => true,
            RunSet::On(key) => apply(&mut self.on, key, add),
            RunSet::Off(key) => apply(&mut self.off, key, add),
            RunSet::Resuming(key) => apply(&mut self.resuming, key, add),
            RunSet::GangBlocked => apply(&mut self.gang_blocked, queue, add),
            RunSet::Suspended(task) => apply(&mut self.suspended, (task, queue), add),
            RunSet::MustResume => apply(&mut self.must_resume, queue, add),
            RunSet::UnprovenIdle => apply(&mut self.unproven_idle, queue, add),
            RunSet::PossiblyRunning(key) => apply(&mut self.possibly_running, key, add),
            RunSet::OffIdle(task) => apply(&mut self.off_idle, (task, queue), add),
        }
    }

    /// The highest queue with work.
    pub(crate) fn top(&self) -> Option<RunKey> {
        let tops = [self.on.last(), self.off.last(), self.resuming.last()];
        tops.into_iter().flatten().max().copied()
    }

    /// The highest queue with work that `wanted` accepts.
    pub(crate) fn first_where(&self, wanted: impl Fn(&RunKey) -> bool) -> Option<RunKey> {
        let sets = [&self.on, &self.off, &self.resuming];
        let firsts = sets.map(|set| set.iter().rev().find(|key| wanted(key)));
        firsts.into_iter().flatten().max().copied()
    }

    pub(crate) fn gang_blocked(&self) -> Option<QueueId> {
        self.gang_blocked.first().copied()
    }

    /// A suspended queue that is on, of the next task after `last`, so that each has its turn.
    pub(crate) fn suspended(&self, last: Option<TaskId>) -> Option<(TaskId, QueueId)> {
        first_after(&self.suspended, last)
    }

    pub(crate) fn must_resume(&self) -> Option<QueueId> {
        self.must_resume.first().copied()
    }

    /// The same for a queue that is off without work.
    pub(crate) fn off_idle(&self, last: Option<TaskId>) -> Option<(TaskId, QueueId)> {
        first_after(&self.off_idle, last)
    }

    /// A queue that is not proven idle while another one has work and only one may run.
    pub(crate) fn unproven_idle_blocker(&self) -> Option<QueueId> {
        self.unproven_idle.first().copied().filter(|_| self.exclusive && self.is_busy())
    }

    pub(crate) fn lowest_on(&self) -> Option<RunKey> {
        self.on.first().copied()
    }

    pub(crate) fn highest_off(&self) -> Option<RunKey> {
        self.off.last().copied()
    }

    /// The lowest queue that is on, or possibly running, and must be off while the highest one has
    /// work; and that highest one.
    pub(crate) fn next_to_preempt(&self) -> Option<(RunKey, RunKey)> {
        let top = self.top()?;
        let low = self.on.first().filter(|low| low.ranks_below(&top, self.exclusive));
        // Among equals that take turns a switch to find out does not pay.
        let coarse = |key: &RunKey| (key.rank.boosted, key.rank.level);
        let possibly_running =
            || self.possibly_running.first().filter(|low| coarse(low) < coarse(&top));
        low.or_else(possibly_running).map(|low| (*low, top))
    }

    /// The highest queue that is off, if it may be resumed now.
    pub(crate) fn next_to_resume(&self) -> Option<RunKey> {
        if self.preempting > 0
            || self.next_to_preempt().is_some()
            || self.unproven_idle_blocker().is_some()
        {
            return None;
        }
        let top = self.top()?;
        let back = self.off.last()?;
        (!back.ranks_below(&top, self.exclusive)).then_some(*back)
    }

    /// Whether any queue in the order has work.
    pub(crate) fn is_busy(&self) -> bool {
        !(self.on.is_empty() && self.off.is_empty() && self.resuming.is_empty())
    }

    pub(crate) fn len(&self) -> usize {
        let ranked = self.on.len() + self.off.len() + self.resuming.len();
        let must_preempt = self.gang_blocked.len() + self.suspended.len();
        let unranked = must_preempt + self.must_resume.len() + self.off_idle.len();
        ranked + unranked + self.unproven_idle.len() + self.possibly_running.len()
    }
}

/// The first queue of the next task after `last`; after the last task comes the first one.
fn first_after(
    set: &BTreeSet<(TaskId, QueueId)>,
    last: Option<TaskId>,
) -> Option<(TaskId, QueueId)> {
    let after = last.map_or(Bound::Unbounded, |last| Bound::Excluded((last, QueueId(u64::MAX))));
    let next = set.range((after, Bound::Unbounded)).next();
    next.or_else(|| set.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(level: u8, number: u64) -> RunKey {
        RunKey {
            rank: Rank { boosted: false, level, order: Reverse(0) },
            entity: Reverse(EntityKey { task: TaskId(number), queue: None }),
            queue: Reverse(QueueId(number)),
        }
    }

    #[test]
    fn the_lower_of_two_queues_is_preempted_and_resumed_when_the_higher_is_gone() {
        let mut order = RunOrder::default();
        let [low, high] = [key(1, 1), key(9, 2)];
        order.insert(QueueId(1), RunSet::On(low));
        assert_eq!(order.next_to_preempt(), None);
        order.insert(QueueId(2), RunSet::On(high));
        assert_eq!(order.next_to_preempt(), Some((low, high)));
        order.remove(QueueId(1), RunSet::On(low));
        order.insert(QueueId(1), RunSet::Off(low));
        assert_eq!(order.next_to_preempt(), None);
        assert_eq!(order.next_to_resume(), None);
        order.remove(QueueId(2), RunSet::On(high));
        assert_eq!(order.next_to_resume(), Some(low));
    }

    #[test]
    fn a_possibly_running_queue_is_preempted_for_a_higher_level_only() {
        let mut order = RunOrder::default();
        let [low, equal, high] = [key(1, 1), key(1, 2), key(9, 3)];
        order.insert(QueueId(1), RunSet::PossiblyRunning(low));
        assert_eq!((order.top(), order.next_to_preempt(), order.is_busy()), (None, None, false));
        order.insert(QueueId(2), RunSet::On(equal));
        assert_eq!((order.next_to_preempt(), order.len()), (None, 2));
        order.insert(QueueId(3), RunSet::On(high));
        order.remove(QueueId(2), RunSet::On(equal));
        assert_eq!(order.next_to_preempt(), Some((low, high)));
    }

    #[test]
    fn equal_queues_share_unless_the_order_is_exclusive() {
        let mut order = RunOrder::default();
        let [first, second] = [key(1, 1), key(1, 2)];
        order.insert(QueueId(1), RunSet::On(first));
        order.insert(QueueId(2), RunSet::On(second));
        assert_eq!(order.next_to_preempt(), None);
        order.exclusive = true;
        assert_eq!(order.next_to_preempt(), Some((second, first)));
    }

    #[test]
    fn an_unproven_idle_queue_is_preempted_before_another_is_resumed() {
        let mut order = RunOrder { exclusive: true, ..RunOrder::default() };
        order.insert(QueueId(1), RunSet::UnprovenIdle);
        assert_eq!(order.unproven_idle_blocker(), None, "no other queue has work");
        order.insert(QueueId(2), RunSet::Off(key(1, 2)));
        assert_eq!(
            (order.unproven_idle_blocker(), order.next_to_resume()),
            (Some(QueueId(1)), None)
        );
        order.remove(QueueId(1), RunSet::UnprovenIdle);
        assert_eq!(
            (order.unproven_idle_blocker(), order.next_to_resume()),
            (None, Some(key(1, 2)))
        );
    }

    #[test]
    fn tasks_have_their_queues_suspended_and_resumed_in_turn() {
        let mut order = RunOrder::default();
        let owned = |queue: u64| TaskId(queue / 10);
        for queue in [11, 12, 13, 21, 31] {
            order.insert(QueueId(queue), RunSet::OffIdle(owned(queue)));
            order.insert(QueueId(queue), RunSet::Suspended(owned(queue)));
        }
        for (last, next) in [(None, 11), (Some(1), 21), (Some(2), 31), (Some(3), 11)] {
            let next = Some((owned(next), QueueId(next)));
            assert_eq!(order.off_idle(last.map(TaskId)), next);
            assert_eq!(order.suspended(last.map(TaskId)), next);
        }
    }

    #[test]
    fn no_queue_is_resumed_while_a_preempt_is_in_flight() {
        let mut order = RunOrder { preempting: 1, ..RunOrder::default() };
        order.insert(QueueId(1), RunSet::Off(key(1, 1)));
        assert_eq!(order.next_to_resume(), None);
        order.preempting = 0;
        assert_eq!(order.next_to_resume(), Some(key(1, 1)));
    }
}
