//! The daemon's loop and the six jobs it runs: clients, processes, devices, memory, undo and
//! telemetry.
//!
//! The loop waits on one epoll set (clients, signals, device threads, ends of processes), handles
//! what is ready, lets the scheduler make a step, and waits again. It must never block: devices
//! have threads of their own, and data for a socket that is full is sent later.

mod background_reads;
mod clients;
mod devices;
mod errors;
mod maintenance;
mod memory;
mod notify;
mod poller;
mod private;
mod processes;
mod setup;
mod signals;
mod telemetry;
mod undo;
mod work_budget;
mod work_share;

use std::path::PathBuf;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::registry::Selection;
use gpreempt_wire::statistics::Snapshot;

use clients::Clients;
use clients::pending_answers::CHECK_NS;
use devices::Devices;
pub use errors::Failure;
use errors::LoopError;
use memory::Memory;
use notify::Notifier;
use poller::{PollSource, Poller, Wakeup};
pub use private::{PrivateOptions, PrivateService};
use processes::inspection::{Finding, KnownFacts, ProcessReads};
pub(crate) use processes::normal::exemption_of;
use processes::{Context, Processes};
use setup::Host;
pub use setup::SocketPathError;
use signals::Signals;
use telemetry::Telemetry;
use telemetry::loop_latency::cpu_time;
pub(crate) use telemetry::metrics_server::MetricsServer;
use undo::Recovery;
use undo::hardware_check::HardwareCheck;
pub use undo::lock::Owner;
use work_budget::{Work, WorkBudget};

/// The options a daemon is started with. `None` stands for the configured or usual value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub config: Option<PathBuf>,
    pub socket: Option<PathBuf>,
    /// The journal's folder.
    pub state: Option<PathBuf>,
    pub devices: Selection,
    /// Set where the service runs inside a command: see [`PrivateService`].
    pub private: Option<PrivateOptions>,
}

/// Scheduler steps in one iteration at most. A step is repeated when it produced new events.
const STEPS_MAX: usize = 4;
/// Sleep of the loop while no queue exists.
const SLEEP_IDLE_NS: u64 = 250_000_000;
/// Sleep of the loop while a hint page is polled because its process gives hints too often.
const SLEEP_POLLING_NS: u64 = 1_000_000;

#[derive(Debug)]
struct Service {
    options: Options,
    clients: Clients,
    processes: Processes,
    devices: Devices,
    memory: Memory,
    recovery: Recovery,
    telemetry: Telemetry,
    poller: Poller,
    wakeup: Wakeup,
    signals: Signals,
    notifier: Notifier,
    /// Reads of what users control, beside the loop.
    reads: ProcessReads,
    /// What was read for the request that is served now.
    facts: KnownFacts,
    /// What remains for this iteration.
    budget: WorkBudget,
    hardware: HardwareCheck,
    maintenance_at_ns: u64,
    watchdog_at_ns: u64,
    is_stopping: bool,
}

/// Runs a daemon until a signal ends it.
///
/// # Errors
/// Why it could not start or continue, in one sentence. Its changes are undone.
pub fn run(options: Options) -> Result<(), Failure> {
    let mut service = Service::start(options, Host::Program)?;
    let kinds = service.devices.backends.kinds().join(", ");
    let kinds = if kinds.is_empty() { "no devices".to_owned() } else { kinds };
    let socket = service.clients.socket().display();
    service.telemetry.log.info(format_args!("ready at {socket}: {kinds}"));
    service.notifier.ready(&format!("schedules {kinds}"));
    let result = service.iterate().and_then(|()| service.serve());
    Ok(service.stop(result)?)
}

impl Service {
    fn serve(&mut self) -> Result<(), LoopError> {
        while !self.is_stopping {
            let at_most = self.wakeup.left(monotonic_ns());
            let ready = self.poller.wait(at_most).map_err(LoopError::Wait)?;
            let interval = self.devices.scheduler().config().interval;
            self.telemetry.loop_latency.begin(cpu_time(), interval);
            if ready.is_empty()
                && let Some(late) = self.wakeup.late(monotonic_ns())
            {
                self.telemetry.loop_latency.note(late, interval);
            }
            let begun_ns = monotonic_ns();
            self.dispatch_all(ready)?;
            self.iterate()?;
            let ended_ns = monotonic_ns();
            let took = Duration::from_nanos(ended_ns.saturating_sub(begun_ns));
            self.clients.sessions.users.end_iteration(took, instant(ended_ns));
        }
        Ok(())
    }

