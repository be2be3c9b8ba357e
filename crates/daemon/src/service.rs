//! The daemon: one loop.
//!
//! Everything it waits for is in one epoll set: clients, the clock, signals, workers of devices,
//! processes that end. Whatever it is, it is taken in, then the scheduler makes a step, then the
//! loop waits again. Nothing in it blocks: devices have threads of their own, and sockets that
//! cannot take more are told later.

mod clients;
mod devices;
mod failure;
mod maintenance;
mod notify;
mod poller;
mod private;
mod processes;
mod reload;
mod setup;
mod signals;
mod telemetry;
mod undo;
mod work_budget;

use std::cell::Cell;
use std::path::PathBuf;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::registry::Selection;
use gpreempt_wire::statistics::Snapshot;

use clients::Clients;
use clients::pending_answers::JUDGE_NS;
use devices::Devices;
pub use failure::Failure;
use failure::LoopError;
use notify::Notifier;
use poller::{Alarm, Poller, Source};
pub use private::{PrivateOptions, PrivateService};
use processes::{Context, Processes};
use setup::Host;
pub use setup::SocketPathError;
use signals::Signals;
use telemetry::Telemetry;
use telemetry::loop_latency::cpu_time;
use undo::guard::Guard;
use undo::hardware_check::HardwareCheck;
pub use undo::lock::Owner;
use work_budget::{Allowance, Work};

/// What a daemon is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The configuration, if not the usual file.
    pub config: Option<PathBuf>,
    /// Where to listen, if not as configured.
    pub socket: Option<PathBuf>,
    /// Where the journal is, if not in the usual folder.
    pub state: Option<PathBuf>,
    /// Which devices to schedule.
    pub devices: Selection,
    /// The command that the service runs in, if it is no daemon: see [`PrivateService`].
    pub private: Option<PrivateOptions>,
}

/// How often the scheduler makes a step in one turn because the last one led to something.
const STEPS_MAX: usize = 4;
/// How long the loop sleeps when nobody has a queue.
const SLEEP_IDLE_NS: u64 = 250_000_000;
/// How long it sleeps while a page is looked at without being woken.
const SLEEP_RESTLESS_NS: u64 = 1_000_000;

/// A daemon: the loop, and the five jobs it runs.
#[derive(Debug)]
struct Service {
    options: Options,
    clients: Clients,
    processes: Processes,
    devices: Devices,
    guard: Guard,
    telemetry: Telemetry,
    poller: Poller,
    alarm: Alarm,
    signals: Signals,
    notifier: Notifier,
    /// What this turn may still take on.
    allowance: Allowance,
    hardware: HardwareCheck,
    chores_at_ns: u64,
    watchdog_at_ns: u64,
    is_stopping: bool,
}

/// Runs a daemon until it is told to end.
///
/// # Errors
/// Why it could not start, or could not go on; one sentence. What it changed is undone.
pub fn run(options: Options) -> Result<(), Failure> {
    let mut service = Service::start(options, Host::Program)?;
    let kinds = service.devices.backends.kinds().join(", ");
    let kinds = if kinds.is_empty() { "no devices".to_owned() } else { kinds };
    let socket = service.clients.socket().display();
    service.telemetry.log.info(format_args!("ready at {socket}: {kinds}"));
    service.notifier.ready(&format!("schedules {kinds}"));
    let result = service.turn().and_then(|()| service.serve());
    Ok(service.stop(result)?)
}

impl Service {
    fn serve(&mut self) -> Result<(), LoopError> {
        while !self.is_stopping {
            let at_most = self.alarm.left(monotonic_ns());
            let ready = self.poller.wait(at_most).map_err(LoopError::Wait)?;
            let interval = self.devices.scheduler().config().interval;
            self.telemetry.loop_latency.begin(cpu_time(), interval);
            if ready.is_empty()
                && let Some(late) = self.alarm.late(monotonic_ns())
            {
                self.telemetry.loop_latency.note(late, interval);
            }
            self.dispatch_all(ready)?;
            self.turn()?;
        }
        Ok(())
    }

