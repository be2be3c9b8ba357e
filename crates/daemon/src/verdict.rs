//! What a process gets, and why.
//!
//! Three voices speak, in this order: the first rule that matches, the process's own environment,
//! the default. Each is asked only for what those before it left open. If none of them says
//! anything the process is left alone.

use std::fmt;

use gpreempt_core::event::SchedAttr;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::time::Duration;

use crate::accounts::{Accounts, MayRaise, RAISING_GROUP};
use crate::config::Config;
use crate::environment;
use crate::facts::{Environment, ProcessFacts};
use crate::rule::{Action, RuleLabel, Wish};

/// Who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A rule.
    Rule(RuleLabel),
    /// The process's own environment.
    Environment,
    /// The operator, for all that are not mentioned.
    Default,
    /// Nobody.
    BuiltIn,
}

/// Something, and who said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given<T> {
    /// What.
    pub value: T,
    /// Who said so.
    pub source: Source,
}

/// What becomes of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is scheduled.
    Scheduled {
        /// How important it is.
        priority: Given<Priority>,
        /// Its part under the fair policy.
        weight: Given<u32>,
        /// How long after its arrival a request should be done.
        deadline: Option<Given<Duration>>,
    },
    /// A rule says that it is left alone.
    Ignored(RuleLabel),
    /// Nobody says anything, so it is left alone.
    Unknown,
}

/// What a process gets, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What becomes of it.
    pub outcome: Outcome,
    /// What else somebody should know: one sentence each.
    pub notes: Vec<String>,
}

/// What this process gets. Whether its user may raise processes above 7 is for the caller to find
/// out; usually [`Accounts::may_raise`] says so.
pub fn judge(
    config: &Config,
    facts: &ProcessFacts,
    accounts: &Accounts,
    may_raise: MayRaise,
) -> Verdict {
    let rule = config.rules.iter().find(|rule| rule.matches(facts, accounts));
    let ruled = match rule.map(|rule| (rule.action, &rule.label)) {
        Some((Action::Ignore, label)) => {
            return Verdict { outcome: Outcome::Ignored(label.clone()), notes: Vec::new() };
        }
        Some((Action::Give(wish), _)) => wish,
        None => Wish::default(),
    };
    let default_priority = config.scheduler.default_priority;
    let limit = Limit { may_raise, default_priority };
    let (wished, notes) = match (&facts.environment, rule.filter(|rule| !rule.trust_env)) {
        (_, Some(rule)) => (
            Wish::default(),
            vec![format!(
                "Its environment is not listened to: {} says trust_env = false.",
                rule.label
            )],
        ),
        (None, None) => (Wish::default(), vec!["Its environment cannot be read.".to_owned()]),
        (Some(environment), None) => limit.apply(environment, &ruled),
    };

    let of_rule = rule.map_or(Source::BuiltIn, |rule| Source::Rule(rule.label.clone()));
    let of_default = default_priority.map(|value| Given { value, source: Source::Default });
    let is_known = !ruled.is_empty() || !wished.is_empty();
    if !is_known && of_default.is_none() {
        return Verdict { outcome: Outcome::Unknown, notes };
    }
    let priority = first(ruled.priority, wished.priority, &of_rule);
    let weight = first(ruled.weight, wished.weight, &of_rule);
    let plain = SchedAttr::default();
    let outcome = Outcome::Scheduled {
        priority: priority.or(of_default).unwrap_or_else(|| built_in(plain.priority)),
        weight: weight.unwrap_or_else(|| built_in(plain.weight)),
        deadline: first(ruled.deadline, wished.deadline, &of_rule),
    };
    Verdict { outcome, notes }
}

/// What the rule says, or failing that the environment.
fn first<T>(ruled: Option<T>, wished: Option<T>, of_rule: &Source) -> Option<Given<T>> {
    let ruled = ruled.map(|value| Given { value, source: of_rule.clone() });
    ruled.or_else(|| wished.map(|value| Given { value, source: Source::Environment }))
}

fn built_in<T>(value: T) -> Given<T> {
    Given { value, source: Source::BuiltIn }
}

/// How far a process may raise itself.
struct Limit {
    may_raise: MayRaise,
    default_priority: Option<Priority>,
}

impl Limit {
    /// What the environment asks for, as far as it may, and as far as the rule leaves it open.
    fn apply(&self, environment: &Environment, ruled: &Wish) -> (Wish, Vec<String>) {
        let (mut wish, mut notes) = environment::wish(environment);
        let Some(asked) = wish.priority.filter(|_| ruled.priority.is_none()) else {
            return (wish, notes);
        };
        let most = match self.may_raise {
            MayRaise::Root | MayRaise::Member => Priority::MAX,
            MayRaise::No => open_to_all(self.default_priority),
        };
        if asked > most {
            wish.priority = Some(most);
            notes.push(format!(
                "{} asks for {asked} and gets {most}: above that is for root and the group \
                 {RAISING_GROUP}, and its user is neither.",
                environment::PRIORITY,
            ));
        } else if asked.class() == Class::High {
            match self.may_raise {
                MayRaise::Root => notes.push(format!("{asked} is allowed: its user is root.")),
                MayRaise::Member => notes
                    .push(format!("{asked} is allowed: its user is in the group {RAISING_GROUP}.")),
                MayRaise::No => {}
            }
        }
        (wish, notes)
    }
}

/// The highest priority that a process of any user may ask for: the top of the low class, or what
/// everybody gets if that is higher, since it is no raise then.
pub fn open_to_all(default_priority: Option<Priority>) -> Priority {
    default_priority.map_or(LOW_MAX, |level| level.max(LOW_MAX))
}

/// The top of the low class.
const LOW_MAX: Priority = match Priority::new(Priority::LEVELS / 2 - 1) {
    Some(priority) => priority,
    None => Priority::MIN,
};

impl Verdict {
    /// What the scheduler is told; nothing if the process is left alone.
    pub fn attr(&self) -> Option<SchedAttr> {
        match &self.outcome {
            Outcome::Scheduled { priority, weight, deadline } => Some(SchedAttr {
                priority: priority.value,
                weight: weight.value,
                deadline: deadline.as_ref().map(|given| given.value),
                ..SchedAttr::default()
            }),
            Outcome::Ignored(_) | Outcome::Unknown => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(label) => label.fmt(f),
            Self::Environment => f.write_str("its environment"),
            Self::Default => f.write_str("default_priority"),
            Self::BuiltIn => f.write_str("built in"),
        }
    }
}

impl fmt::Display for Verdict {
    /// One line, without the notes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Ignored(label) => write!(f, "left alone: {label}"),
            Outcome::Unknown => f.write_str(
                "left alone: neither a rule nor its environment nor default_priority \
                 says anything",
            ),
            Outcome::Scheduled { priority, weight, deadline } => {
                write!(f, "priority {} ({})", priority.value, priority.source)?;
                if weight.source != Source::BuiltIn {
                    write!(f, ", weight {} ({})", weight.value, weight.source)?;
                }
                if let Some(deadline) = deadline {
                    write!(f, ", deadline {} ({})", deadline.value, deadline.source)?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests;
