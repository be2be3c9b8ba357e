//! What the owner of a process may lower and not raise.
//!
//! A rule of the configuration and an administrator's request set bounds. The owner's wishes apply
//! within them; a bound that comes later limits earlier wishes too. `None` leaves an attribute to
//! the owner.

use std::fmt;

use gpreempt_core::event::SchedAttr;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_wire::process::SchedAttrChange;

use crate::assignment::{Assignment, Outcome, SettingSource, Sourced};

/// The highest priority and weight, the shortest deadline and the lowest latency budget that the
/// owner may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub priority: Option<Sourced<Priority>>,
    pub weight: Option<Sourced<u32>>,
    /// A value of `None` permits no deadline: processes without one rank below all others.
    pub deadline: Option<Sourced<Option<Duration>>>,
    pub latency_budget: Option<Sourced<LatencyBudget>>,
    /// True where the owner may not keep the process from being evicted.
    pub evictable: Option<Sourced<bool>>,
}

/// An attribute with its binding value, and who decided it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    pub setting: BoundSetting,
    pub source: SettingSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundSetting {
    Priority(Priority),
    Weight(u32),
    Deadline(Option<Duration>),
    LatencyBudget(LatencyBudget),
    Evictable,
}

impl Bounds {
    /// The bounds that the configuration sets. A rule binds what it sets, and with
    /// `trust_env = false` also what it leaves to the defaults.
    pub fn of_configuration(assignment: &Assignment) -> Self {
        let distrusting = assignment.distrusting.as_ref().map(|rule| rule.clone().into());
        let plain = SchedAttr::default();
        let given = assignment.evictable.as_ref();
        let evictable =
            given.and_then(|given| sourced(given.value, given.source.binding().as_ref()));
        match &assignment.outcome {
            Outcome::Ignored(_) => Self::default(),
            Outcome::Unknown => Self {
                priority: sourced(plain.priority, distrusting.as_ref()),
                weight: sourced(plain.weight, distrusting.as_ref()),
                deadline: sourced(None, distrusting.as_ref()),
                latency_budget: sourced(plain.latency_budget, distrusting.as_ref()),
                evictable,
            },
            Outcome::Scheduled { priority, weight, deadline, latency_budget } => {
                let of = |source: &SettingSource| source.binding().or_else(|| distrusting.clone());
                Self {
                    priority: sourced(priority.value, of(&priority.source).as_ref()),
                    weight: sourced(weight.value, of(&weight.source).as_ref()),
                    deadline: match deadline {
                        Some(deadline) => {
                            sourced(Some(deadline.value), of(&deadline.source).as_ref())
                        }
                        None => sourced(None, distrusting.as_ref()),
                    },
                    latency_budget: match latency_budget {
                        Some(budget) => sourced(budget.value, of(&budget.source).as_ref()),
                        None => sourced(plain.latency_budget, distrusting.as_ref()),
                    },
                    evictable,
                }
            }
        }
    }

    /// These bounds, replaced where an administrator's request set an attribute.
    pub fn or_by(self, uid: u32, change: &SchedAttrChange) -> Self {
        let source = SettingSource::Administrator(uid);
        let source = Some(&source);
        let priority = change.priority.and_then(|priority| sourced(priority, source));
        let weight = change.weight.and_then(|weight| sourced(weight.get(), source));
        let deadline = change.deadline_us.and_then(|us| sourced(deadline_of(us), source));
        let latency_budget = change.latency_budget.and_then(|budget| sourced(budget, source));
        let evictable = change.evictable.and_then(|evictable| sourced(evictable, source));
        Self {
            priority: priority.or(self.priority),
            weight: weight.or(self.weight),
            deadline: deadline.or(self.deadline),
            latency_budget: latency_budget.or(self.latency_budget),
            evictable: evictable.or(self.evictable),
        }
    }

    /// The attributes, limited by the bounds.
    pub fn limit(&self, mut attr: SchedAttr) -> SchedAttr {
        if let Some(bound) = &self.priority {
            attr.priority = attr.priority.min(bound.value);
        }
        if let Some(bound) = &self.weight {
            attr.weight = attr.weight.min(bound.value);
        }
        attr.deadline = self.limit_deadline(attr.deadline);
        if let Some(bound) = &self.latency_budget {
            attr.latency_budget = attr.latency_budget.max(bound.value);
        }
        attr
    }

    /// A deadline of the owner or of a hint, lengthened to the bound.
    pub fn limit_deadline(&self, asked: Option<Duration>) -> Option<Duration> {
        let Some(bound) = &self.deadline else { return asked };
        asked.zip(bound.value).map(|(asked, shortest)| asked.max(shortest))
    }

