//! The simulation: the backend, the scheduler's loop, and the checkers, in virtual time.

use gpreempt_core::decision::Decision;
use gpreempt_core::event::Event;
use gpreempt_core::invariant;
use gpreempt_core::scheduler_loop::SchedulerLoop;
use gpreempt_core::time::{Duration, Instant};

use crate::checker::{self, TimedChecker};
use crate::client::ProcessState;
use crate::event_queue::SimEvent;
use crate::model::MachineKind;
use crate::outcome::{Outcome, Served, SimError, TaskOutcome};
use crate::scenario::{FaultKind, Scenario};
use crate::sim_backend::{SimBackend, task_id};
use crate::track::Tracks;

/// What is recorded and checked.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Spans of the time line to keep.
    pub spans_max: usize,
    /// The part of the time line to keep; none is all of it.
    pub window: Option<(Instant, Instant)>,
    /// Whether the time that each task has waves on compute units is added up.
    pub meters: bool,
    /// Decisions to keep.
    pub decisions_max: usize,
    /// Whether every checker runs after every step.
    pub check: bool,
    /// Whether rings never show that fetched work runs, as on an AMD device without signals in its
    /// packets.
    pub hides_running: bool,
    /// Steps after which the run fails.
    pub events_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            spans_max: 0,
            window: None,
            meters: false,
            decisions_max: 0,
            check: false,
            hides_running: false,
            events_max: 2_000_000_000,
        }
    }
}

/// Simulates a scenario to its end: until all work that arrived is done.
///
/// # Errors
/// A kernel that cannot run, a violation, or too many steps.
pub fn run(scenario: &Scenario, options: Options) -> Result<Outcome, SimError> {
    run_watched(scenario, options, &mut |_| {})
}

/// The same, reporting the virtual time to `watcher` now and then.
///
/// # Errors
/// As [`run`].
pub fn run_watched(
    scenario: &Scenario,
    options: Options,
    watcher: &mut dyn FnMut(Instant),
) -> Result<Outcome, SimError> {
    run_while(scenario, options, &mut |now| {
        watcher(now);
        true
    })
}

/// The same, until `continues` returns false.
///
/// # Errors
/// As [`run`], and [`SimError::Stopped`] if it did.
pub fn run_while(
    scenario: &Scenario,
    options: Options,
    continues: &mut dyn FnMut(Instant) -> bool,
) -> Result<Outcome, SimError> {
    let mut simulation = Simulation::new(scenario, options)?;
    simulation.schedule();
    while simulation.step()? {
        if simulation.events.is_multiple_of(EVENTS_PER_NOTE) && !continues(simulation.backend.now())
        {
            return Err(SimError::Stopped);
        }
    }
    simulation.finish()
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    options: Options,
    backend: SimBackend,
    scheduler_loop: Option<SchedulerLoop>,
    step_epoch: u64,
    decisions: Vec<Decision>,
    timed_checker: Option<TimedChecker>,
    events: u64,
    launches_in_time: Vec<u64>,
    device_times: Vec<Duration>,
    /// When the remaining work must be done.
    drained_by: Option<Instant>,
}

impl<'a> Simulation<'a> {
    fn new(scenario: &'a Scenario, options: Options) -> Result<Self, SimError> {
        let tracks = Tracks::new(options.spans_max, options.window);
        let mut backend =
            SimBackend::new(scenario, if options.meters { tracks.metered() } else { tracks })?;
        backend.hides_running = options.hides_running;
        Ok(Self {
            backend,
            timed_checker: options.check.then(|| TimedChecker::new(scenario)).flatten(),
            scenario,
            options,
            scheduler_loop: None,
            step_epoch: 0,
            decisions: Vec::new(),
            events: 0,
            launches_in_time: vec![0; scenario.tasks.len()],
            device_times: vec![Duration::ZERO; scenario.tasks.len()],
            drained_by: None,
        })
    }

