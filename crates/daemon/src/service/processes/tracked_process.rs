//! A process that uses a device, and what is to become of it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use gpreempt_core::event::SchedAttr;
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::process::SchedAttrChange;

use crate::facts::ProcessFacts;
use crate::verdict::{Outcome, Verdict, open_to_all};

/// What people want to know of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) container: Option<String>,
    pub(crate) pod: Option<String>,
    pub(crate) slurm_job: Option<String>,
}

impl About {
    pub(crate) fn new(facts: &ProcessFacts) -> Self {
        let placement = facts.cgroup.as_ref().map(|cgroup| cgroup.placement.clone());
        let placement = placement.unwrap_or_default();
        Self {
            name: facts.name.clone(),
            // Nobody's, if it is not known: then only root may change it.
            uid: facts.uid.unwrap_or(u32::MAX),
            container: placement.container,
            pod: placement.pod,
            slurm_job: placement.slurm.map(|slurm| slurm.job.to_string()),
        }
    }
}

/// What somebody asked for in so many words. It counts more than any rule but `ignore`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) change: SchedAttrChange,
    /// Who asked.
    pub(crate) uid: u32,
}

impl Order {
    /// The same with what was asked for since.
    pub(crate) fn and(self, later: Self) -> Self {
        let change = SchedAttrChange {
            priority: later.change.priority.or(self.change.priority),
            weight: later.change.weight.or(self.change.weight),
            deadline_us: later.change.deadline_us.or(self.change.deadline_us),
        };
        Self { change, uid: later.uid }
    }

    fn apply(&self, mut attr: SchedAttr) -> SchedAttr {
        attr.priority = self.change.priority.unwrap_or(attr.priority);
        attr.weight = self.change.weight.map_or(attr.weight, |weight| weight.get());
        if let Some(us) = self.change.deadline_us {
            attr.deadline = Some(Duration::from_micros(us)).filter(|time| !time.is_zero());
        }
        attr
    }
}

/// What the scheduler was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InForce {
    pub(crate) task: TaskId,
    pub(crate) attr: SchedAttr,
    pub(crate) is_suspended: bool,
}

/// A process that uses a device.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) key: ProcessKey,
    pub(crate) about: About,
    /// What the configuration says.
    pub(crate) verdict: Verdict,
    pub(crate) order: Option<Order>,
    /// Somebody asked that it be left alone.
    pub(crate) is_detached: bool,
    /// When a suspension ends by itself, on the monotonic clock.
    pub(crate) suspended_until_ns: Option<u64>,
    /// Why it cannot be controlled, if so.
    pub(crate) obstacle: Option<String>,
    /// The controllers whose devices it uses.
    pub(crate) homes: BTreeSet<usize>,
    /// Those of them that adopted it.
    pub(crate) adopted: BTreeSet<usize>,
    pub(crate) in_force: Option<InForce>,
    /// Readable when it has ended. Without one, it is looked after now and then.
    pub(crate) pidfd: Option<OwnedFd>,
    /// What the loop calls that descriptor.
    pub(crate) watch: u64,
}

impl Member {
    /// Whether a rule says that it is left alone, whatever else is said.
    pub(crate) const fn is_ignored(&self) -> bool {
        matches!(self.verdict.outcome, Outcome::Ignored(_))
    }

    pub(crate) const fn is_suspended(&self) -> bool {
        self.suspended_until_ns.is_some()
    }

    /// What the scheduler should be told, or none if it is to be left alone.
    pub(crate) fn wanted(&self) -> Option<SchedAttr> {
        // Whoever was detached can be suspended, and is left alone again after that.
        let is_left_alone = self.is_detached && !self.is_suspended();
        if self.is_ignored() || is_left_alone || self.obstacle.is_some() {
            return None;
        }
        let given = self.verdict.attr();
        match self.order {
            Some(order) => Some(order.apply(given.unwrap_or_default())),
            None if self.is_suspended() => Some(given.unwrap_or_default()),
            None => given,
        }
    }

    /// The highest priority that its own user may give it: what anybody may have, or what it had.
    pub(crate) fn open_priority(&self, default_priority: Option<Priority>) -> Priority {
        let open = open_to_all(default_priority);
        self.verdict.attr().map_or(open, |attr| attr.priority.max(open))
    }

