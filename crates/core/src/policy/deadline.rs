//! Earliest deadline first.
//!
//! Deadlines closer together than a switch costs are equal: preempting for less cannot pay.
//! Equals share the device.
//! Tasks without a deadline come after all that have one and take turns by priority.

use core::cmp::Reverse;

use super::round_robin::RoundRobin;
use super::{Policy, Rank, Seat};
use crate::priority::Priority;

/// The earliest deadline runs.
#[derive(Debug)]
pub(super) struct Deadline;

impl Policy for Deadline {
    fn rank(&self, seat: &Seat) -> Rank {
        match seat.deadline {
            Some(deadline) => {
                let grain = seat.switch_cost.as_nanos().max(1);
                let order = Reverse(deadline.as_nanos() / grain);
                Rank { boosted: false, level: Priority::LEVELS, order }
            }
            None => RoundRobin.rank(seat),
        }
    }

    fn takes_turns(&self, rank: &Rank) -> bool {
        rank.level < Priority::LEVELS
    }
}

#[cfg(test)]
mod tests {
    use super::super::seat;
    use super::*;
    use crate::time::Instant;

    #[test]
    fn earlier_deadlines_first_and_no_deadline_last() {
        let at = |us: u64| Seat { deadline: Some(Instant::from_nanos(us * 1000)), ..seat(0) };
        assert!(Deadline.rank(&at(100)) > Deadline.rank(&at(200)));
        assert_eq!(Deadline.rank(&at(101)), Deadline.rank(&at(105)));
        assert!(Deadline.rank(&at(5_000_000)) > Deadline.rank(&seat(15)));
    }
}