    /// Serves ready sources within the work budget; the others are served in the next iteration.
    fn dispatch_all(&mut self, ready: Vec<PollSource>) -> Result<(), LoopError> {
        self.budget = WorkBudget::default();
        let mut sessions = Vec::new();
        for source in ready {
            if let PollSource::Session(id) = source {
                sessions.push(id);
            } else if source.can_wait() && self.budget.is_spent() {
                self.poller.postpone(source);
            } else {
                self.dispatch(source)?;
            }
        }
        self.serve_sessions(sessions);
        Ok(())
    }

    fn dispatch(&mut self, source: PollSource) -> Result<(), LoopError> {
        let now_ns = monotonic_ns();
        let now = instant(now_ns);
        match source {
            PollSource::Clients | PollSource::RootClients => {
                let log = &mut self.telemetry.log;
                self.clients.sessions.accept(source, now, &self.poller, log);
            }
            PollSource::Signals => self.take_signals(now_ns)?,
            PollSource::Devices => self.devices.waker.clear(),
            PollSource::Session(id) => self.serve_sessions(vec![id]),
            PollSource::Process(watch) => {
                self.budget.take(Work::Answer);
                let (processes, mut context) = self.processes_and_context();
                processes.take_end(watch, &mut context);
            }
            PollSource::MetricsPage => self.make_metrics_page(now_ns),
        }
        Ok(())
    }

    /// Makes a page for the metrics server, which decides how often.
    fn make_metrics_page(&mut self, now_ns: u64) {
        let Some(server) = &self.telemetry.metrics_server else { return };
        let asked = server.take_page_request();
        let text = crate::metrics::text(
            &self.snapshot(now_ns),
            self.processes.rules.config.metrics.lines_for,
        );
        let took_ns = monotonic_ns().saturating_sub(now_ns);
        server.publish(&text, Duration::from_nanos(took_ns));
        self.budget.take(Work::Snapshot);
        if let Err(error) = asked {
            self.telemetry.problem(&error.to_string());
        }
    }

    /// One iteration: applies everything that arrived since the last one.
    fn iterate(&mut self) -> Result<(), LoopError> {
        self.telemetry.turns += 1;
        self.check_keeper_deadline()?;
        self.recovery.heartbeat();
        let now_ns = monotonic_ns();
        let log = &mut self.telemetry.log;
        self.clients.sessions.end_pauses(instant(now_ns), &self.poller, log);
        let (processes, mut context) = self.processes_and_context();
        processes.end_leases(now_ns, &mut context);
        self.settle_queue_suspensions(now_ns);
        let Self { clients, processes, devices, telemetry, .. } = self;
        clients.read_hint_pages(instant(now_ns), processes, devices, telemetry);
        self.budget.leave_one();
        self.take_findings();
        let wait = self.step(instant(now_ns));
        self.serve_parked();
        if self.processes.inspections.take_end_of_reload() {
            self.end_reload();
        }
        self.answer_suspensions();
        self.answer_resumes();
        self.settle_memory(now_ns);
        let Self { clients, processes, devices, telemetry, poller, .. } = self;
        telemetry.publish(now_ns, devices, &processes.table, &mut clients.sessions, poller);
        self.maintain(now_ns)?;
        self.set_wakeup(now_ns, wait);
        Ok(())
    }

    /// Repeats scheduler steps until one produces no event. Returns the time to the next step.
    fn step(&mut self, now: Instant) -> Duration {
        let mut wait = Duration::ZERO;
        for _ in 0..STEPS_MAX {
            wait = self.devices.step(now);
            let mut budget = self.budget;
            let (processes, mut context) = self.processes_and_context();
            processes.take_notes(&mut context);
            processes.ask_inspections(&mut budget, now, &mut context);
            processes.settle_normal(&mut budget, &mut context);
            self.budget = budget;
            if !self.devices.is_changed {
                break;
            }
        }
        wait
    }

    /// Takes in what threads have read, within the budget.
    fn take_findings(&mut self) {
        while !self.budget.is_spent()
            && let Some((read_id, finding)) = self.reads.poll(instant(monotonic_ns()))
        {
            self.budget.take(Work::Process);
            self.take_finding(read_id, finding);
        }
    }

    fn take_finding(&mut self, read_id: u64, finding: Option<Finding>) {
        let (processes, mut context) = self.processes_and_context();
        match finding {
            Some(Finding::Inspected(inspected)) => {
                processes.take_inspection(read_id, *inspected, &mut context);
            }
            Some(Finding::Facts(facts)) => self.serve_with(read_id, facts),
            None => {
                processes.take_late_inspection(read_id, &mut context);
                self.refuse_parked(read_id);
            }
        }
    }

