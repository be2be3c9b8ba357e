//! Strict priority: the highest level runs, equals share.

use core::cmp::Reverse;

use super::{Policy, Rank, Seat};

/// The highest priority runs; equals share the device as the hardware likes.
#[derive(Debug)]
pub(super) struct Strict;

impl Policy for Strict {
    fn rank(&self, seat: &Seat) -> Rank {
        Rank { boosted: false, level: seat.priority.level(), order: Reverse(0) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::seat;
    use super::*;

    #[test]
    fn only_the_priority_counts() {
        assert!(Strict.rank(&seat(9)) > Strict.rank(&seat(8)));
        let other = Seat { turn: 99, virtual_time: 7, ..seat(9) };
        assert_eq!(Strict.rank(&seat(9)), Strict.rank(&other));
    }
}
