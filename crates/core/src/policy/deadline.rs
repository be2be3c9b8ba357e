//! Earliest deadline first, the high class before the low one.
//!
//! Any process may ask for a deadline, but the high class needs a permission: so a deadline decides
//! within a class only. Deadlines closer together than the cost of a switch are equal, because
//! preempting for less cannot pay. Equals share the device. Tasks without a deadline rank below all
//! of their class that have one, and take turns by priority.

use core::cmp::Reverse;

use super::{Policy, Rank, RoundRobin, SchedEntity};
use crate::priority::{Class, Priority};

#[derive(Debug)]
pub(super) struct Deadline;

/// Levels of a class: one for each priority, and one above them for all deadlines.
const BAND: u8 = Priority::LEVELS + 1;

impl Policy for Deadline {
    fn rank(&self, entity: &SchedEntity) -> Rank {
        let band = match entity.priority.class() {
            Class::Low => 0,
            Class::High => BAND,
        };
        let rank = match entity.deadline {
            Some(deadline) => {
                let grain = entity.switch_cost.as_nanos().max(1);
                let order = Reverse(deadline.as_nanos() / grain);
                Rank { boosted: false, level: Priority::LEVELS, order }
            }
            None => RoundRobin.rank(entity),
        };
        Rank { level: band + rank.level, ..rank }
    }

    fn takes_turns(&self, rank: &Rank) -> bool {
        rank.level % BAND < Priority::LEVELS
    }

    fn uses_deadlines(&self) -> bool {
        true
    }

    fn decides_by_deadline(&self, higher: &Rank, lower: &Rank) -> bool {
        higher.level % BAND == Priority::LEVELS && higher.level / BAND == lower.level / BAND
    }
}

#[cfg(test)]
mod tests {
    use super::super::entity;
    use super::*;
    use crate::time::Instant;

    #[test]
    fn earlier_deadlines_first_and_no_deadline_last() {
        let at =
            |us: u64| SchedEntity { deadline: Some(Instant::from_nanos(us * 1000)), ..entity(0) };
        assert!(Deadline.rank(&at(100)) > Deadline.rank(&at(200)));
        assert_eq!(Deadline.rank(&at(101)), Deadline.rank(&at(105)));
        assert!(Deadline.rank(&at(5_000_000)) > Deadline.rank(&entity(7)));
    }

    #[test]
    fn no_deadline_of_the_low_class_comes_before_the_high_one() {
        let due = |level, us: u64| SchedEntity {
            deadline: Some(Instant::from_nanos(us * 1000)),
            ..entity(level)
        };
        let [low, high] = [Deadline.rank(&due(7, 1)), Deadline.rank(&due(8, 9_000))];
        let [plain, greatest] = [Deadline.rank(&entity(8)), Deadline.rank(&entity(15))];
        assert!(low < plain && plain < greatest && greatest < high);
        assert!(Deadline.takes_turns(&plain) && !Deadline.takes_turns(&high));
        let decides = |higher, lower| Deadline.decides_by_deadline(higher, lower);
        assert!(decides(&high, &greatest) && !decides(&high, &low) && !decides(&greatest, &plain));
    }
}
