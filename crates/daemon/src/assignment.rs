//! The attributes that a process gets, and why.
//!
//! Sources in order of precedence: the first matching rule, the process's environment, the
//! configured default. Each sets only what those before it left open. A process for which no source
//! has a setting is *normal*, or ignored if the configuration says so.

use std::fmt;

use gpreempt_core::event::SchedAttr;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::time::Duration;
use gpreempt_wire::statistics::memory;

use crate::accounts::{Accounts, MayRaise, RAISING_GROUP};
use crate::config::{Config, Unmanaged};
use crate::environment;
use crate::process_attributes::{Environment, ProcessAttributes};
use crate::rule::{Action, AttrSettings, RuleLabel};

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingSource {
    Rule(RuleLabel),
    Environment,
    /// The key `default_priority`.
    Default,
    BuiltIn,
    /// A request of root, or of the user that runs the daemon.
    Administrator(u32),
    /// The process could not be inspected in time, so its rules are not known.
    Unread,
}

impl From<RuleLabel> for SettingSource {
    fn from(label: RuleLabel) -> Self {
        Self::Rule(label)
    }
}

impl SettingSource {
    /// The source, if the owner may not exceed what it sets.
    pub fn binding(&self) -> Option<Self> {
        matches!(self, Self::Rule(_) | Self::Unread).then(|| self.clone())
    }
}

/// A setting with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    pub value: T,
    pub source: SettingSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Scheduled {
        priority: Sourced<Priority>,
        weight: Sourced<u32>,
        deadline: Option<Sourced<Duration>>,
        latency_budget: Option<Sourced<LatencyBudget>>,
    },
    /// A rule excludes it.
    Ignored(RuleLabel),
    /// No source has a setting for it.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub outcome: Outcome,
    /// What happens to the process while nothing names it.
    pub unmanaged: Unmanaged,
    /// The matching rule, if it has `trust_env = false`.
    pub distrusting: Option<RuleLabel>,
    /// GPU memory that the process needs, in bytes.
    pub memory: Option<Sourced<u64>>,
    /// Whether the process is evicted when processes with a higher priority need room.
    pub evictable: Option<Sourced<bool>>,
    /// Remarks for the operator, one sentence each.
    pub notes: Vec<String>,
}

/// Decides what a process gets. `may_raise` is usually the result of [`Accounts::may_raise`].
pub fn assign(
    config: &Config,
    attributes: &ProcessAttributes,
    accounts: &Accounts,
    may_raise: MayRaise,
) -> Assignment {
    let rule = config.rules.iter().find(|rule| rule.matches(attributes, accounts));
    let ruled = match rule.map(|rule| (rule.action, &rule.label)) {
        Some((Action::Ignore, label)) => {
            return Assignment::new(Outcome::Ignored(label.clone()));
        }
        Some((Action::Give(settings), _)) => settings,
        None => AttrSettings::default(),
    };
    let default_priority = config.scheduler.default_priority;
    let none = AttrSettings::default();
    let (asked, notes) = match (&attributes.environment, rule.filter(|rule| !rule.trust_env)) {
        (_, Some(rule)) => (
            none,
            vec![format!("Its environment is ignored: {} has trust_env = false.", rule.label)],
        ),
        (None, None) => (none, vec!["Its environment cannot be read.".to_owned()]),
        (Some(environment), None) => {
            PriorityCeiling { may_raise, default_priority }.apply(environment, &ruled)
        }
    };

    let unmanaged = rule.and_then(|rule| rule.unmanaged).unwrap_or(config.scheduler.unmanaged);
    let distrusting = rule.filter(|rule| !rule.trust_env).map(|rule| rule.label.clone());
    let of_rule =
        rule.map_or(SettingSource::BuiltIn, |rule| SettingSource::Rule(rule.label.clone()));
    let of_default =
        default_priority.map(|value| Sourced { value, source: SettingSource::Default });
    let is_known = !ruled.is_empty() || !asked.is_empty();
    if !is_known && of_default.is_none() {
        let unknown = Assignment::new(Outcome::Unknown);
        return Assignment { unmanaged, distrusting, notes, ..unknown };
    }
    let priority = first(ruled.priority, asked.priority, &of_rule);
    let weight = first(ruled.weight, asked.weight, &of_rule);
    let plain = SchedAttr::default();
    let outcome = Outcome::Scheduled {
        priority: priority.or(of_default).unwrap_or_else(|| built_in(plain.priority)),
        weight: weight.unwrap_or_else(|| built_in(plain.weight)),
        deadline: first(ruled.deadline, asked.deadline, &of_rule),
        latency_budget: first(ruled.latency_budget, asked.latency_budget, &of_rule),
    };
    let memory = first(ruled.memory, asked.memory, &of_rule);
    let evictable = first(ruled.evictable, asked.evictable, &of_rule);
    Assignment { outcome, unmanaged, distrusting, memory, evictable, notes }
}