    /// Refuses a change that exceeds the bounds; the error names the first attribute that does.
    pub fn check(&self, change: &SchedAttrChange) -> Result<(), Exceeded> {
        let Self { priority, weight, deadline, latency_budget, evictable } = self;
        if let (Some(bound), Some(asked)) = (priority, change.priority)
            && asked > bound.value
        {
            return Err(exceeded(BoundSetting::Priority(bound.value), bound));
        }
        if let (Some(bound), Some(asked)) = (weight, change.weight)
            && asked.get() > bound.value
        {
            return Err(exceeded(BoundSetting::Weight(bound.value), bound));
        }
        if let (Some(bound), Some(asked)) = (deadline, change.deadline_us) {
            let asked = deadline_of(asked);
            if self.limit_deadline(asked) != asked {
                return Err(exceeded(BoundSetting::Deadline(bound.value), bound));
            }
        }
        if let (Some(bound), Some(asked)) = (latency_budget, change.latency_budget)
            && asked < bound.value
        {
            return Err(exceeded(BoundSetting::LatencyBudget(bound.value), bound));
        }
        if let (Some(bound), Some(false)) = (evictable, change.evictable)
            && bound.value
        {
            return Err(exceeded(BoundSetting::Evictable, bound));
        }
        Ok(())
    }
}

/// The deadline in a request, where zero removes it.
pub fn deadline_of(us: u64) -> Option<Duration> {
    Some(Duration::from_micros(us)).filter(|time| !time.is_zero())
}

fn sourced<T>(value: T, source: Option<&SettingSource>) -> Option<Sourced<T>> {
    source.map(|source| Sourced { value, source: source.clone() })
}

fn exceeded<T>(setting: BoundSetting, bound: &Sourced<T>) -> Exceeded {
    Exceeded { setting, source: bound.source.clone() }
}

impl BoundSetting {
    /// The verb for what the owner may not do.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Priority(_) | Self::Weight(_) => "raise",
            Self::Deadline(Some(_)) => "shorten",
            Self::Deadline(None) => "set",
            Self::LatencyBudget(_) => "lower",
            Self::Evictable => "end",
        }
    }
}

