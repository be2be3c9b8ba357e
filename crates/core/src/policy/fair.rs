//! Weighted fair share, the high class before the low one.
//!
//! Anybody may ask for a weight, but not anybody may be in the high class: so weights decide within
//! a class only. Who has had the least weighted device time gets the next slice. Time is charged
//! when a turn ends; a task that slept does not come back with credit for the time it slept.

use core::cmp::Reverse;

use super::{Policy, Rank, Seat};
use crate::time::Duration;

/// Device time in proportion to weights.
#[derive(Debug)]
pub(super) struct Fair;

impl Policy for Fair {
    fn rank(&self, seat: &Seat) -> Rank {
        let order = if seat.holds { 0 } else { seat.virtual_time.saturating_add(1) };
        // CAST: there are two classes.
        Rank { boosted: false, level: seat.priority.class() as u8, order: Reverse(order) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        true
    }
}

/// What running for `ran` costs a task of weight `weight` in virtual time.
pub(crate) fn virtual_cost(ran: Duration, weight: u32) -> u64 {
    // Scaled by 1024 so that even the largest weight sees single nanoseconds.
    ran.as_nanos().saturating_mul(1024) / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::super::seat;
    use super::*;

    #[test]
    fn the_least_served_of_a_class_comes_first_whatever_its_priority() {
        let served = Seat { virtual_time: 10, ..seat(7) };
        let starved = Seat { virtual_time: 9, ..seat(0) };
        assert!(Fair.rank(&starved) > Fair.rank(&served));
        assert!(Fair.rank(&Seat { holds: true, ..served }) > Fair.rank(&starved));
        let high = Seat { virtual_time: 99, ..seat(8) };
        assert!(Fair.rank(&high) > Fair.rank(&starved));
    }

    #[test]
    fn time_is_cheaper_for_the_heavy() {
        let ran = Duration::from_millis(3);
        assert_eq!(virtual_cost(ran, 1), 3 * virtual_cost(ran, 3));
    }
}
