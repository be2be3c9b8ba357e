//! The daemon: one loop.
//!
//! Everything it waits for is in one epoll set: clients, the clock, signals, workers of devices,
//! processes that end. Whatever it is, it is taken in, then the scheduler makes a step, then the
//! loop waits again. Nothing in it blocks: devices have threads of their own, and sockets that
//! cannot take more are told later.

mod alarm;
mod allowance;
mod amd;
mod backends;
mod backlog;
mod chores;
mod events;
mod failure;
#[cfg(test)]
mod fake;
mod finder;
mod gate;
mod guard;
mod hints;
mod history;
mod lock;
mod log;
mod member;
mod memory;
mod notify;
mod orders;
mod permission;
mod policy;
mod poller;
mod private;
mod problems;
mod publish;
mod punctuality;
mod queue_suspensions;
mod refused;
mod registrations;
mod renewal;
mod requests;
mod roster;
mod scrape;
mod sessions;
mod setup;
mod signals;
mod snapshot;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use gpreempt_core::driver::Driver;
use gpreempt_core::time::Duration;
use gpreempt_device::controller::Waker;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_wire::event::Event as WireEvent;

use crate::accounts::Accounts;
use crate::config::Config;
use alarm::Alarm;
use allowance::{Allowance, Work};
use backends::Backends;
use backlog::Backlog;
use events::Chronicle;
pub use failure::Failure;
pub use gate::{GateError, Passed, driver_for_changes, for_private_session};
use guard::Guard;
use history::History;
pub use lock::Owner;
use log::Log;
use notify::Notifier;
use orders::Orders;
use poller::{Poller, Source};
pub use private::{PrivateOptions, PrivateService};
use problems::Problems;
use punctuality::{Punctuality, processor_time};
use queue_suspensions::QueueSuspensions;
use registrations::Registrations;
use roster::Roster;
use scrape::Scrape;
use sessions::Sessions;
use setup::Host;
use signals::Signals;
use snapshot::instant;

/// What a daemon is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The configuration, if not the usual file.
    pub config: Option<PathBuf>,
    /// Where to listen, if not as configured.
    pub socket: Option<PathBuf>,
    /// Where the journal is, if not in the usual folder.
    pub state: Option<PathBuf>,
    /// Emulated GPUs to schedule, by the sockets of their emulators.
    pub emulated: Vec<PathBuf>,
    /// Emulated AMD GPUs to schedule, by the folders of their KFD.
    pub emulated_kfd: Vec<PathBuf>,
    /// Whether to schedule NVIDIA GPUs.
    pub use_nvidia: bool,
    /// Whether to schedule AMD GPUs.
    pub use_amd: bool,
    /// The command that the service runs in, if it is no daemon: see [`PrivateService`].
    pub private: Option<PrivateOptions>,
}

/// How often the scheduler makes a step in one turn because the last one led to something.
const STEPS_MAX: usize = 4;
/// How long the loop sleeps when nobody has a queue.
const SLEEP_IDLE_NS: u64 = 250_000_000;
/// How long it sleeps while a page is looked at without being woken.
const SLEEP_RESTLESS_NS: u64 = 1_000_000;

/// A daemon.
#[derive(Debug)]
struct Service {
    options: Options,
    config: Config,
    accounts: Accounts,
    /// The variables that are read of the environment of processes.
    environment_names: BTreeSet<String>,
    own_uid: u32,
    started_ns: u64,
    log: Log,
    notifier: Notifier,
    poller: Poller,
    alarm: Alarm,
    signals: Signals,
    waker: Waker,
    socket: PathBuf,
    driver: Driver,
    backends: Backends,
    roster: Roster,
    registrations: Registrations,
    orders: Orders,
    sessions: Sessions,
    queue_suspensions: QueueSuspensions,
    /// Processes that have to be looked into.
    backlog: Backlog,
    /// What this turn may still take on.
    allowance: Allowance,
    scrape: Option<Scrape>,
    guard: Guard,
    chronicle: Chronicle,
    /// What happened to processes since followers were last told.
    untold: Vec<WireEvent>,
    history: History,
    problems: Problems,
    turns: u64,
    punctuality: Punctuality,
    /// The last number that a watched process was given.
    last_watch: u64,
    chores_at_ns: u64,
    watchdog_at_ns: u64,
    /// Something was said to the devices that the scheduler has not taken in yet.
    is_changed: bool,
    is_stopping: bool,
}

/// Runs a daemon until it is told to end.
///
/// # Errors
/// Why it could not start, or could not go on; one sentence. What it changed is undone.
pub fn run(options: Options) -> Result<(), Failure> {
    let mut service = Service::start(options, Host::Program)?;
    let kinds = service.backends.kinds().join(", ");
    let kinds = if kinds.is_empty() { "no devices".to_owned() } else { kinds };
    let socket = service.socket.display().to_string();
    service.log.info(format_args!("ready at {socket}: {kinds}"));
    service.notifier.ready(&format!("schedules {kinds}"));
    let result = service.turn().and_then(|()| service.serve());
    Ok(service.stop(result)?)
}

