//! What an operator says about certain processes.
//!
//! All conditions of a rule must hold, and of the rules that match a process only the first
//! counts, so reading the file from the top says what happens.

mod condition;

use std::fmt;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

pub use condition::{Condition, GpuPattern, User};

use crate::accounts::Accounts;
use crate::facts::ProcessFacts;

/// What a process may be given; what is not said here is said elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// How important it is.
    pub priority: Option<Priority>,
    /// Its part under the fair policy: 1 to [`Wish::WEIGHT_MAX`].
    pub weight: Option<u32>,
    /// How long after its arrival a request should be done: up to [`Wish::DEADLINE_US_MAX`].
    pub deadline: Option<Duration>,
}

impl Wish {
    /// The greatest weight.
    pub const WEIGHT_MAX: u32 = 1_000;
    /// The longest deadline: an hour.
    pub const DEADLINE_US_MAX: u64 = 3_600_000_000;

    /// Whether nothing is wished for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What becomes of a process that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is left alone, whatever else is said of it.
    Ignore,
    /// It is given this; the environment and the defaults say the rest.
    Give(Wish),
}

/// What explanations call a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLabel {
    /// Its place among the rules, counted from 1.
    pub number: usize,
    /// What the operator calls it.
    pub name: Option<String>,
    /// Where in the file it is, counted from 1.
    pub line: usize,
}

impl fmt::Display for RuleLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}", self.number)?;
        if let Some(name) = &self.name {
            write!(f, " {name:?}")?;
        }
        write!(f, " (line {})", self.line)
    }
}

/// One `[[rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What to call it.
    pub label: RuleLabel,
    /// What must be so, all of it; at least one thing.
    pub conditions: Vec<Condition>,
    /// What happens then.
    pub action: Action,
    /// Whether the process's own environment may say what the rule does not.
    pub trust_env: bool,
}

impl Rule {
    /// Whether the rule is about this process.
    pub fn matches(&self, facts: &ProcessFacts, accounts: &Accounts) -> bool {
        self.conditions.iter().all(|condition| condition.holds(facts, accounts))
    }

    /// The conditions in words.
    pub fn conditions_text(&self) -> String {
        let words: Vec<String> = self.conditions.iter().map(ToString::to_string).collect();
        words.join(" and ")
    }
}

#[cfg(test)]
mod tests;
