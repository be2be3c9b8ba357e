//! Equal turns for all, the high class before the low one.
//!
//! Within a class every entity gets the same slice, whatever its priority and weight. The holder of
//! the turn keeps the device until its slice ends; then the entity that has waited longest follows.

use core::cmp::Reverse;

use super::{Policy, Rank, SchedEntity};

#[derive(Debug)]
pub(super) struct Rotate;

impl Policy for Rotate {
    fn rank(&self, entity: &SchedEntity) -> Rank {
        let order = if entity.holds { 0 } else { entity.turn };
        // CAST: there are two classes.
        Rank { boosted: false, level: entity.priority.class() as u8, order: Reverse(order) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::entity;
    use super::*;

    #[test]
    fn the_longest_waiting_entity_of_a_class_follows_the_holder_whatever_its_priority() {
        let holder = SchedEntity { holds: true, turn: 9, ..entity(0) };
        let early = SchedEntity { turn: 4, ..entity(1) };
        let late = SchedEntity { turn: 5, ..entity(7) };
        assert!(Rotate.rank(&holder) > Rotate.rank(&early));
        assert!(Rotate.rank(&early) > Rotate.rank(&late));
        assert!(Rotate.rank(&entity(8)) > Rotate.rank(&holder));
        assert!(Rotate.takes_turns(&Rotate.rank(&holder)));
    }
}
