//! Weighted fair share, the high class before the low one.
//!
//! Any process may ask for a weight, but the high class needs a permission: so weights decide
//! within a class only. The entity with the least weighted device time gets the next slice. Time is
//! charged when a turn ends; a task that was idle gets no credit for that time.

use core::cmp::Reverse;

use super::{Policy, Rank, SchedEntity};
use crate::time::Duration;

#[derive(Debug)]
pub(super) struct Fair;

impl Policy for Fair {
    fn rank(&self, entity: &SchedEntity) -> Rank {
        let order = if entity.holds { 0 } else { entity.virtual_time.saturating_add(1) };
        // CAST: there are two classes.
        Rank { boosted: false, level: entity.priority.class() as u8, order: Reverse(order) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        true
    }

    fn uses_weights(&self) -> bool {
        true
    }
}

/// The virtual time that a task of weight `weight` is charged for running for `ran`.
pub(crate) fn virtual_cost(ran: Duration, weight: u32) -> u64 {
    // Scaled by 1024 so that even the largest weight sees single nanoseconds.
    ran.as_nanos().saturating_mul(1024) / u64::from(weight.max(1))
}

#[cfg(test)]
mod tests {
    use super::super::entity;
    use super::*;

    #[test]
    fn the_least_served_entity_of_a_class_ranks_first_whatever_its_priority() {
        let served = SchedEntity { virtual_time: 10, ..entity(7) };
        let starved = SchedEntity { virtual_time: 9, ..entity(0) };
        assert!(Fair.rank(&starved) > Fair.rank(&served));
        assert!(Fair.rank(&SchedEntity { holds: true, ..served }) > Fair.rank(&starved));
        let high = SchedEntity { virtual_time: 99, ..entity(8) };
        assert!(Fair.rank(&high) > Fair.rank(&starved));
    }

    #[test]
    fn virtual_time_grows_inversely_to_the_weight() {
        let ran = Duration::from_millis(3);
        assert_eq!(virtual_cost(ran, 1), 3 * virtual_cost(ran, 3));
    }
}