/// The setting of the rule, or else that of the environment.
fn first<T>(ruled: Option<T>, asked: Option<T>, of_rule: &SettingSource) -> Option<Sourced<T>> {
    let ruled = ruled.map(|value| Sourced { value, source: of_rule.clone() });
    ruled.or_else(|| asked.map(|value| Sourced { value, source: SettingSource::Environment }))
}

fn built_in<T>(value: T) -> Sourced<T> {
    Sourced { value, source: SettingSource::BuiltIn }
}

/// How far a process may raise its own priority.
struct PriorityCeiling {
    may_raise: MayRaise,
    default_priority: Option<Priority>,
}

impl PriorityCeiling {
    /// The settings in the environment, limited, where the rule leaves them open.
    fn apply(
        &self,
        environment: &Environment,
        ruled: &AttrSettings,
    ) -> (AttrSettings, Vec<String>) {
        let (mut settings, mut notes) = environment::settings(environment);
        let Some(asked) = settings.priority.filter(|_| ruled.priority.is_none()) else {
            return (settings, notes);
        };
        let most = match self.may_raise {
            MayRaise::Root | MayRaise::GroupMember => Priority::MAX,
            MayRaise::No => open_to_all(self.default_priority),
        };
        if asked > most {
            settings.priority = Some(most);
            notes.push(format!(
                "{} asks for {asked} and gets {most}: a higher priority needs root or the group \
                 {RAISING_GROUP}.",
                environment::PRIORITY,
            ));
        } else if asked.class() == Class::High {
            match self.may_raise {
                MayRaise::Root => notes.push(format!("{asked} is allowed: its user is root.")),
                MayRaise::GroupMember => notes
                    .push(format!("{asked} is allowed: its user is in the group {RAISING_GROUP}.")),
                MayRaise::No => {}
            }
        }
        (settings, notes)
    }
}

/// The highest priority that every user may ask for: the top of the low class, or the default
/// priority if that is higher.
pub fn open_to_all(default_priority: Option<Priority>) -> Priority {
    default_priority.map_or(LOW_MAX, |level| level.max(LOW_MAX))
}

/// The top of the low class.
const LOW_MAX: Priority = match Priority::new(Priority::LEVELS / 2 - 1) {
    Some(priority) => priority,
    None => Priority::MIN,
};

impl Assignment {
    /// An assignment without remarks, of no rule that distrusts the environment.
    pub const fn new(outcome: Outcome) -> Self {
        Self {
            outcome,
            unmanaged: Unmanaged::Yield,
            distrusting: None,
            memory: None,
            evictable: None,
            notes: Vec::new(),
        }
    }

    /// What a process gets whose rules are not known, because it could not be inspected in time:
    /// the lowest priority, which its owner cannot raise.
    pub fn unread() -> Self {
        let priority = Sourced { value: Priority::MIN, source: SettingSource::Unread };
        let weight = built_in(SchedAttr::default().weight);
        Self::new(Outcome::Scheduled { priority, weight, deadline: None, latency_budget: None })
    }

    /// What in the configuration has the process scheduled: a rule or `default_priority`. `None` if
    /// only its environment does, or nothing.
    pub fn scheduled_by(&self) -> Option<SettingSource> {
        let Outcome::Scheduled { priority, weight, deadline, latency_budget } = &self.outcome
        else {
            return None;
        };
        let sources = [&priority.source, &weight.source].into_iter();
        let sources = sources.chain(deadline.as_ref().map(|given| &given.source));
        let sources = sources.chain(latency_budget.as_ref().map(|given| &given.source));
        let sources = sources.chain(self.memory.as_ref().map(|given| &given.source));
        let sources = sources.chain(self.evictable.as_ref().map(|given| &given.source));
        let rule = sources.clone().find_map(SettingSource::binding);
        rule.or_else(|| sources.clone().find(|source| **source == SettingSource::Default).cloned())
    }

