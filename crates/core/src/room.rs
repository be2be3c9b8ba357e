//! Plans which programs are evicted from the memory of a device so that another one fits.
//!
//! Pure: the caller knows which programs may be evicted at all, measures the memory, and evicts.
//!
//! ```text
//!   needed = bytes of the claim - free bytes
//!   priorities below the claim, lowest first, until what they free is at least `needed`
//!   in the last of these priorities: the fewest bytes that suffice
//!   at last, programs without which the others free enough stay
//! ```

use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::priority::Priority;

/// Steps of the search among the programs of one priority before it takes the best set so far: the
/// planner runs in the daemon's loop. The first set that it finds has the largest programs.
const STEPS_MAX: u32 = 1 << 12;

/// Programs that are evicted and restored together, and may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evictable<Id> {
    /// The caller's name for them.
    pub id: Id,
    /// The highest priority of them.
    pub priority: Priority,
    /// What their eviction frees on the device.
    pub bytes: u64,
}

/// A program that needs memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomClaim {
    /// Only programs of a lower priority are evicted for it.
    pub priority: Priority,
    /// What it needs.
    pub bytes: u64,
}

/// How a claim is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomPlan<Id> {
    /// Evict these, the lowest priority first. Empty if there is room already.
    Evict(Vec<Id>),
    /// The device lacks this many bytes even if every permitted program is evicted.
    Short {
        /// How many bytes are missing.
        missing: u64,
    },
}

/// Plans room for a claim on a device with `free` bytes.
pub fn plan_room<Id: Copy + Ord>(
    claim: RoomClaim,
    free: u64,
    candidates: &[Evictable<Id>],
) -> RoomPlan<Id> {
    let needed = u128::from(claim.bytes.saturating_sub(free));
    let is_candidate = |one: &&Evictable<Id>| one.priority < claim.priority && one.bytes > 0;
    let mut candidates: Vec<Evictable<Id>> =
        candidates.iter().filter(is_candidate).copied().collect();
    // Within a priority the largest first, as the search below expects.
    candidates.sort_by_key(|one| (one.priority, Reverse(one.bytes), one.id));
    let mut chosen = Vec::new();
    let mut left = needed;
    for level in candidates.chunk_by(|one, other| one.priority == other.priority) {
        if left == 0 {
            break;
        }
        if sum(level) < left {
            chosen.extend_from_slice(level);
            left -= sum(level);
        } else {
            chosen.extend(fewest_bytes(level, left));
            left = 0;
        }
    }
    if left > 0 {
        return RoomPlan::Short { missing: u64::try_from(left).unwrap_or(u64::MAX) };
    }
    keep_unneeded(&mut chosen, needed);
    RoomPlan::Evict(chosen.into_iter().map(|one| one.id).collect())
}

/// Wide enough for sizes that processes made up.
fn sum<Id>(programs: &[Evictable<Id>]) -> u128 {
    programs.iter().map(|one| u128::from(one.bytes)).sum()
}

/// Leaves out programs without which the others free enough, the highest priority first.
fn keep_unneeded<Id: Copy>(chosen: &mut Vec<Evictable<Id>>, needed: u128) {
    let mut at = chosen.len();
    while at > 0 {
        at -= 1;
        let without = sum(chosen) - u128::from(chosen[at].bytes);
        // PANIC: `at` is below the length, which shrinks only behind it.
        if without >= needed {
            chosen.remove(at);
        }
    }
}

/// The programs of one priority, largest first, that free at least `needed` with the fewest bytes;
/// of equal sets, the one with fewer programs. All of them together free enough.
fn fewest_bytes<Id: Copy>(level: &[Evictable<Id>], needed: u128) -> Vec<Evictable<Id>> {
    let mut rest = vec![0; level.len() + 1];
    for (at, one) in level.iter().enumerate().rev() {
        // PANIC: the list has one more than the level.
        rest[at] = rest[at + 1] + u128::from(one.bytes);
    }
    let mut search = Search {
        level,
        rest,
        needed,
        path: Vec::new(),
        best: level.to_vec(),
        best_bytes: sum(level),
        steps: 0,
    };
    search.extend(0, 0);
    search.best
}