    /// Adds all events that are known beforehand.
    fn schedule(&mut self) {
        let event_queue = &mut self.backend.gpu.event_queue;
        if self.scenario.scheduler.is_some() {
            event_queue.after(Duration::ZERO, SimEvent::SchedulerStart);
        }
        for (task, spec) in self.scenario.tasks.iter().enumerate() {
            if spec.after.is_none() {
                event_queue.after(spec.start, SimEvent::TaskStart { task });
            }
            for (change, at) in spec.changes.iter().enumerate() {
                event_queue.after(at.at, SimEvent::PriorityChange { task, change });
            }
        }
        for (fault, spec) in self.scenario.faults.iter().enumerate() {
            event_queue.after(spec.at, SimEvent::FaultBegins { fault });
        }
    }

    /// Handles the next event. Returns whether there are more.
    fn step(&mut self) -> Result<bool, SimError> {
        let end = Instant::ZERO + self.scenario.duration;
        let next = self.backend.gpu.event_queue.next_at();
        if self.drained_by.is_none() && next.is_none_or(|at| at >= end) {
            self.note_horizon(end);
        }
        // Events after the last task's end have no effect.
        if self.is_over() {
            return Ok(false);
        }
        let Some(event) = self.backend.gpu.event_queue.pop() else { return Ok(false) };
        self.events += 1;
        if self.events > self.options.events_max {
            return Err(SimError::TooLong(self.options.events_max));
        }
        self.handle(event);
        self.backend.handle_notices();
        self.backend.settle_memory();
        if self.backend.wake {
            self.run_scheduler();
        }
        self.check()?;
        Ok(!self.is_over())
    }

    /// Work stops arriving: records what was done in time and how long the rest may take.
    fn note_horizon(&mut self, end: Instant) {
        for (_, queue) in self.backend.all_queues() {
            let done = queue.launches.iter().filter(|launch| launch.completed > 0).count();
            self.launches_in_time[queue.task] += done as u64;
        }
        for &(queue, task, _) in &self.backend.queue_owners {
            self.device_times[task] += self.backend.gpu.tracks.busy(queue, end);
        }
        let work = self.backend.work_left();
        let moves = self.backend.evictions.allowance(self.scenario, work);
        self.drained_by = Some(end + DRAIN_MIN + work.times(4) + moves);
    }

    fn is_over(&self) -> bool {
        self.drained_by.is_some()
            && self.backend.clients.iter().all(|client| client.state != ProcessState::Running)
    }

    fn handle(&mut self, event: SimEvent) {
        let backend = &mut self.backend;
        match event {
            SimEvent::WaveReady { queue, group, wave, epoch } => {
                backend.gpu.wave_ready(queue, group, wave, epoch);
            }
            SimEvent::Fetch { queue } => backend.gpu.fetch(queue),
            SimEvent::Seen { queue, .. } => backend.seen(queue),
            SimEvent::Saved { queue, epoch } => backend.gpu.finish_save(queue, epoch),
            SimEvent::Restored { queue, epoch } => backend.gpu.finish_restore(queue, epoch),
            SimEvent::Switched { device, epoch } => backend.gpu.switched(device, epoch),
            SimEvent::SliceOver { device, epoch } => backend.gpu.slice_over(device, epoch),
            SimEvent::SlotTurn { device } => backend.gpu.slot_turn(device),
            SimEvent::CallReaches { device, epoch } => backend.call_reaches(device, epoch),
            SimEvent::Resubmitted { queue, epoch } => backend.gpu.finish_resubmit(queue, epoch),
            SimEvent::HoldPoll { device, epoch } => backend.hold_poll(device, epoch),
            SimEvent::HoldSeen { queue, placed } => backend.gpu.hold_seen(queue, placed),
            SimEvent::StepReaches { process, epoch } => backend.gpu.step_reaches(process, epoch),
            SimEvent::MemoryDue => backend.memory_due(),
            SimEvent::TaskStart { task } => backend.start_task(task),
            SimEvent::Arrive { task } => backend.arrive(task),
            SimEvent::Announce { task } => backend.announce(task),
            SimEvent::CpuDone { task, request } => backend.continue_request(task, request),
            SimEvent::EndNoticed { task } => {
                backend.report(Event::TaskVanished { task: task_id(task) })
            }
            SimEvent::PriorityChange { task, change } => backend.change_priority(task, change),
            SimEvent::FaultBegins { fault } => self.begin_fault(fault),
            SimEvent::SchedulerStep { epoch } if epoch == self.step_epoch => self.run_scheduler(),
            SimEvent::SchedulerStep { .. } => {}
            SimEvent::SchedulerStart => self.start_scheduler(),
            SimEvent::KeeperRuns => self.run_keeper(),
        }
    }

