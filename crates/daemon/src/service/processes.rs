//! Processes that use a device, and the rules and user settings that apply to them.
//!
//! [`Processes`] decides what each process should have (by a rule, a registration, a user's
//! setting, a suspension) and updates the scheduler. It reaches the other jobs through [`Context`]
//! only.

pub(crate) mod changes;
pub(crate) mod client_settings;
pub(crate) mod inspection;
pub(crate) mod inspection_queue;
pub(crate) mod normal;
pub(crate) mod process_table;
pub(crate) mod registrations;
pub(crate) mod saved_settings;
pub(crate) mod tracking;

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpreempt_core::priority::{Class, Priority};
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_wire::process::SchedAttrChange;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::clients::request_error::RequestError;
use super::devices::Devices;
use super::poller::{PollSource, Poller};
use super::private::PrivateRules;
use super::telemetry::Telemetry;
use super::undo::Recovery;
use crate::accounts::Accounts;
use crate::config::Config;
use inspection::{KnownFacts, ProcessReads};
use inspection_queue::InspectionQueue;
use normal::Yielding;
use process_table::ProcessTable;
use registrations::Registrations;
use saved_settings::SavedSettings;

#[derive(Debug)]
pub(crate) struct Processes {
    /// Threads that inspect processes share them.
    pub(crate) rules: Arc<Rules>,
    pub(crate) table: ProcessTable,
    pub(crate) registrations: Registrations,
    pub(crate) saved: SavedSettings,
    pub(crate) inspections: InspectionQueue,
    pub(crate) yielding: Yielding,
    /// The last number that was given to a watched process.
    last_watch: u64,
}

/// The other jobs, as far as a change of a process concerns them.
pub(crate) struct Context<'a> {
    pub(crate) devices: &'a mut Devices,
    pub(crate) telemetry: &'a mut Telemetry,
    pub(crate) recovery: &'a Recovery,
    pub(crate) poller: &'a Poller,
    pub(crate) reads: &'a mut ProcessReads,
    /// What was read for the request that is served.
    pub(crate) facts: &'a KnownFacts,
}

impl Processes {
    pub(crate) fn new(rules: Rules, saved: SavedSettings) -> Self {
        Self {
            rules: Arc::new(rules),
            table: ProcessTable::default(),
            registrations: Registrations::default(),
            saved,
            inspections: InspectionQueue::default(),
            yielding: Yielding::default(),
            last_watch: 0,
        }
    }

    /// Adds a pidfd to the epoll set that becomes readable when the process ends. `None` if the
    /// process cannot be watched.
    fn watch(&mut self, key: ProcessKey, poller: &Poller) -> (Option<OwnedFd>, u64) {
        self.last_watch += 1;
        let watch = self.last_watch;
        let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The kernel may have reused the pid before it was opened.
        let pidfd = pidfd.filter(|_| key.check().is_ok());
        let watched = pidfd.filter(|fd| poller.watch(fd, PollSource::Process(watch)).is_ok());
        (watched, watch)
    }

    /// A watched process has ended.
    pub(crate) fn take_end(&mut self, watch: u64, context: &mut Context<'_>) {
        if let Some(key) = self.table.watched(watch) {
            self.untrack(key, context);
        } else {
            self.registrations.remove_watched(watch);
        }
    }

    /// Forgets ended processes that could not be watched, and saved settings that have expired.
    pub(crate) fn sweep(&mut self, now_ns: u64, context: &mut Context<'_>) {
        self.registrations.sweep();
        let unwatched = self.table.iter().filter(|process| process.pidfd.is_none());
        let ended = unwatched.filter(|process| process.key.check().is_err());
        for key in ended.map(|process| process.key).collect::<Vec<_>>() {
            self.untrack(key, context);
        }
        self.saved.sweep(now_ns);
    }
}

/// The configuration in force, and the data its rules are evaluated with.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) config: Config,
    pub(crate) accounts: Accounts,
    /// The variables that rules read from the environment of a process.
    environment_names: BTreeSet<String>,
    /// Set where the service is a private session of a command.
    pub(crate) private: Option<PrivateRules>,
}

impl Rules {
    pub(crate) fn new(config: Config, accounts: Accounts) -> Self {
        let environment_names = config.environment_names();
        Self { config, accounts, environment_names, private: None }
    }

    /// The rules of a private session: its command names the processes, so no environment is read.
    pub(crate) fn of_private(config: Config, accounts: Accounts, private: PrivateRules) -> Self {
        let environment_names = BTreeSet::new();
        Self { config, accounts, environment_names, private: Some(private) }
    }

    /// Refuses a priority for a process that drives a display, in a private session.
    pub(crate) fn check_display(
        &self,
        key: ProcessKey,
        facts: &KnownFacts,
    ) -> Result<(), RequestError> {
        if self.private.is_some() && facts.of(key)?.drives_display {
            return Err(RequestError::PriorityOnDisplay(key));
        }
        Ok(())
    }

    /// Refuses a high priority for a client of an MPS server. Facts are read only for those.
    fn check_mps(
        key: ProcessKey,
        change: &SchedAttrChange,
        facts: &KnownFacts,
    ) -> Result<(), RequestError> {
        if change.priority.is_none_or(|priority| priority.class() == Class::Low) {
            return Ok(());
        }
        match facts.of(key)?.mps_control {
            Some(control) => Err(RequestError::HighPriorityOfMpsClient { key, control }),
            None => Ok(()),
        }
    }

    /// Whether a rule depends on the devices that a process uses.
    pub(crate) fn mention_gpus(&self) -> bool {
        self.config.mentions_gpus()
    }

    /// The priority of processes that no rule matches.
    pub(crate) const fn default_priority(&self) -> Option<Priority> {
        self.config.scheduler.default_priority
    }
}

/// Displays a process as `name (pid)`, and as `process pid` if it has ended.
pub(crate) struct Named(pub(crate) ProcessKey);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.0.pid;
        match ProcessInfo::read(pid) {
            Ok(info) if info.key == self.0 => write!(f, "{} ({pid})", info.name),
            Ok(_) | Err(_) => write!(f, "process {pid}"),
        }
    }
}