impl fmt::Display for BoundSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Priority(priority) => write!(f, "priority {priority}"),
            Self::Weight(weight) => write!(f, "weight {weight}"),
            Self::Deadline(Some(deadline)) => write!(f, "deadline {deadline}"),
            Self::Deadline(None) => f.write_str("no deadline"),
            Self::LatencyBudget(budget) => write!(f, "latency budget {budget}"),
            Self::Evictable => f.write_str("eviction for room"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::accounts::{Accounts, MayRaise};
    use crate::assignment::assign;
    use crate::config::Config;
    use crate::process_attributes::ProcessAttributes;
    use gpreempt_device::process::ProcessKey;

    fn change(priority: u8, weight: u32, deadline_us: u64) -> SchedAttrChange {
        SchedAttrChange {
            priority: Priority::new(priority),
            weight: NonZeroU32::new(weight),
            deadline_us: Some(deadline_us),
            latency_budget: None,
            evictable: None,
        }
    }

    fn budget(percent: u16) -> SchedAttrChange {
        let latency_budget = LatencyBudget::from_percent(percent);
        SchedAttrChange { latency_budget, ..SchedAttrChange::default() }
    }

    /// The bounds of a process with a priority of 6 in its environment that this rule matches.
    fn bounds(rule: &str) -> Bounds {
        let config = Config::parse("f", &format!("[[rule]]\nuser = 1000\n{rule}")).unwrap();
        let mut attributes = ProcessAttributes::unknown(ProcessKey { pid: 4, start_ticks: 2 });
        attributes.uid = Some(1000);
        attributes.environment = Some([("GPREEMPT_PRIORITY", "6")].into_iter().collect());
        let assignment = assign(&config, &attributes, &Accounts::default(), MayRaise::No);
        Bounds::of_configuration(&assignment)
    }

    #[test]
    fn a_rule_binds_what_it_sets() {
        let bounds = bounds("priority = 3\n");
        let rule = "rule 1 (line 1)";
        let priority = bounds.priority.clone().unwrap();
        assert_eq!((priority.value.level(), priority.source.to_string().as_str()), (3, rule));
        assert_eq!((&bounds.weight, &bounds.deadline), (&None, &None));
        assert!(bounds.check(&change(3, 1_000, 1)).is_ok());
        let exceeded = bounds.check(&change(4, 1, 0)).unwrap_err();
        assert_eq!(exceeded.setting.to_string(), "priority 3");
    }

    #[test]
    fn a_rule_that_distrusts_the_environment_binds_everything() {
        let distrusting = bounds("weight = 2\ndeadline_us = 500\ntrust_env = false\n");
        let refused = |bounds: &Bounds, change| {
            bounds.check(&change).err().map(|exceeded| exceeded.setting.to_string())
        };
        for (asked, expected) in [
            (change(4, 2, 500), None),
            (change(4, 2, 600), None),
            (change(4, 2, 0), None),
            (change(5, 2, 0), Some("priority 4")),
            (change(0, 3, 0), Some("weight 2")),
            (change(0, 1, 499), Some("deadline 500us")),
        ] {
            assert_eq!(refused(&distrusting, asked).as_deref(), expected, "{asked:?}");
        }
        let silent = bounds("trust_env = false\n");
        assert_eq!(refused(&silent, change(5, 1, 0)).as_deref(), Some("priority 4"));
        assert_eq!(refused(&silent, change(4, 1, 9)).as_deref(), Some("no deadline"));
        assert_eq!(refused(&silent, change(4, 1, 0)), None);
        assert_eq!(bounds("deadline_us = 500\n").priority, None, "the environment set it");
    }

    #[test]
    fn a_process_whose_rules_are_not_known_is_not_raised() {
        let unread = Assignment::unread();
        assert_eq!(unread.to_string(), "priority 0 (gpreemptd until it has been inspected)");
        let bounds = Bounds::of_configuration(&unread);
        assert!(bounds.check(&change(0, 1, 0)).is_ok());
        let exceeded = bounds.check(&change(1, 1, 0)).unwrap_err();
        assert_eq!(exceeded.source, SettingSource::Unread);
        assert_eq!(unread.scheduled_by(), Some(SettingSource::Unread), "nor detached");
    }

    #[test]
    fn an_administrator_replaces_the_bounds_of_a_rule() {
        let of_rule = bounds("priority = 3\nweight = 2\n");
        let raised = SchedAttrChange { weight: None, deadline_us: None, ..change(12, 1, 0) };
        let bounds = of_rule.or_by(0, &raised);
        assert!(bounds.check(&change(12, 2, 0)).is_ok());
        let exceeded = bounds.check(&change(13, 2, 0)).unwrap_err();
        assert_eq!(exceeded.source, SettingSource::Administrator(0));
        assert!(bounds.check(&change(12, 3, 0)).is_err(), "the rule still binds the weight");
    }

    #[test]
    fn the_owner_may_raise_a_latency_budget_and_not_lower_it() {
        let of_rule = bounds("latency_budget = \"20%\"\n");
        for (bounds, by) in [
            (of_rule.clone(), "rule 1 (line 1)"),
            (of_rule.or_by(0, &budget(20)), "root"),
            (Bounds::default().or_by(0, &budget(20)), "root"),
        ] {
            assert_eq!(bounds.check(&budget(20)), Ok(()));
            assert_eq!(bounds.check(&budget(400)), Ok(()));
            let Exceeded { setting, source } = bounds.check(&budget(19)).unwrap_err();
            let words = (setting.to_string(), setting.verb(), source.to_string());
            assert_eq!(words, ("latency budget 20 %".to_owned(), "lower", by.to_owned()));
            let asked = |percent| SchedAttr {
                latency_budget: LatencyBudget::from_percent(percent).unwrap(),
                ..SchedAttr::default()
            };
            assert_eq!(bounds.limit(asked(5)), asked(20), "an earlier request is raised");
            assert_eq!(bounds.limit(asked(60)), asked(60));
        }
        for rule in ["priority = 3\n", "trust_env = false\n", "latency_budget = \"0%\"\n"] {
            assert_eq!(bounds(rule).check(&budget(0)), Ok(()), "{rule}");
        }
    }

    #[test]
    fn earlier_wishes_are_limited() {
        let bounds = Bounds::default().or_by(0, &change(3, 2, 500));
        let asked = SchedAttr {
            priority: Priority::MAX,
            weight: 9,
            deadline: Some(Duration::from_micros(1)),
            ..SchedAttr::default()
        };
        let limited = bounds.limit(asked);
        assert_eq!((limited.priority.level(), limited.weight), (3, 2));
        assert_eq!(limited.deadline, Some(Duration::from_micros(500)));
        let low = SchedAttr { priority: Priority::MIN, ..SchedAttr::default() };
        assert_eq!(bounds.limit(low), low, "what is lower stays");
        assert_eq!(Bounds::default().limit(asked), asked);
        let none = Bounds::default().or_by(0, &change(3, 2, 0));
        assert_eq!(none.limit_deadline(asked.deadline), None);
    }
}
