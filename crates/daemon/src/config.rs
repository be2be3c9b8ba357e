//! The daemon's configuration, `/etc/gpreempt/config.toml`: what it may contain, and its defaults.
//!
//! An empty file is the default configuration. `docs/reference/configuration.md` is the manual and
//! `deploy/config.toml` the default written out; tests compare both with this module. The module
//! reads a file once and as a whole; [`crate::service`] decides when to read it again.

mod read;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gpreempt_core::config::Config as CoreConfig;
use gpreempt_core::hold::HoldLimits;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use rustix::fs::OFlags;
use serde::Deserialize;

pub use read::keys;

use crate::accounts::Accounts;
use crate::assignment::{Assignment, assign};
use crate::environment;
use crate::fields::{FILE_BYTES_MAX, ReadError, decode_utf8};
use crate::process_attributes::ProcessAttributes;
use crate::rule::{Condition, Rule};

/// The file that is read without `--config`.
pub const DEFAULT_PATH: &str = "/etc/gpreempt/config.toml";

/// The longest of the scheduler's own times: 10 s.
pub(crate) const MS_MAX: u64 = 10_000;
/// The longest times of aging: an hour.
pub(crate) const AGING_MS_MAX: u64 = 3_600_000;

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub scheduler: SchedulerConfig,
    pub metrics: MetricsConfig,
    /// `[daemon]`.
    pub service: ServiceConfig,
    /// In the order of the file: the first rule that matches a process counts.
    pub rules: Vec<Rule>,
}

/// `[scheduler]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    pub core: CoreConfig,
    /// The priority of processes that no rule matches; without one `unmanaged` applies.
    pub default_priority: Option<Priority>,
    /// What happens to processes that nothing names, unless a rule says otherwise.
    pub unmanaged: Unmanaged,
    /// Whether to change GPU settings through a driver version that was never tested.
    pub allow_untested_driver: bool,
    /// Whether the GPU is kept reserved for high-priority processes between their kernels.
    pub hold: bool,
    pub hold_limits: HoldLimits,
    /// How long evictable processes that do not fit into the memory of a GPU together have it in
    /// turn; without one they take no turns.
    pub swap_turn: Option<Duration>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            core: CoreConfig::default(),
            default_priority: None,
            unmanaged: Unmanaged::default(),
            allow_untested_driver: false,
            hold: true,
            hold_limits: HoldLimits::default(),
            swap_turn: None,
        }
    }
}

/// What happens to a process that neither a rule nor a command nor its environment names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unmanaged {
    /// It is *normal*: preempted while a high-priority process is active on its GPU.
    #[default]
    Yield,
    /// It is never changed.
    Ignore,
}

impl Unmanaged {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Yield => "yield",
            Self::Ignore => "ignore",
        }
    }
}

/// `[metrics]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsConfig {
    /// The address of the Prometheus metrics. Not on loopback only if `allow_remote` is set.
    pub listen: Option<SocketAddr>,
    pub allow_remote: bool,
    /// Host names under which clients may ask for metrics.
    pub hosts: Vec<String>,
    /// What has lines of its own.
    pub lines_for: LinesFor,
    /// Whether the live page is served beside the metrics; none: on loopback only.
    pub page: Option<bool>,
}

impl MetricsConfig {
    pub(crate) fn shows_page(&self) -> bool {
        let is_local = self.listen.is_some_and(|address| address.ip().to_canonical().is_loopback());
        self.page.unwrap_or(is_local)
    }
}

/// What has lines of its own in the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinesFor {
    /// Every process, with its pid.
    #[default]
    Process,
    /// The processes with the same name, user, container, pod and job together.
    Name,
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    pub socket: PathBuf,
    /// The longest time between two searches for processes that started or stopped using a GPU.
    pub rescan: Duration,
    /// Queues of one user that are scheduled at most; root's are not limited.
    pub queues_per_user: usize,
    pub log: LogLevel,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/gpreempt/gpreemptd.sock"),
            rescan: Duration::from_millis(5_000),
            // Eight queues in each of 32 processes. Reading the rings of twice as many took the
            // daemon a fifth of a core.
            queues_per_user: 256,
            log: LogLevel::default(),
        }
    }
}

/// Which messages the daemon logs. Each level includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    /// Changes of settings and processes.
    #[default]
    Info,
    /// Every decision of the scheduler.
    Debug,
    /// Every event of the scheduler.
    Trace,
}

impl LogLevel {
    /// Every level, the quietest first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{}: there is no such file; create it, or give another with --config", .0.display())]
    Missing(PathBuf),
    #[error("{}: cannot be read: {}", .0.display(), .1)]
    Unreadable(PathBuf, io::Error),
    #[error(transparent)]
    Wrong(#[from] ReadError),
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The file does not exist, cannot be read or is wrong: one line each.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let unreadable = |error: io::Error| match error.kind() == io::ErrorKind::NotFound {
            true => LoadError::Missing(path.to_owned()),
            false => LoadError::Unreadable(path.to_owned(), error),
        };
        let file = open(path).map_err(unreadable)?;
        // One byte more than is allowed, so that a file that is too large is seen to be.
        let limit = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
        let name = path.to_string_lossy();
        Ok(Self::parse(&name, &decode_utf8(&name, bytes)?)?)
    }

    /// The environment variables of a process that rules and defaults use; no others are kept.
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

    /// Whether a rule has a condition on the GPUs that a process uses.
    pub fn mentions_gpus(&self) -> bool {
        let mut conditions = self.rules.iter().flat_map(|rule| &rule.conditions);
        conditions.any(|condition| matches!(condition, Condition::Gpu(_)))
    }

    /// The attributes of a process and their origin; the rights of its user are looked up.
    pub fn assign(&self, facts: &ProcessAttributes, accounts: &Accounts) -> Assignment {
        let gids = facts.gids.as_deref().unwrap_or_default();
        assign(self, facts, accounts, accounts.may_raise(facts.uid, gids))
    }
}

/// Opens a file, but no pipe: the daemon must not wait for a writer, and a pipe has other contents
/// when the configuration is read again.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is a pipe; write it into a file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