    /// Serves the sources that are ready, as far as the budget of one turn permits.
    fn dispatch_all(&mut self, ready: Vec<Source>) -> Result<(), LoopError> {
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

    fn dispatch(&mut self, source: Source) -> Result<(), LoopError> {
        let now_ns = monotonic_ns();
        let now = instant(now_ns);
        match source {
            Source::Clients => {
                self.clients.sessions.accept(now, &self.poller, &mut self.telemetry.log);
            }
            Source::Signals => self.take_signals(now_ns)?,
            Source::Devices => self.devices.waker.clear(),
            Source::Session(id) => self.serve_session(id, now_ns),
            Source::Process(watch) => {
                self.allowance.take(Work::Answer);
                let (processes, mut context) = self.processes_and_context();
                processes.take_end(watch, &mut context);
            }
            Source::MetricsClients => {
                let scrape = self.telemetry.metrics_server.as_mut();
                let accepted = scrape.map(|scrape| scrape.accept(now, &self.poller));
                if let Some(Err(error)) = accepted {
                    self.telemetry.problem(&error.to_string());
                }
            }
            Source::Metrics(id) => {
                if let Some(mut scrape) = self.telemetry.metrics_server.take() {
                    let is_asked = Cell::new(false);
                    let text = || {
                        is_asked.set(true);
                        crate::metrics::text(&self.snapshot(now_ns))
                    };
                    scrape.step(id, now, &self.poller, text);
                    self.telemetry.metrics_server = Some(scrape);
                    let work = if is_asked.get() { Work::Overview } else { Work::Answer };
                    self.allowance.take(work);
                }
            }
        }
        Ok(())
    }

    /// One turn: everything that has come in so far has its consequences.
    fn turn(&mut self) -> Result<(), LoopError> {
        self.telemetry.turns += 1;
        self.look_after_session()?;
        self.guard.beat();
        let now_ns = monotonic_ns();
        let (processes, mut context) = self.processes_and_context();
        processes.end_leases(now_ns, &mut context);
        self.settle_queue_suspensions(now_ns);
        let Self { clients, processes, devices, telemetry, .. } = self;
        clients.look_at_pages(instant(now_ns), processes, devices, telemetry);
        self.allowance.leave_one();
        let wait = self.step(instant(now_ns));
        if self.processes.end_looks(&mut self.telemetry.log) {
            self.end_reload();
        }
        self.settle_pending();
        self.settle_resumes();
        let Self { clients, processes, devices, telemetry, poller, .. } = self;
        telemetry.publish(now_ns, devices, &processes.roster, &mut clients.sessions, poller);
        self.do_chores(now_ns)?;
        self.set_alarm(now_ns, wait);
        Ok(())
    }

    /// Steps of the scheduler, until one leads to nothing more. Returns how long it needs no other.
    fn step(&mut self, now: Instant) -> Duration {
        let mut wait = Duration::ZERO;
        for _ in 0..STEPS_MAX {
            wait = self.devices.step(now);
            let mut allowance = self.allowance;
            let (processes, mut context) = self.processes_and_context();
            processes.take_notes(&mut context);
            processes.look_into_some(&mut allowance, &mut context);
            self.allowance = allowance;
            if !self.devices.is_changed {
                break;
            }
        }
        wait
    }

    /// Ends the queue suspensions of sessions that are closed, and settles the others.
    fn settle_queue_suspensions(&mut self, now_ns: u64) {
        for session in self.clients.sessions.take_left() {
            self.devices.queue_suspensions.end_session(session);
        }
        self.devices.settle_queue_suspensions(now_ns);
    }

    fn set_alarm(&mut self, now_ns: u64, wait: Duration) {
        let has_queues = self.devices.scheduler().queues().next().is_some();
        let wait_ns = if has_queues { wait.as_nanos() } else { SLEEP_IDLE_NS };
        let mut at_ns = now_ns.saturating_add(wait_ns).min(self.chores_at_ns);
        at_ns = at_ns.min(self.processes.roster.next_lease_ns().unwrap_or(u64::MAX));
        at_ns = at_ns.min(self.devices.queue_suspensions.next_ns(now_ns).unwrap_or(u64::MAX));
        if !self.clients.pending.is_empty() {
            at_ns = at_ns.min(now_ns.saturating_add(JUDGE_NS));
        }
        if self.devices.is_changed || !self.processes.backlog.is_empty() {
            at_ns = now_ns;
        } else if self.clients.sessions.has_restless_page() {
            at_ns = at_ns.min(now_ns.saturating_add(SLEEP_RESTLESS_NS));
        }
        self.alarm.set(at_ns);
    }

    /// The processes, and the other jobs as far as a change of a process concerns them.
    fn processes_and_context(&mut self) -> (&mut Processes, Context<'_>) {
        let Self { processes, devices, telemetry, guard, poller, .. } = self;
        (processes, Context { devices, telemetry, guard, poller })
    }

    /// Everything at this moment.
    fn snapshot(&self, now_ns: u64) -> Snapshot {
        let sessions = self.clients.sessions.len();
        let known = (&self.processes.roster, &self.hardware.strays());
        self.telemetry.snapshot(now_ns, &self.devices, known, sessions)
    }

    /// Ends in good order: everything is put back as it was.
    fn stop(mut self, result: Result<(), LoopError>) -> Result<(), LoopError> {
        self.notifier.stopping();
        self.clients.sessions.close_all();
        // What could not be put back is in the journal, and the keeper tries again.
        let released = self.devices.backends.release_all();
        let released = released.map_err(|error| LoopError::NotReleased(error.to_string()));
        match &released {
            Ok(()) => self.telemetry.log.info("everything is as it was; ends"),
            Err(problem) => self.telemetry.log.error(problem),
        }
        result.and(released)
    }
}

/// A moment of the machine's clock as the scheduler counts.
const fn instant(now_ns: u64) -> Instant {
    Instant::from_nanos(now_ns)
}
