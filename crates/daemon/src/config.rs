//! The operator's file, `/etc/gpreempt/config.toml`.
//!
//! A file that is empty, or not there, is the default. `docs/configuration.md` is the manual and
//! `deploy/config.toml` the default written out; tests keep both true.

mod load;
mod metrics;
mod rules;
pub(crate) mod scheduler;
mod service;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use gpreempt_core::config::Config as CoreConfig;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

pub use load::LoadError;
pub use service::LogLevel;

use crate::accounts::Accounts;
use crate::environment;
use crate::facts::ProcessFacts;
use crate::fields::{Field, Fields, ReadError, with_root};
use crate::rule::{Condition, Rule};
use crate::verdict::{Verdict, judge};

/// Where the file is unless somebody says otherwise.
pub const DEFAULT_PATH: &str = "/etc/gpreempt/config.toml";

const KEYS: &[&str] = &["scheduler", "metrics", "daemon", "rule"];

/// All that an operator may decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Who runs.
    pub scheduler: SchedulerConfig,
    /// Who may read what is going on.
    pub metrics: MetricsConfig,
    /// How the service works.
    pub service: ServiceConfig,
    /// What certain processes get, in order.
    pub rules: Vec<Rule>,
}

/// `[scheduler]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// What the scheduler itself is told.
    pub core: CoreConfig,
    /// What a process gets of which nobody says anything; none means that it is left alone.
    pub default_priority: Option<Priority>,
    /// Whether to change anything through a driver version that was never tried on hardware.
    pub allow_untested_driver: bool,
    /// Whether a device is held for important tasks across their gaps.
    pub hold: bool,
    /// For how long without new work, at the most.
    pub hold_max: Duration,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            core: CoreConfig::default(),
            default_priority: None,
            allow_untested_driver: false,
            hold: true,
            hold_max: scheduler::HOLD_MAX,
        }
    }
}

/// `[metrics]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Where metrics are served, if at all. Beyond loopback only if `allow_remote` was set.
    pub listen: Option<SocketAddr>,
    /// Whether other machines may ask.
    pub allow_remote: bool,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// Where programs reach the service.
    pub socket: PathBuf,
    /// How often it looks, at the least, for processes that started or stopped using a GPU.
    pub rescan: Duration,
    /// How much it writes into its log.
    pub log: LogLevel,
}

impl Config {
    /// What a file says. `file_name` is what errors call it.
    ///
    /// # Errors
    /// The first thing wrong with the text: one line with the file, the line and the field.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, ReadError> {
        with_root(file_name, text, KEYS, |fields| {
            Ok(Self {
                scheduler: table(fields, "scheduler", scheduler::KEYS, scheduler::read)?,
                metrics: table(fields, "metrics", metrics::KEYS, metrics::read)?,
                service: table(fields, "daemon", service::KEYS, service::read)?,
                rules: rules::read(fields)?,
            })
        })
    }

    /// The variables of a process that matter here, and the only ones that should be kept.
    pub fn environment_names(&self) -> BTreeSet<String> {
        let conditions = self.rules.iter().flat_map(|rule| &rule.conditions);
        let asked_for = conditions.filter_map(|condition| match condition {
            Condition::Env { name, .. } => Some(name.clone()),
            Condition::User(_)
            | Condition::Executable(_)
            | Condition::Command(_)
            | Condition::Cgroup(_)
            | Condition::Container(_)
            | Condition::Gpu(_) => None,
        });
        asked_for.chain(environment::VARIABLES.map(str::to_owned)).collect()
    }

    /// Whether any rule is about certain GPUs, so that it matters which a process uses.
    pub fn mentions_gpus(&self) -> bool {
        let mut conditions = self.rules.iter().flat_map(|rule| &rule.conditions);
        conditions.any(|condition| matches!(condition, Condition::Gpu(_)))
    }

    /// What a process gets, and why; its user's rights are looked up.
    pub fn judge(&self, facts: &ProcessFacts, accounts: &Accounts) -> Verdict {
        let gids = facts.gids.as_deref().unwrap_or_default();
        judge(self, facts, accounts, accounts.may_raise(facts.uid, gids))
    }
}

/// Every table a file may have and the keys in it, so that the manual can be checked.
pub fn keys() -> [(&'static str, &'static [&'static str]); 5] {
    [
        ("scheduler", scheduler::KEYS),
        ("scheduler.aging", scheduler::AGING_KEYS),
        ("metrics", metrics::KEYS),
        ("daemon", service::KEYS),
        ("rule", rules::KEYS),
    ]
}

/// The table `key`, or what it says when it is not there.
fn table<T: Default>(
    fields: &Fields<'_>,
    key: &'static str,
    known: &'static [&'static str],
    read: impl FnOnce(&Fields<'_>) -> Result<T, ReadError>,
) -> Result<T, ReadError> {
    fields.optional(key).map_or_else(|| Ok(T::default()), |field| read(&field.table(known)?))
}

/// The priority that `field` is.
fn priority(field: &Field<'_>) -> Result<Priority, ReadError> {
    let level = field.u64(0..=u64::from(Priority::MAX.level()))?;
    let level = u8::try_from(level).ok().and_then(Priority::new);
    Ok(level.expect("the range is that of the priorities"))
}

#[cfg(test)]
mod tests;
