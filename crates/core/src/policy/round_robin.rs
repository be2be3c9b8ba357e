//! Round robin: the highest level runs, equals take turns.

use core::cmp::Reverse;

use super::{Policy, Rank, Seat};

/// As strict, but equals take turns, each for a slice.
#[derive(Debug)]
pub(super) struct RoundRobin;

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
mod tests {
    use super::super::seat;
    use super::*;

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