/// A depth-first search over the subsets of a priority.
struct Search<'a, Id> {
    level: &'a [Evictable<Id>],
    /// What each program and all behind it free.
    rest: Vec<u128>,
    needed: u128,
    path: Vec<Evictable<Id>>,
    best: Vec<Evictable<Id>>,
    best_bytes: u128,
    steps: u32,
}

impl<Id: Copy> Search<'_, Id> {
    /// Tries every subset that continues the path, which frees `freed`, with programs from `from`
    /// on.
    fn extend(&mut self, from: usize, freed: u128) {
        if freed >= self.needed {
            let is_smaller = (freed, self.path.len()) < (self.best_bytes, self.best.len());
            if is_smaller {
                self.best.clone_from(&self.path);
                self.best_bytes = freed;
            }
            return;
        }
        self.steps += 1;
        let (Some(first), Some(rest)) = (self.level.get(from), self.rest.get(from)) else { return };
        let is_hopeless = freed + rest < self.needed;
        if is_hopeless || self.best_bytes == self.needed || self.steps > STEPS_MAX {
            return;
        }
        self.path.push(*first);
        self.extend(from + 1, freed + u128::from(first.bytes));
        self.path.pop();
        self.extend(from + 1, freed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn program(id: u32, priority: u8, gib: u64) -> Evictable<u32> {
        Evictable { id, priority: Priority::new(priority).unwrap(), bytes: gib * GIB }
    }

    fn plan(priority: u8, gib: u64, free: u64, candidates: &[Evictable<u32>]) -> RoomPlan<u32> {
        let priority = Priority::new(priority).unwrap();
        plan_room(RoomClaim { priority, bytes: gib * GIB }, free * GIB, candidates)
    }

    #[test]
    fn nothing_is_evicted_where_there_is_room() {
        assert_eq!(plan(12, 10, 10, &[program(1, 2, 50)]), RoomPlan::Evict(vec![]));
        assert_eq!(plan(12, 0, 0, &[]), RoomPlan::Evict(vec![]));
    }

    #[test]
    fn the_lowest_priority_is_evicted_first() {
        let candidates = [program(1, 5, 40), program(2, 2, 40), program(3, 4, 40)];
        assert_eq!(plan(12, 30, 0, &candidates), RoomPlan::Evict(vec![2]));
        assert_eq!(plan(12, 60, 0, &candidates), RoomPlan::Evict(vec![2, 3]));
    }

    #[test]
    fn among_equals_the_smallest_set_is_evicted() {
        let candidates = [program(1, 2, 50), program(2, 2, 20), program(3, 2, 16)];
        assert_eq!(plan(12, 30, 0, &candidates), RoomPlan::Evict(vec![2, 3]));
        assert_eq!(plan(12, 40, 0, &candidates), RoomPlan::Evict(vec![1]));
        let equal = [program(1, 2, 10), program(2, 2, 20), program(3, 2, 30)];
        assert_eq!(plan(12, 30, 0, &equal), RoomPlan::Evict(vec![3]), "one instead of two");
    }

    #[test]
    fn a_low_program_stays_if_a_higher_one_has_to_go_and_suffices() {
        let candidates = [program(1, 1, 2), program(2, 4, 60)];
        assert_eq!(plan(12, 50, 0, &candidates), RoomPlan::Evict(vec![2]));
        assert_eq!(plan(12, 61, 0, &candidates), RoomPlan::Evict(vec![1, 2]));
    }

    #[test]
    fn equal_and_higher_priorities_are_never_evicted() {
        let candidates = [program(1, 12, 50), program(2, 15, 50), program(3, 11, 5)];
        assert_eq!(plan(12, 20, 4, &candidates), RoomPlan::Short { missing: 11 * GIB });
        assert_eq!(plan(0, 20, 0, &[program(1, 0, 50)]), RoomPlan::Short { missing: 20 * GIB });
    }

    #[test]
    fn sizes_beyond_all_bounds_are_short() {
        let claim = RoomClaim { priority: Priority::MAX, bytes: u64::MAX };
        let candidates = [program(1, 2, 1), Evictable { bytes: u64::MAX, ..program(2, 3, 0) }];
        assert_eq!(
            plan_room(claim, 0, &candidates[..1]),
            RoomPlan::Short { missing: u64::MAX - GIB }
        );
        assert_eq!(plan_room(claim, 0, &candidates), RoomPlan::Evict(vec![2]));
    }

    #[test]
    fn many_programs_of_one_size_are_planned_quickly() {
        let candidates: Vec<_> = (0..300).map(|id| program(id, 2, 2)).collect();
        let RoomPlan::Evict(evicted) = plan(12, 301, 0, &candidates) else { panic!("there is") };
        assert_eq!(evicted.len(), 151);
    }

    fn candidates() -> impl Strategy<Value = Vec<Evictable<u32>>> {
        let one = (0..16_u8, 0..40_u64);
        proptest::collection::vec(one, 0..10).prop_map(|all| {
            let numbered = (0..).zip(all);
            numbered.map(|(id, (priority, gib))| program(id, priority, gib)).collect()
        })
    }

    proptest! {
        #[test]
        fn a_plan_suffices_and_evicts_none_in_vain(
            candidates in candidates(), priority in 0..16_u8, gib in 0..200_u64, free in 0..40_u64,
        ) {
            let lower = |one: &&Evictable<u32>| one.priority.level() < priority;
            let most: u64 = candidates.iter().filter(lower).map(|one| one.bytes).sum();
            match plan(priority, gib, free, &candidates) {
                RoomPlan::Short { missing } => {
                    prop_assert_eq!(missing, (gib - free) * GIB - most);
                }
                RoomPlan::Evict(ids) => {
                    let needed = gib.saturating_sub(free) * GIB;
                    let of = |id: &u32| candidates.iter().find(|one| one.id == *id).unwrap();
                    let evicted: Vec<_> = ids.iter().map(of).collect();
                    let freed: u64 = evicted.iter().map(|one| one.bytes).sum();
                    prop_assert!(freed >= needed);
                    prop_assert!(evicted.iter().all(lower));
                    prop_assert!(evicted.is_sorted_by_key(|one| one.priority));
                    for one in &evicted {
                        prop_assert!(freed - one.bytes < needed, "{one:?} is evicted in vain");
                    }
                    // A higher priority is only evicted if all lower ones do not suffice.
                    if let Some(last) = evicted.last() {
                        let below = candidates.iter().filter(|one| one.priority < last.priority);
                        prop_assert!(below.map(|one| one.bytes).sum::<u64>() < needed);
                    }
                }
            }
        }

        /// Compared with all subsets.
        #[test]
        fn among_equals_no_smaller_set_suffices(
            sizes in proptest::collection::vec(1..50_u64, 1..9), part in 1..100_u64,
        ) {
            let candidates: Vec<_> =
                (0..).zip(&sizes).map(|(id, gib)| program(id, 2, *gib)).collect();
            let needed = (sizes.iter().sum::<u64>() * part).div_ceil(100);
            let RoomPlan::Evict(ids) = plan(12, needed, 0, &candidates) else { panic!("short") };
            let freed: u64 = ids.iter().map(|id| sizes[*id as usize]).sum();
            for subset in 0_u32..1 << sizes.len() {
                let is_in = |(at, _): &(usize, &u64)| subset >> at & 1 == 1;
                let bytes: u64 = sizes.iter().enumerate().filter(is_in).map(|(_, gib)| gib).sum();
                prop_assert!(bytes < needed || bytes >= freed, "{subset:b} suffices with {bytes}");
            }
        }
    }
}
