//! One order of precedence on one device.
//!
//! A device that is controlled by stopping queues has one lane. A device with time slices has
//! two, one for each class: the hardware itself prefers the high class, so the lanes are decided
//! apart. In a lane, the highest rank runs and everybody below it is off.

use alloc::collections::BTreeSet;
use core::cmp::Reverse;

use crate::id::{QueueId, TaskId};
use crate::policy::Rank;
use crate::time::Instant;

/// Whose turn it is: a task, or where only one queue may run, one queue of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SeatKey {
    pub(crate) task: TaskId,
    pub(crate) queue: Option<QueueId>,
}

/// A queue's place in a lane. Greater comes first; among equals the older queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) rank: Rank,
    pub(crate) seat: Reverse<SeatKey>,
    pub(crate) queue: Reverse<QueueId>,
}

impl Place {
    /// Whether `self` has to make way for `top`. Where only one seat may run, a tie is not
    /// enough to run together.
    pub(crate) fn yields_to(&self, top: &Self, exclusive: bool) -> bool {
        if exclusive { (self.rank, self.seat) < (top.rank, top.seat) } else { self.rank < top.rank }
    }
}

/// Which set of a lane a queue is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Position {
    /// Not in the lane's order: it has no work, or it is between two places.
    #[default]
    Out,
    /// Runs, or may.
    On(Place),
    /// Off and wants to run.
    Off(Place),
    /// On its way back.
    Resuming(Place),
    /// Runs and must go whatever its rank, because its gang cannot run or its task is suspended.
    Evict,
    /// May be off although it should be on, and must be told to run whatever its rank.
    Restore,
    /// May run and looks idle, but nobody knows whether it is, where only one may run.
    Idle,
    /// May run and looks idle, but what it has fetched may run still: it has to make way like
    /// those that do run, and keeps nobody off.
    Unseen(Place),
    /// Off and done: it may as well be on.
    Parked,
}

/// The queues with work on one lane.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    on: BTreeSet<Place>,
    off: BTreeSet<Place>,
    resuming: BTreeSet<Place>,
    evict: BTreeSet<QueueId>,
    restore: BTreeSet<QueueId>,
    idle: BTreeSet<QueueId>,
    unseen: BTreeSet<Place>,
    parked: BTreeSet<QueueId>,
    /// Preempts in flight.
    pub(crate) preempting: u32,
    /// Whose turn it is: one seat, or several of one gang.
    pub(crate) holders: BTreeSet<SeatKey>,
    /// The virtual time of the last holder of each class: where newcomers start.
    pub(crate) virtual_now: [u64; 2],
    /// Whether only one seat may be on at a time.
    pub(crate) exclusive: bool,
    /// Since when there has been work without a break.
    pub(crate) busy_since: Option<Instant>,
}

impl Lane {
    pub(crate) fn insert(&mut self, queue: QueueId, position: Position) {
        let fresh = match position {
            Position::Out => true,
            Position::On(place) => self.on.insert(place),
            Position::Off(place) => self.off.insert(place),
            Position::Resuming(place) => self.resuming.insert(place),
            Position::Evict => self.evict.insert(queue),
            Position::Restore => self.restore.insert(queue),
            Position::Idle => self.idle.insert(queue),
            Position::Unseen(place) => self.unseen.insert(place),
            Position::Parked => self.parked.insert(queue),
        };
        assert!(fresh, "{queue} is in the lane already");
    }

    pub(crate) fn remove(&mut self, queue: QueueId, position: Position) {
        let known = match position {
            Position::Out => true,
            Position::On(place) => self.on.remove(&place),
            Position::Off(place) => self.off.remove(&place),
            Position::Resuming(place) => self.resuming.remove(&place),
            Position::Evict => self.evict.remove(&queue),
            Position::Restore => self.restore.remove(&queue),
            Position::Idle => self.idle.remove(&queue),
            Position::Unseen(place) => self.unseen.remove(&place),
            Position::Parked => self.parked.remove(&queue),
        };
        assert!(known, "{queue} is not where it should be in the lane");
    }

    /// The one that should run before all others.
    pub(crate) fn top(&self) -> Option<Place> {
        let tops = [self.on.last(), self.off.last(), self.resuming.last()];
        tops.into_iter().flatten().max().copied()
    }

    /// The first in the order of those that `wanted` accepts.
    pub(crate) fn first_where(&self, wanted: impl Fn(&Place) -> bool) -> Option<Place> {
        let sets = [&self.on, &self.off, &self.resuming];
        let firsts = sets.map(|set| set.iter().rev().find(|place| wanted(place)));
        firsts.into_iter().flatten().max().copied()
    }

    /// One that must go whatever its rank.
    pub(crate) fn evicted(&self) -> Option<QueueId> {
        self.evict.first().copied()
    }

    /// One of which nobody knows whether it runs.
    pub(crate) fn doubtful(&self) -> Option<QueueId> {
        self.restore.first().copied()
    }

    /// One that is off and has nothing to do.
    pub(crate) fn parked(&self) -> Option<QueueId> {
        self.parked.first().copied()
    }

