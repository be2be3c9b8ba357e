//! Scheduling policies: each maps the state of an entity to a [`Rank`].
//!
//! A policy is a pure function. The scheduler does the rest: on every device the highest rank runs,
//! equal ranks run together, all lower ones wait. A policy may make equals take turns; the
//! scheduler then gives each of them a slice.
//!
//! To add a policy, write a file in this folder with a type that implements [`Policy`], and add it
//! to [`PolicyKind`] below. Configuration, command line, protocol, metrics and simulator derive
//! their choices, names and descriptions from that list.

pub(crate) mod deadline;
pub(crate) mod fair;

use core::cmp::Reverse;
use core::fmt;

use crate::priority::Priority;
use crate::time::{Duration, Instant};

/// Generates [`PolicyKind`] from the list of policies: kind, public name, policy, description.
macro_rules! policies {
    ($(#[doc = $doc:literal] $(#[$attr:meta])* $kind:ident = $name:literal, $policy:expr;)+) => {
        /// The policies that can be configured.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum PolicyKind {
            $(#[doc = $doc] $(#[$attr])* $kind,)+
        }

        impl PolicyKind {
            /// Every policy, in the order in which they are documented.
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];

            /// The name in configuration files, commands and reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// What the policy does, in one phrase.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$kind => $doc.trim_ascii(),)+ }
            }

            /// The policy itself.
            pub fn policy(self) -> &'static dyn Policy {
                match self { $(Self::$kind => &$policy,)+ }
            }
        }
    };
}

policies! {
    /// the highest priority runs, equals share the device
    #[default]
    Strict = "strict", Strict;
    /// the highest priority runs, equals take turns
    RoundRobin = "round-robin", RoundRobin;
    /// the high class runs before the low one, within a class the earliest deadline first
    Deadline = "edf", deadline::Deadline;
    /// the high class runs before the low one, within a class in proportion to weights
    Fair = "fair", fair::Fair;
}

impl PolicyKind {
    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The position of an entity in the run order. The greatest runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Starved, and therefore above all others for a short time. Set by the scheduler.
    pub boosted: bool,
    /// The coarse order: a priority, or the policy's equivalent.
    pub level: u8,
    /// The fine order within a level: smaller comes first.
    pub order: Reverse<u64>,
}

/// The input of a policy: one task, or one queue of it, on one device.
#[derive(Clone, Copy, Debug)]
pub struct SchedEntity {
    /// The queue's priority.
    pub priority: Priority,
    /// The task's weight.
    pub weight: u32,
    /// When the task's current request should be done.
    pub deadline: Option<Instant>,
    /// Weighted device time so far.
    pub virtual_time: u64,
    /// The number of the turn after which it last used up its slice; at least 1.
    pub turn: u64,
    /// Whether it has the turn now.
    pub holds: bool,
    /// What a switch costs on this device: ranks need not be finer than that.
    pub switch_cost: Duration,
}

/// One scheduling policy.
pub trait Policy: fmt::Debug + Sync {
    /// The rank of an entity.
    fn rank(&self, entity: &SchedEntity) -> Rank;

    /// Whether entities of that rank take turns, instead of sharing the device as the hardware
    /// decides.
    fn takes_turns(&self, rank: &Rank) -> bool;

    /// Whether a higher priority always runs first, also within a class.
    fn orders_by_priority(&self) -> bool {
        false
    }

    /// Whether weights have an effect.
    fn uses_weights(&self) -> bool {
        false
    }

    /// Whether deadlines have an effect.
    fn uses_deadlines(&self) -> bool {
        false
    }

    /// Whether a deadline is the reason that `higher` ranks above `lower`.
    fn decides_by_deadline(&self, _higher: &Rank, _lower: &Rank) -> bool {
        false
    }
}

/// The policy of that kind. Where only one queue may be runnable at a time (`exclusive`), equals
/// take turns even under the strict policy.
pub fn of(kind: PolicyKind, exclusive: bool) -> &'static dyn Policy {
    if exclusive && kind == PolicyKind::Strict { &RoundRobin } else { kind.policy() }
}

#[derive(Debug)]
struct Strict;

impl Policy for Strict {
    fn rank(&self, entity: &SchedEntity) -> Rank {
        Rank { boosted: false, level: entity.priority.level(), order: Reverse(0) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        false
    }

    fn orders_by_priority(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct RoundRobin;

impl Policy for RoundRobin {
    fn rank(&self, entity: &SchedEntity) -> Rank {
        let order = if entity.holds { 0 } else { entity.turn };
        Rank { boosted: false, level: entity.priority.level(), order: Reverse(order) }
    }

    fn takes_turns(&self, _: &Rank) -> bool {
        true
    }

    fn orders_by_priority(&self) -> bool {
        true
    }
}

#[cfg(test)]
pub(crate) fn entity(priority: u8) -> SchedEntity {
    SchedEntity {
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
    fn policies_are_found_by_name_and_documented() {
        let documentation = include_str!("../../../docs/reference/configuration.md");
        for kind in PolicyKind::ALL {
            assert_eq!(PolicyKind::from_name(kind.name()), Some(kind));
            let row = alloc::format!("\n| `{kind}` | ");
            assert!(documentation.contains(&row), "docs/reference/configuration.md lacks {kind}");
        }
        assert_eq!(PolicyKind::from_name("best"), None);
    }

    #[test]
    fn strict_ranks_depend_on_the_priority_only() {
        assert!(Strict.rank(&entity(9)) > Strict.rank(&entity(8)));
        let other = SchedEntity { turn: 99, virtual_time: 7, ..entity(9) };
        assert_eq!(Strict.rank(&entity(9)), Strict.rank(&other));
    }

    #[test]
    fn round_robin_ranks_the_holder_of_the_turn_first_then_the_longest_waiting() {
        let holder = SchedEntity { holds: true, turn: 9, ..entity(3) };
        let early = SchedEntity { turn: 4, ..entity(3) };
        let late = SchedEntity { turn: 5, ..entity(3) };
        assert!(RoundRobin.rank(&holder) > RoundRobin.rank(&early));
        assert!(RoundRobin.rank(&early) > RoundRobin.rank(&late));
        assert!(RoundRobin.rank(&entity(4)) > RoundRobin.rank(&holder));
    }
}