    fn begin_fault(&mut self, fault: usize) {
        let spec = self.scenario.faults[fault];
        match spec.kind {
            FaultKind::TaskDeath(task) => self.backend.end_task(task, ProcessState::Killed),
            FaultKind::DeviceReset(device) => self.backend.reset_device(device),
            FaultKind::SchedulerCrash if self.scheduler_loop.is_some() => {
                self.scheduler_loop = None;
                self.backend.scheduler_died();
                let event_queue = &mut self.backend.gpu.event_queue;
                event_queue.after(KEEPER_DELAY, SimEvent::KeeperRuns);
                event_queue.after(spec.lasts, SimEvent::SchedulerStart);
            }
            FaultKind::SchedulerCrash
            | FaultKind::PreemptTimeout
            | FaultKind::ObservationLost
            | FaultKind::ObservationLate(_)
            | FaultKind::ClockAhead(_)
            | FaultKind::ClockBehind(_) => {}
        }
    }

    /// Starts a scheduler, which adopts all queues, once no call of its predecessor is in progress.
    fn start_scheduler(&mut self) {
        let Some(spec) = self.scenario.scheduler.filter(|_| self.scheduler_loop.is_none()) else {
            return;
        };
        if !self.backend.workers.iter().all(crate::control::Worker::is_idle) {
            self.backend.gpu.event_queue.after(RETRY, SimEvent::SchedulerStart);
            return;
        }
        self.restore_slices();
        if let Ok(scheduler_loop) = SchedulerLoop::new(spec.config) {
            self.scheduler_loop = Some(scheduler_loop);
            self.backend.announce_all();
        }
    }

    /// Reverts what a dead scheduler stopped, slowed or held.
    fn run_keeper(&mut self) {
        if self.scheduler_loop.is_some() {
            return;
        }
        if !self.backend.workers.iter().all(crate::control::Worker::is_idle) {
            self.backend.gpu.event_queue.after(RETRY, SimEvent::KeeperRuns);
            return;
        }
        self.restore_slices();
        for queue in self.backend.gpu.queues_where(|queue| queue.stopped) {
            self.backend.gpu.resume(queue);
        }
    }

    fn restore_slices(&mut self) {
        let default = self.backend.gpu.model.tsg.slice;
        for queue in self.backend.gpu.queues_where(|queue| queue.slice != default) {
            self.backend.gpu.set_slice(queue, None);
        }
    }

    fn run_scheduler(&mut self) {
        self.backend.wake = false;
        let Some(scheduler_loop) = self.scheduler_loop.as_mut() else { return };
        let wait = scheduler_loop.step(self.backend.clock(), &mut self.backend);
        while let Some(decision) = scheduler_loop.scheduler_mut().poll_decision() {
            if self.decisions.len() < self.options.decisions_max {
                // The scheduler's clock may be wrong; the true time is recorded.
                self.decisions.push(Decision { at: self.backend.now(), ..decision });
            }
        }
        if self.options.check
            && let Err(what) = invariant::check(scheduler_loop.scheduler())
        {
            self.backend.violation.get_or_insert(what);
        }
        self.step_epoch += 1;
        let epoch = self.step_epoch;
        self.backend.gpu.event_queue.after(wait.max(STEP_MIN), SimEvent::SchedulerStep { epoch });
    }

