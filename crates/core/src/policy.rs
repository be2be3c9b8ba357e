//! Who comes first.
//!
//! A policy is a pure function from what is known of a seat (a task's place on one device) to a
//! [`Rank`]. The scheduler does the rest: on every device the highest rank runs, equal ranks run
//! together, everybody below waits. A policy that wants equals to take turns says so, and the
//! scheduler gives each a slice. To add one: a file here (the two shortest are below), a variant of
//! [`crate::config::PolicyKind`], a line in [`of`].

pub(crate) mod deadline;
pub(crate) mod fair;

use core::cmp::Reverse;

use crate::config::PolicyKind;
use crate::priority::Priority;
use crate::time::{Duration, Instant};

/// A place in the order. Greater comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Above everybody, for a while, because it starved.
    pub boosted: bool,
    /// The coarse order: a priority, or whatever the policy has instead.
    pub level: u8,
    /// The fine order among equals: smaller comes first.
    pub order: Reverse<u64>,
}

/// What a policy may look at.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// The queue's priority.
    pub priority: Priority,
    /// The task's weight.
    pub weight: u32,
    /// When the task's current request should be done.
    pub deadline: Option<Instant>,
    /// Weighted device time so far.
    pub virtual_time: u64,
    /// When it last gave up its turn, as a number that only grows; at least 1.
    pub turn: u64,
    /// Whether it has the turn now.
    pub holds: bool,
    /// What a switch costs on this device: ranks need not be finer than that.
    pub switch_cost: Duration,
}

/// One way to decide.
pub trait Policy: core::fmt::Debug + Sync {
    /// The place of a seat in the order.
    fn rank(&self, seat: &Seat) -> Rank;

    /// Whether seats of that rank take turns, instead of sharing the device as the hardware likes.
    fn takes_turns(&self, rank: &Rank) -> bool;
}

/// The policy of that kind. Where only one queue may be runnable at a time (`exclusive`), even
/// the strict policy has its equals take turns.
pub fn of(kind: PolicyKind, exclusive: bool) -> &'static dyn Policy {
    match kind {
        PolicyKind::Strict if exclusive => &RoundRobin,
        PolicyKind::Strict => &Strict,
        PolicyKind::RoundRobin => &RoundRobin,
        PolicyKind::Deadline => &deadline::Deadline,
        PolicyKind::Fair => &fair::Fair,
    }
}

/// The highest priority runs; equals share the device as the hardware likes.
#[derive(Debug)]
struct Strict;

impl Policy for Strict {
    fn rank(&self, seat: &Seat) -> Rank {
        Rank { boosted: false, level: seat.priority.level(), order: Reverse(0) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        false
    }
}

/// As strict, but equals take turns, each for a slice.
#[derive(Debug)]
struct RoundRobin;

impl Policy for RoundRobin {
    fn rank(&self, seat: &Seat) -> Rank {
        let order = if seat.holds { 0 } else { seat.turn };
        Rank { boosted: false, level: seat.priority.level(), order: Reverse(order) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        true
    }
}

#[cfg(test)]
pub(crate) fn seat(priority: u8) -> Seat {
    Seat {
        priority: Priority::new(priority).unwrap(),
        weight: 1,
        deadline: None,
        virtual_time: 0,
        turn: 1,
        holds: false,
        switch_cost: Duration::from_micros(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_priority_counts() {
        assert!(Strict.rank(&seat(9)) > Strict.rank(&seat(8)));
        let other = Seat { turn: 99, virtual_time: 7, ..seat(9) };
        assert_eq!(Strict.rank(&seat(9)), Strict.rank(&other));
    }

    #[test]
    fn the_holder_comes_first_then_who_waited_longest() {
        let holder = Seat { holds: true, turn: 9, ..seat(3) };
        let early = Seat { turn: 4, ..seat(3) };
        let late = Seat { turn: 5, ..seat(3) };
        assert!(RoundRobin.rank(&holder) > RoundRobin.rank(&early));
        assert!(RoundRobin.rank(&early) > RoundRobin.rank(&late));
        assert!(RoundRobin.rank(&seat(4)) > RoundRobin.rank(&holder));
    }
}