    /// The scheduler's attributes. `None` if the process is not scheduled.
    pub fn attr(&self) -> Option<SchedAttr> {
        match &self.outcome {
            Outcome::Scheduled { priority, weight, deadline, latency_budget } => Some(SchedAttr {
                priority: priority.value,
                weight: weight.value,
                deadline: deadline.as_ref().map(|given| given.value),
                latency_budget: latency_budget
                    .as_ref()
                    .map_or(LatencyBudget::ZERO, |given| given.value),
                ..SchedAttr::default()
            }),
            Outcome::Ignored(_) | Outcome::Unknown => None,
        }
    }
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(label) => label.fmt(f),
            Self::Environment => f.write_str("its environment"),
            Self::Default => f.write_str("default_priority"),
            Self::BuiltIn => f.write_str("built in"),
            Self::Administrator(0) => f.write_str("root"),
            Self::Administrator(uid) => write!(f, "uid {uid}, which runs gpreemptd"),
            Self::Unread => f.write_str("gpreemptd until it has been inspected"),
        }
    }
}

impl fmt::Display for Assignment {
    /// One line, without the notes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Ignored(label) => write!(f, "not scheduled: {label}"),
            Outcome::Unknown if self.unmanaged == Unmanaged::Yield => f.write_str("normal"),
            Outcome::Unknown => f.write_str(
                "not scheduled: nothing sets a priority for it, and `unmanaged` is \"ignore\"",
            ),
            Outcome::Scheduled { priority, weight, deadline, latency_budget } => {
                write!(f, "priority {} ({})", priority.value, priority.source)?;
                if weight.source != SettingSource::BuiltIn {
                    write!(f, ", weight {} ({})", weight.value, weight.source)?;
                }
                if let Some(deadline) = deadline {
                    write!(f, ", deadline {} ({})", deadline.value, deadline.source)?;
                }
                if let Some(budget) = latency_budget {
                    write!(f, ", latency budget {} ({})", budget.value, budget.source)?;
                }
                if let Some(given) = &self.memory {
                    let memory = memory(given.value / 1_024);
                    write!(f, ", needs {memory} of GPU memory ({})", given.source)?;
                }
                if let Some(given) = &self.evictable {
                    let word = if given.value { "evictable" } else { "not evictable" };
                    write!(f, ", {word} ({})", given.source)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gpreempt_device::process::ProcessKey;

    use super::*;

    const RULES: &str = r#"
[[rule]]
name = "display"
command = "Xorg"
ignore = true

[[rule]]
name = "serving"
command = "serve"
priority = 12
weight = 5

[[rule]]
command = "distrusted"
weight = 2
trust_env = false

[[rule]]
command = "deadline"
deadline_us = 500

[[rule]]
command = "serve"
priority = 1
"#;

    fn process(command: &str, variables: &[(&str, &str)]) -> ProcessAttributes {
        let mut attributes = ProcessAttributes::unknown(ProcessKey { pid: 42, start_ticks: 7 });
        attributes.uid = Some(1000);
        attributes.command = Some(command.to_owned());
        attributes.environment = Some(variables.iter().copied().collect());
        attributes
    }

    fn assignment(
        head: &str,
        may: MayRaise,
        command: &str,
        variables: &[(&str, &str)],
    ) -> Assignment {
        let config = Config::parse("f", &format!("{head}{RULES}")).unwrap();
        assign(&config, &process(command, variables), &Accounts::default(), may)
    }

    fn shown(head: &str, command: &str, variables: &[(&str, &str)]) -> String {
        assignment(head, MayRaise::No, command, variables).to_string()
    }

    const DEFAULT: &str = "[scheduler]\ndefault_priority = 3\n";

    #[test]
    fn the_first_rule_that_matches_wins() {
        let expected =
            r#"priority 12 (rule 2 "serving" (line 7)), weight 5 (rule 2 "serving" (line 7))"#;
        assert_eq!(shown("", "serve", &[]), expected);
        assert_eq!(shown("", "serve", &[("GPREEMPT_PRIORITY", "1")]), expected);
        assert_eq!(shown(DEFAULT, "Xorg serve", &[]), "not scheduled: rule 1 \"display\" (line 4)");
    }

    #[test]
    fn the_environment_sets_what_the_rule_does_not() {
        let variables = [("GPREEMPT_PRIORITY", "6"), ("GPREEMPT_WEIGHT", "9")];
        let expected = "priority 6 (its environment), weight 9 (its environment), \
                    deadline 500us (rule 4 (line 20))";
        assert_eq!(shown(DEFAULT, "deadline", &variables), expected);
        let variables = [("GPREEMPT_DEADLINE_US", "70"), ("GPREEMPT_LATENCY_BUDGET", "20%")];
        let expected = "priority 3 (default_priority), deadline 70.0us (its environment), \
                        latency budget 20 % (its environment)";
        assert_eq!(shown(DEFAULT, "other", &variables), expected);
        let variables = [("GPREEMPT_MEMORY", "60GiB"), ("GPREEMPT_EVICTABLE", "1")];
        let expected = "priority 4 (built in), needs 60 GiB of GPU memory (its environment), \
                        evictable (its environment)";
        assert_eq!(shown("", "other", &variables), expected);
    }

    #[test]
    fn a_rule_may_distrust_the_environment() {
        let variables = [("GPREEMPT_PRIORITY", "6"), ("GPREEMPT_DEADLINE_US", "70")];
        let assignment = assignment("", MayRaise::Root, "distrusted", &variables);
        let expected = "priority 4 (built in), weight 2 (rule 3 (line 13))";
        assert_eq!(assignment.to_string(), expected);
        let note = "Its environment is ignored: rule 3 (line 13) has trust_env = false.";
        assert_eq!(assignment.notes, [note]);
    }

    #[test]
    fn a_process_without_settings_gets_the_default_or_is_not_scheduled() {
        assert_eq!(shown(DEFAULT, "other", &[]), "priority 3 (default_priority)");
        let unknown = assignment("", MayRaise::Root, "other", &[]);
        assert_eq!((unknown.attr(), &unknown.outcome), (None, &Outcome::Unknown));
        // A rule that has only trust_env = false sets nothing.
        let head = "[[rule]]\ncommand = \"quiet\"\ntrust_env = false\n";
        let unknown = assignment(head, MayRaise::Root, "quiet", &[("GPREEMPT_PRIORITY", "1")]);
        assert_eq!(unknown.outcome, Outcome::Unknown);
    }

    #[test]
    fn a_priority_above_seven_needs_root_or_the_group() {
        let ask = |head, may, level| {
            let assignment = assignment(head, may, "other", &[("GPREEMPT_PRIORITY", level)]);
            (assignment.attr().unwrap().priority.level(), assignment.notes.concat())
        };
        let lowered = "GPREEMPT_PRIORITY asks for 15 and gets 7: a higher priority needs root or \
                       the group gpreempt.";
        assert_eq!(ask("", MayRaise::No, "15"), (7, lowered.to_owned()));
        assert_eq!(ask("", MayRaise::No, "8").0, 7);
        assert_eq!(ask("", MayRaise::No, "7"), (7, String::new()));
        assert_eq!(ask("", MayRaise::Root, "15"), (15, "15 is allowed: its user is root.".into()));
        let member = "8 is allowed: its user is in the group gpreempt.";
        assert_eq!(ask("", MayRaise::GroupMember, "8"), (8, member.to_owned()));
        assert_eq!(ask("", MayRaise::GroupMember, "7"), (7, String::new()));
        // The default priority is open to every user.
        let head = "[scheduler]\ndefault_priority = 10\n";
        assert_eq!(ask(head, MayRaise::No, "9"), (9, String::new()));
        assert_eq!(ask(head, MayRaise::No, "11").0, 10);
    }

    #[test]
    fn bad_variables_count_as_none() {
        let assignment = assignment("", MayRaise::Root, "other", &[("GPREEMPT_PRIORITY", "max")]);
        assert_eq!(assignment.outcome, Outcome::Unknown);
        assert!(assignment.notes[0].starts_with("GPREEMPT_PRIORITY is \"max\" and was ignored;"));
    }

    #[test]
    fn an_unreadable_environment_is_noted() {
        let config = Config::parse("f", DEFAULT).unwrap();
        let attributes = ProcessAttributes::unknown(ProcessKey { pid: 42, start_ticks: 7 });
        let assignment = assign(&config, &attributes, &Accounts::default(), MayRaise::No);
        assert_eq!(assignment.to_string(), "priority 3 (default_priority)");
        assert_eq!(assignment.notes, ["Its environment cannot be read."]);
    }

    #[test]
    fn the_scheduler_gets_the_assigned_attributes() {
        let variables = [("GPREEMPT_DEADLINE_US", "70"), ("GPREEMPT_LATENCY_BUDGET", "20%")];
        let attr = assignment("", MayRaise::No, "serve", &variables).attr();
        let expected = SchedAttr {
            priority: Priority::new(12).unwrap(),
            weight: 5,
            deadline: Some(Duration::from_micros(70)),
            latency_budget: LatencyBudget::from_percent(20).unwrap(),
            ..SchedAttr::default()
        };
        assert_eq!(attr, Some(expected));
    }
}