    fn check(&mut self) -> Result<(), SimError> {
        if let Some((_, failure)) = self.backend.gpu.failure.take() {
            return Err(SimError::Kernel(failure));
        }
        let now = self.backend.now();
        let mut result = Ok(());
        if self.options.check {
            result = checker::check_state(&self.backend);
            if let (Ok(()), Some(timed)) = (&result, self.timed_checker.as_mut()) {
                result = timed.check(&self.backend);
            }
        }
        if let Some(what) = self.backend.violation.take() {
            result = Err(what);
        }
        if self.drained_by.is_some_and(|by| now > by) {
            result = Err(self.describe_stuck());
        }
        result.map_err(|what| SimError::Violation { at: now, what })
    }

    fn describe_stuck(&self) -> String {
        let alive =
            self.backend.clients.iter().filter(|client| client.state == ProcessState::Running);
        let names: Vec<&str> = alive.map(|client| client.spec.name.as_str()).collect();
        format!("work is left that does not get done: {}", names.join(", "))
    }

    fn finish(mut self) -> Result<Outcome, SimError> {
        let now = self.backend.now();
        let difference = checker::first_memory_difference(&self.backend);
        let lost = checker::lost_launches(&self.backend);
        let forgives = self.backend.gpu.machine == MachineKind::Reset;
        if let Some(what) = difference.clone().filter(|_| !forgives) {
            return Err(SimError::Violation { at: now, what });
        }
        if lost > 0 && !forgives {
            let what = format!("{lost} launches of surviving tasks never completed");
            return Err(SimError::Violation { at: now, what });
        }
        let mut launches = vec![0; self.backend.clients.len()];
        for (_, queue) in self.backend.all_queues() {
            launches[queue.task] +=
                queue.launches.iter().filter(|l| l.completed > 0).count() as u64;
        }
        let in_time = self.launches_in_time.iter().zip(&self.device_times);
        let tasks = self.backend.clients.iter().zip(launches).zip(in_time);
        let tasks = tasks
            .map(|((client, launches), (&launches_in_time, &device_time))| {
                let missed = |served: &&Served| {
                    client.spec.deadline.is_some_and(|deadline| served.latency() > deadline)
                };
                TaskOutcome {
                    name: client.spec.name.clone(),
                    deadline_misses: client.served.iter().filter(missed).count() as u64,
                    served: client.served.clone(),
                    launches_in_time,
                    device_time,
                    launches,
                    died: client.state == ProcessState::Killed,
                    refused: client.state == ProcessState::Refused,
                }
            })
            .collect();
        let tracks = std::mem::take(&mut self.backend.gpu.tracks);
        Ok(Outcome {
            ended_at: now,
            duration: self.scenario.duration,
            tasks,
            preemptions: self.backend.gpu.preemptions,
            evictions: self.backend.evictions.count,
            reexecuted: self.backend.gpu.reexecuted,
            lost,
            exact: difference.is_none(),
            decisions: self.decisions,
            spans: tracks.finish(now),
            queues: self.backend.queue_owners,
            events: self.events,
        })
    }
}

/// Events between two reports of the virtual time.
const EVENTS_PER_NOTE: u64 = 1 << 14;

/// The least time for the remaining work after work stops arriving.
const DRAIN_MIN: Duration = Duration::from_millis(5_000);

/// How long after a scheduler's death the keeper acts (measured: 1.5 to 1.7 ms).
const KEEPER_DELAY: Duration = Duration::from_micros(1_700);

/// How often a starting scheduler checks whether its predecessor's calls have ended.
const RETRY: Duration = Duration::from_micros(100);

/// The shortest time between two steps of the scheduler's loop.
const STEP_MIN: Duration = Duration::from_micros(1);