impl Service {
    fn serve(&mut self) -> Result<(), String> {
        while !self.is_stopping {
            let at_most = self.alarm.left(monotonic_ns());
            let ready = self.poller.wait(at_most).map_err(|error| error.to_string())?;
            let interval = self.driver.scheduler().config().interval;
            self.punctuality.begin(processor_time(), interval);
            if ready.is_empty()
                && let Some(late) = self.alarm.late(monotonic_ns())
            {
                self.punctuality.note(late, interval);
            }
            self.dispatch_all(ready)?;
            self.turn()?;
        }
        Ok(())
    }

    /// Serves who wants something, as far as one turn may.
    fn dispatch_all(&mut self, ready: Vec<Source>) -> Result<(), String> {
        self.allowance = Allowance::default();
        for source in ready {
            if source.can_wait() && self.allowance.is_spent() {
                self.poller.postpone(source);
            } else {
                self.dispatch(source)?;
            }
        }
        Ok(())
    }

    fn dispatch(&mut self, source: Source) -> Result<(), String> {
        let now_ns = monotonic_ns();
        let now = instant(now_ns);
        match source {
            Source::Clients => self.sessions.accept(now, &self.poller, &mut self.log),
            Source::Signals => self.take_signals(now_ns)?,
            Source::Devices => self.waker.clear(),
            Source::Session(id) => self.serve_session(id, now_ns),
            Source::Process(watch) => {
                self.allowance.take(Work::Answer);
                self.take_end(watch);
            }
            Source::MetricsClients => {
                let accepted = self.scrape.as_mut().map(|s| s.accept(now, &self.poller));
                if let Some(Err(problem)) = accepted {
                    self.problem(&problem);
                }
            }
            Source::Metrics(id) => {
                if let Some(mut scrape) = self.scrape.take() {
                    let is_asked = Cell::new(false);
                    let text = || {
                        is_asked.set(true);
                        crate::metrics::text(&self.snapshot(now_ns))
                    };
                    scrape.step(id, now, &self.poller, text);
                    self.scrape = Some(scrape);
                    let work = if is_asked.get() { Work::Overview } else { Work::Answer };
                    self.allowance.take(work);
                }
            }
        }
        Ok(())
    }

    /// One turn: everything that has come in so far has its consequences.
    fn turn(&mut self) -> Result<(), String> {
        self.turns += 1;
        self.look_after_session()?;
        self.guard.beat();
        let now_ns = monotonic_ns();
        self.end_leases(now_ns);
        self.settle_queue_suspensions(now_ns);
        self.look_at_pages(now_ns);
        self.allowance.leave_one();
        let mut wait = Duration::ZERO;
        for _ in 0..STEPS_MAX {
            self.is_changed = false;
            wait = self.driver.step(instant(now_ns), &mut self.backends);
            self.take_notes();
            self.look_into_some();
            if !self.is_changed {
                break;
            }
        }
        self.end_looks();
        self.publish(now_ns);
        self.do_chores(now_ns)?;
        self.set_alarm(now_ns, wait);
        Ok(())
    }

    fn set_alarm(&mut self, now_ns: u64, wait: Duration) {
        let has_queues = self.driver.scheduler().queues().next().is_some();
        let wait_ns = if has_queues { wait.as_nanos() } else { SLEEP_IDLE_NS };
        let mut at_ns = now_ns.saturating_add(wait_ns).min(self.chores_at_ns);
        at_ns = at_ns.min(self.roster.next_lease_ns().unwrap_or(u64::MAX));
        at_ns = at_ns.min(self.queue_suspensions.next_ns(now_ns).unwrap_or(u64::MAX));
        if self.is_changed || !self.backlog.is_empty() {
            at_ns = now_ns;
        } else if self.sessions.has_restless_page() {
            at_ns = at_ns.min(now_ns.saturating_add(SLEEP_RESTLESS_NS));
        }
        self.alarm.set(at_ns);
    }

    /// Says that something did not work; the same thing once.
    fn problem(&mut self, problem: &str) {
        if self.problems.add(problem, instant(monotonic_ns())) {
            self.log.warn(problem);
        }
    }

    /// Ends in good order: everything is put back as it was.
    fn stop(mut self, result: Result<(), String>) -> Result<(), String> {
        self.notifier.stopping();
        self.sessions.close_all();
        // Whoever could not be put back is in the journal, and the keeper tries again.
        let released = self.backends.release_all();
        let kept = "something could not be put back; the keeper goes on trying";
        let released = released.map_err(|error| format!("{kept}: {error}"));
        match &released {
            Ok(()) => self.log.info("everything is as it was; ends"),
            Err(problem) => self.log.error(problem),
        }
        result.and(released)
    }
}
