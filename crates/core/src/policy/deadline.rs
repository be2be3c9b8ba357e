//! Earliest deadline first, the high class before the low one.
//!
//! Anybody may ask for a deadline, but not anybody may be in the high class: so a deadline decides
//! within a class only. Deadlines closer together than a switch costs are equal: preempting for
//! less cannot pay. Equals share the device. Tasks without a deadline come after all of their class
//! that have one and take turns by priority.

use core::cmp::Reverse;

use super::RoundRobin;
use super::{Policy, Rank, Seat};
use crate::priority::{Class, Priority};

/// The earliest deadline runs.
#[derive(Debug)]
pub(super) struct Deadline;

/// Levels of a class: one for each priority, and one above them for all deadlines.
const BAND: u8 = Priority::LEVELS + 1;

/// Whether it is because of its deadline that `winner` comes before `loser`.
pub(crate) const fn decides(winner: &Rank, loser: &Rank) -> bool {
    winner.level % BAND == Priority::LEVELS && winner.level / BAND == loser.level / BAND
}

impl Policy for Deadline {
    fn rank(&self, seat: &Seat) -> Rank {
        let band = match seat.priority.class() {
            Class::Low => 0,
            Class::High => BAND,
        };
        let rank = match seat.deadline {
            Some(deadline) => {
                let grain = seat.switch_cost.as_nanos().max(1);
                let order = Reverse(deadline.as_nanos() / grain);
                Rank { boosted: false, level: Priority::LEVELS, order }
            }
            None => RoundRobin.rank(seat),
        };
        Rank { level: band + rank.level, ..rank }
    }

    fn takes_turns(&self, rank: &Rank) -> bool {
        rank.level % BAND < Priority::LEVELS
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
        assert!(Deadline.rank(&at(5_000_000)) > Deadline.rank(&seat(7)));
    }

    #[test]
    fn no_deadline_of_the_low_class_comes_before_the_high_one() {
        let due =
            |level, us: u64| Seat { deadline: Some(Instant::from_nanos(us * 1000)), ..seat(level) };
        let [low, high] = [Deadline.rank(&due(7, 1)), Deadline.rank(&due(8, 9_000))];
        let [plain, greatest] = [Deadline.rank(&seat(8)), Deadline.rank(&seat(15))];
        assert!(low < plain && plain < greatest && greatest < high);
        assert!(Deadline.takes_turns(&plain) && !Deadline.takes_turns(&high));
        assert!(decides(&high, &greatest) && !decides(&high, &low) && !decides(&greatest, &plain));
    }
}