    /// Why it has what it has, in a sentence.
    pub(crate) fn why(&self) -> String {
        if let Some(obstacle) = &self.obstacle {
            return format!("left alone: {obstacle}");
        }
        match (self.order, self.is_ignored()) {
            (_, true) => self.verdict.to_string(),
            _ if self.is_detached => "left alone: somebody detached it".to_owned(),
            (Some(order), _) => {
                let given = self.verdict.attr().unwrap_or_default();
                let priority = order.apply(given).priority;
                format!("priority {priority} (asked for by uid {})", order.uid)
            }
            (None, _) => self.verdict.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::RuleLabel;
    use crate::verdict::{Given, Source};

    fn level(level: u8) -> Priority {
        Priority::new(level).unwrap()
    }

    fn scheduled(priority: u8) -> Outcome {
        let source = Source::Default;
        Outcome::Scheduled {
            priority: Given { value: level(priority), source: source.clone() },
            weight: Given { value: 1, source },
            deadline: None,
        }
    }

    fn member(outcome: Outcome) -> Member {
        Member {
            key: ProcessKey { pid: 7, start_ticks: 9 },
            about: About::default(),
            verdict: Verdict { outcome, notes: Vec::new() },
            order: None,
            is_detached: false,
            suspended_until_ns: None,
            obstacle: None,
            homes: BTreeSet::new(),
            adopted: BTreeSet::new(),
            in_force: None,
            pidfd: None,
            watch: 0,
        }
    }

    fn order(priority: Option<u8>, deadline_us: Option<u64>) -> Order {
        let change = SchedAttrChange {
            priority: priority.map(level),
            deadline_us,
            ..SchedAttrChange::default()
        };
        Order { change, uid: 5 }
    }

    fn priority(member: &Member) -> Option<u8> {
        member.wanted().map(|attr| attr.priority.level())
    }

    #[test]
    fn unknown_processes_are_left_alone_until_somebody_says_something() {
        let mut member = member(Outcome::Unknown);
        assert_eq!(member.wanted(), None);
        member.suspended_until_ns = Some(1);
        assert_eq!(priority(&member), Some(4));
        member.order = Some(order(Some(9), None));
        assert_eq!(priority(&member), Some(9));
        assert_eq!(member.why(), "priority 9 (asked for by uid 5)");
        member.is_detached = true;
        assert!(member.wanted().is_some(), "as long as it is suspended");
        member.suspended_until_ns = None;
        assert_eq!(member.wanted(), None);
    }

    #[test]
    fn an_order_changes_what_it_mentions() {
        let mut member = member(scheduled(12));
        member.order = Some(order(None, Some(500)));
        let wanted = member.wanted().unwrap();
        assert_eq!(wanted.priority, level(12));
        assert_eq!(wanted.deadline, Some(Duration::from_micros(500)));
        member.order = member.order.map(|first| first.and(order(Some(3), None)));
        let wanted = member.wanted().unwrap();
        assert_eq!((wanted.priority, wanted.deadline.is_some()), (level(3), true));
        member.order = member.order.map(|first| first.and(order(None, Some(0))));
        assert_eq!(member.wanted().unwrap().deadline, None);
    }

    #[test]
    fn what_a_rule_gave_can_be_restored_by_its_user() {
        assert_eq!(member(scheduled(12)).open_priority(None), level(12));
        assert_eq!(member(scheduled(3)).open_priority(None), level(7));
        assert_eq!(member(Outcome::Unknown).open_priority(Some(level(9))), level(9));
    }

    #[test]
    fn a_rule_that_says_ignore_is_the_last_word() {
        let label = RuleLabel { number: 1, name: None, line: 3 };
        let mut member = member(Outcome::Ignored(label));
        member.order = Some(order(Some(9), None));
        member.suspended_until_ns = Some(1);
        assert_eq!(member.wanted(), None);
        assert_eq!(member.why(), "left alone: rule 1 (line 3)");
    }

    #[test]
    fn who_cannot_be_controlled_is_left_alone_and_it_is_said_why() {
        let mut member = member(scheduled(12));
        member.obstacle = Some("another command has it".to_owned());
        assert_eq!(member.wanted(), None);
        assert_eq!(member.why(), "left alone: another command has it");
    }
}