    /// Inspects all processes before the loop runs, as far as that takes no longer than usual.
    fn inspect_all(&mut self) {
        /// How often to look for an answer.
        const STEP: std::time::Duration = std::time::Duration::from_micros(200);
        loop {
            let now = instant(monotonic_ns());
            let mut budget = WorkBudget::unlimited();
            let (processes, mut context) = self.processes_and_context();
            processes.ask_inspections(&mut budget, now, &mut context);
            while let Some((read_id, finding)) = self.reads.poll(now) {
                self.take_finding(read_id, finding);
            }
            if self.reads.is_settled() {
                return;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Ends the queue suspensions of closed sessions and applies the others.
    fn settle_queue_suspensions(&mut self, now_ns: u64) {
        for session in self.clients.sessions.take_closed() {
            self.devices.queue_suspensions.end_session(session);
        }
        self.devices.settle_queue_suspensions(now_ns);
    }

    fn set_wakeup(&mut self, now_ns: u64, wait: Duration) {
        let has_queues = self.devices.scheduler().queues().next().is_some();
        let wait_ns = if has_queues { wait.as_nanos() } else { SLEEP_IDLE_NS };
        let mut at_ns = now_ns.saturating_add(wait_ns).min(self.maintenance_at_ns);
        at_ns = at_ns.min(self.processes.table.next_lease_ns().unwrap_or(u64::MAX));
        at_ns = at_ns.min(self.devices.queue_suspensions.next_ns(now_ns).unwrap_or(u64::MAX));
        if let Some(at) = self.clients.sessions.next_pause_end(instant(now_ns)) {
            at_ns = at_ns.min(at.as_nanos());
        }
        if !self.clients.pending.is_empty() {
            at_ns = at_ns.min(now_ns.saturating_add(CHECK_NS));
        }
        at_ns = at_ns.min(self.memory.next_ns(now_ns).unwrap_or(u64::MAX));
        if let Some(at) = self.reads.next(instant(now_ns)) {
            at_ns = at_ns.min(at.as_nanos());
        }
        let has_work = !self.processes.inspections.is_empty()
            || self.reads.has_ready()
            || self.processes.yielding.is_stale;
        if self.devices.is_changed || has_work {
            at_ns = now_ns;
        } else if self.clients.sessions.has_polled_page() {
            at_ns = at_ns.min(now_ns.saturating_add(SLEEP_POLLING_NS));
        }
        self.wakeup.set(at_ns);
    }

    /// The processes, and the other jobs as far as a change of a process concerns them.
    fn processes_and_context(&mut self) -> (&mut Processes, Context<'_>) {
        let Self { processes, devices, telemetry, recovery, poller, reads, facts, .. } = self;
        (processes, Context { devices, telemetry, recovery, poller, reads, facts })
    }

    /// The same with the job that moves memory.
    fn memory_and_context(&mut self) -> (&mut Memory, &mut Processes, Context<'_>) {
        let Self { memory, processes, devices, telemetry, recovery, poller, reads, facts, .. } =
            self;
        (memory, processes, Context { devices, telemetry, recovery, poller, reads, facts })
    }

    fn snapshot(&self, now_ns: u64) -> Snapshot {
        let sessions = self.clients.sessions.len();
        let known = (&self.processes.table, &self.hardware.unexplained_stops());
        let mut snapshot = self.telemetry.snapshot(now_ns, &self.devices, known, sessions);
        self.memory.add_to(&mut snapshot, now_ns);
        snapshot
    }

    /// Closes all sessions and reverts every change.
    fn stop(mut self, result: Result<(), LoopError>) -> Result<(), LoopError> {
        self.notifier.stopping();
        self.telemetry.take_holds(&self.devices, &self.processes.table);
        if let Some(problem) = self.telemetry.hold_log.take().and_then(|log| log.write().err()) {
            self.telemetry.problem(&problem);
        }
        self.clients.sessions.close_all();
        if result.is_ok() {
            self.restore_before_end();
        }
        // A change that could not be reverted stays in the journal, and the keeper tries again.
        let released = self.devices.backends.release_all();
        let released = released.map_err(|error| LoopError::NotReleased(error.to_string()));
        match &released {
            Ok(()) => self.telemetry.log.info("all GPU settings restored; exiting"),
            Err(problem) => self.telemetry.log.error(problem),
        }
        result.and(released)
    }
}

/// A time of the machine's clock as the scheduler's type.
const fn instant(now_ns: u64) -> Instant {
    Instant::from_nanos(now_ns)
}
