//! Processes that use a device, and the rules and user settings that apply to them.
//!
//! [`Processes`] decides what each process should have (a rule, a registration, a user's setting, a
//! suspension) and brings the scheduler in line with it. It reaches the other jobs through
//! [`Context`] only.

pub(crate) mod changes;
pub(crate) mod inspection_queue;
pub(crate) mod process_table;
pub(crate) mod registrations;
pub(crate) mod rules;
pub(crate) mod saved_settings;
pub(crate) mod saving;
pub(crate) mod tracked_process;
pub(crate) mod tracking;

use std::os::fd::OwnedFd;

use gpreempt_device::process::ProcessKey;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::devices::Devices;
use super::poller::{Poller, Source};
use super::telemetry::Telemetry;
use super::undo::guard::Guard;
use inspection_queue::Backlog;
use process_table::Roster;
use registrations::Registrations;
use rules::Rules;
use saved_settings::Orders;

/// The processes that use a device, and what they should have.
#[derive(Debug)]
pub(crate) struct Processes {
    pub(crate) rules: Rules,
    pub(crate) roster: Roster,
    /// Processes whose children get a setting as soon as they use a device.
    pub(crate) registrations: Registrations,
    /// Users' settings, kept across restarts of the daemon.
    pub(crate) orders: Orders,
    /// Processes that have to be inspected.
    pub(crate) backlog: Backlog,
    /// The last number that was given to a watched process.
    last_watch: u64,
}

/// The other jobs, as far as a change of a process concerns them.
pub(crate) struct Context<'a> {
    pub(crate) devices: &'a mut Devices,
    pub(crate) telemetry: &'a mut Telemetry,
    pub(crate) guard: &'a Guard,
    pub(crate) poller: &'a Poller,
}

impl Processes {
    pub(crate) fn new(rules: Rules, orders: Orders) -> Self {
        Self {
            rules,
            roster: Roster::default(),
            registrations: Registrations::default(),
            orders,
            backlog: Backlog::default(),
            last_watch: 0,
        }
    }

    /// A descriptor in the epoll set that is readable when a process has ended, and its number
    /// there. None if the process cannot be watched.
    fn watch(&mut self, key: ProcessKey, poller: &Poller) -> (Option<OwnedFd>, u64) {
        self.last_watch += 1;
        let watch = self.last_watch;
        let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The kernel may have given the pid to another process before it was opened.
        let pidfd = pidfd.filter(|_| key.check().is_ok());
        let watched = pidfd.filter(|fd| poller.watch(fd, Source::Process(watch)).is_ok());
        (watched, watch)
    }

    /// A watched process has ended.
    pub(crate) fn take_end(&mut self, watch: u64, context: &mut Context<'_>) {
        if let Some(key) = self.roster.watched(watch) {
            self.part(key, context);
        } else {
            self.registrations.remove_watched(watch);
        }
    }

    /// Forgets processes that ended and could not be watched, and kept settings that are over.
    pub(crate) fn sweep(&mut self, now_ns: u64, context: &mut Context<'_>) {
        self.registrations.sweep();
        let unwatched = self.roster.members().filter(|member| member.pidfd.is_none());
        let ended = unwatched.filter(|member| member.key.check().is_err());
        for key in ended.map(|member| member.key).collect::<Vec<_>>() {
            self.part(key, context);
        }
        self.orders.sweep(now_ns);
    }
}