    /// One that looks idle and may not be, where that would be in somebody's way.
    pub(crate) fn in_the_way(&self) -> Option<QueueId> {
        self.idle.first().copied().filter(|_| self.exclusive && self.is_busy())
    }

    /// The least important of those that run.
    pub(crate) fn lowest_on(&self) -> Option<Place> {
        self.on.first().copied()
    }

    /// The most important of those that are off.
    pub(crate) fn highest_off(&self) -> Option<Place> {
        self.off.last().copied()
    }

    /// The least important of those that run, or may run unseen, if it has to make way for the top.
    pub(crate) fn loser(&self) -> Option<(Place, Place)> {
        let top = self.top()?;
        let low = self.on.first().filter(|low| low.yields_to(&top, self.exclusive));
        // Among equals that take turns it is not worth a switch to find out.
        let coarse = |place: &Place| (place.rank.boosted, place.rank.level);
        let unseen = || self.unseen.first().filter(|low| coarse(low) < coarse(&top));
        low.or_else(unseen).map(|low| (*low, top))
    }

    /// The most important of those that are off, if it may come back.
    pub(crate) fn returner(&self) -> Option<Place> {
        if self.preempting > 0 || self.loser().is_some() || self.in_the_way().is_some() {
            return None;
        }
        let top = self.top()?;
        let back = self.off.last()?;
        (!back.yields_to(&top, self.exclusive)).then_some(*back)
    }

    /// Whether anybody in the order has work.
    pub(crate) fn is_busy(&self) -> bool {
        !(self.on.is_empty() && self.off.is_empty() && self.resuming.is_empty())
    }

    /// Everybody in the order, for checks.
    pub(crate) fn len(&self) -> usize {
        let placed = self.on.len() + self.off.len() + self.resuming.len();
        let told = self.evict.len() + self.restore.len() + self.parked.len();
        placed + told + self.idle.len() + self.unseen.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(level: u8, number: u64) -> Place {
        Place {
            rank: Rank { boosted: false, level, order: Reverse(0) },
            seat: Reverse(SeatKey { task: TaskId(number), queue: None }),
            queue: Reverse(QueueId(number)),
        }
    }

    #[test]
    fn a_mixed_lane_has_a_loser_until_it_is_gone() {
        let mut lane = Lane::default();
        let [low, high] = [place(1, 1), place(9, 2)];
        lane.insert(QueueId(1), Position::On(low));
        assert_eq!(lane.loser(), None);
        lane.insert(QueueId(2), Position::On(high));
        assert_eq!(lane.loser(), Some((low, high)));
        lane.remove(QueueId(1), Position::On(low));
        lane.insert(QueueId(1), Position::Off(low));
        assert_eq!(lane.loser(), None);
        assert_eq!(lane.returner(), None);
        lane.remove(QueueId(2), Position::On(high));
        assert_eq!(lane.returner(), Some(low));
    }

    #[test]
    fn whoever_may_run_unseen_makes_way_for_the_more_important_and_for_nobody_else() {
        let mut lane = Lane::default();
        let [low, equal, high] = [place(1, 1), place(1, 2), place(9, 3)];
        lane.insert(QueueId(1), Position::Unseen(low));
        assert_eq!((lane.top(), lane.loser(), lane.is_busy()), (None, None, false));
        lane.insert(QueueId(2), Position::On(equal));
        assert_eq!((lane.loser(), lane.len()), (None, 2));
        lane.insert(QueueId(3), Position::On(high));
        lane.remove(QueueId(2), Position::On(equal));
        assert_eq!(lane.loser(), Some((low, high)));
    }

    #[test]
    fn equals_share_unless_the_lane_is_exclusive() {
        let mut lane = Lane::default();
        let [first, second] = [place(1, 1), place(1, 2)];
        lane.insert(QueueId(1), Position::On(first));
        lane.insert(QueueId(2), Position::On(second));
        assert_eq!(lane.loser(), None);
        lane.exclusive = true;
        assert_eq!(lane.loser(), Some((second, first)));
    }

    #[test]
    fn whoever_may_still_run_has_to_go_before_another_comes_where_only_one_may() {
        let mut lane = Lane { exclusive: true, ..Lane::default() };
        lane.insert(QueueId(1), Position::Idle);
        assert_eq!(lane.in_the_way(), None, "nobody else wants to run");
        lane.insert(QueueId(2), Position::Off(place(1, 2)));
        assert_eq!((lane.in_the_way(), lane.returner()), (Some(QueueId(1)), None));
        lane.remove(QueueId(1), Position::Idle);
        assert_eq!((lane.in_the_way(), lane.returner()), (None, Some(place(1, 2))));
    }

    #[test]
    fn nobody_comes_back_while_somebody_is_still_leaving() {
        let mut lane = Lane { preempting: 1, ..Lane::default() };
        lane.insert(QueueId(1), Position::Off(place(1, 1)));
        assert_eq!(lane.returner(), None);
        lane.preempting = 0;
        assert_eq!(lane.returner(), Some(place(1, 1)));
    }
}
