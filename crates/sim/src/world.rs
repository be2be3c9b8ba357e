//! The simulation: the rig, the scheduler's loop, and the checkers, in virtual time.

use gpreempt_core::decision::Decision;
use gpreempt_core::driver::Driver;
use gpreempt_core::event::Event;
use gpreempt_core::invariant;
use gpreempt_core::time::{Duration, Instant};

use crate::agenda::What;
use crate::checker::inversion::InversionChecker;
use crate::checker::{memory, packets};
use crate::client::Life;
use crate::model::MachineKind;
use crate::outcome::{Outcome, Served, SimError, TaskOutcome};
use crate::rig::{Rig, task_id};
use crate::scenario::{FaultKind, Scenario};
use crate::track::Tracks;

/// How much of a run is kept and how closely it is watched.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Spans of the time line to keep.
    pub spans_max: usize,
    /// The part of the time line to keep; none is all of it.
    pub window: Option<(Instant, Instant)>,
    /// Decisions to keep.
    pub decisions_max: usize,
    /// Whether every checker runs after every step.
    pub check: bool,
    /// Whether rings never show that fetched work runs, as on an AMD device without signals in its
    /// packets.
    pub hides_running: bool,
    /// Steps after which the run is given up.
    pub events_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            spans_max: 0,
            window: None,
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
/// A wrong kernel, a violated promise, or too many steps.
pub fn run(scenario: &Scenario, options: Options) -> Result<Outcome, SimError> {
    run_watched(scenario, options, &mut |_| {})
}

/// The same, telling `watcher` now and then how far it is.
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

/// The same, for as long as `goes_on` says so.
///
/// # Errors
/// As [`run`], and [`SimError::Stopped`] if it did not.
pub fn run_while(
    scenario: &Scenario,
    options: Options,
    goes_on: &mut dyn FnMut(Instant) -> bool,
) -> Result<Outcome, SimError> {
    let mut world = World::new(scenario, options)?;
    world.schedule();
    while world.step()? {
        if world.events.is_multiple_of(EVENTS_PER_NOTE) && !goes_on(world.rig.now()) {
            return Err(SimError::Stopped);
        }
    }
    world.finish()
}

struct World<'a> {
    scenario: &'a Scenario,
    options: Options,
    rig: Rig,
    driver: Option<Driver>,
    step_epoch: u64,
    decisions: Vec<Decision>,
    inversions: Option<InversionChecker>,
    events: u64,
    launches_in_time: Vec<u64>,
    /// When whatever is left must be done.
    drained_by: Option<Instant>,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, options: Options) -> Result<Self, SimError> {
        let mut rig = Rig::new(scenario, Tracks::new(options.spans_max, options.window))?;
        rig.hides_running = options.hides_running;
        Ok(Self {
            rig,
            inversions: options.check.then(|| InversionChecker::new(scenario)).flatten(),
            scenario,
            options,
            driver: None,
            step_epoch: 0,
            decisions: Vec::new(),
            events: 0,
            launches_in_time: vec![0; scenario.tasks.len()],
            drained_by: None,
        })
    }

    /// Puts everything on the agenda that is known beforehand.
    fn schedule(&mut self) {
        let agenda = &mut self.rig.gpu.agenda;
        if self.scenario.scheduler.is_some() {
            agenda.after(Duration::ZERO, What::SchedulerStart);
        }
        for (task, spec) in self.scenario.tasks.iter().enumerate() {
            if spec.after.is_none() {
                agenda.after(spec.start, What::TaskStart { task });
            }
            for (change, at) in spec.changes.iter().enumerate() {
                agenda.after(at.at, What::PriorityChange { task, change });
            }
        }
        for (fault, spec) in self.scenario.faults.iter().enumerate() {
            agenda.after(spec.at, What::FaultBegins { fault });
        }
    }

    /// Does the next thing on the agenda. Returns whether there is more to do.
    fn step(&mut self) -> Result<bool, SimError> {
        let end = Instant::ZERO + self.scenario.duration;
        let next = self.rig.gpu.agenda.next_at();
        if self.drained_by.is_none() && next.is_none_or(|at| at >= end) {
            self.note_horizon(end);
        }
        // What is on the agenda beyond the last task's end concerns nobody.
        if self.is_over() {
            return Ok(false);
        }
        let Some(what) = self.rig.gpu.agenda.pop() else { return Ok(false) };
        self.events += 1;
        if self.events > self.options.events_max {
            return Err(SimError::TooLong(self.options.events_max));
        }
        self.handle(what);
        self.rig.take_notices();
        if self.rig.wake {
            self.run_scheduler();
        }
        self.check()?;
        Ok(!self.is_over())
    }

    /// Work stops arriving: notes what was done in time and how long the rest may take.
    fn note_horizon(&mut self, end: Instant) {
        for (_, queue) in self.rig.all_queues() {
            let done = queue.launches.iter().filter(|launch| launch.completed > 0).count();
            self.launches_in_time[queue.task] += done as u64;
        }
        self.drained_by = Some(end + DRAIN_MIN + self.rig.work_left().times(4));
    }

    fn is_over(&self) -> bool {
        self.drained_by.is_some()
            && self.rig.clients.iter().all(|client| client.life != Life::Alive)
    }

    fn handle(&mut self, what: What) {
        let rig = &mut self.rig;
        match what {
            What::WaveReady { queue, group, wave, epoch } => {
                rig.gpu.wave_ready(queue, group, wave, epoch);
            }
            What::Fetch { queue } => rig.gpu.fetch(queue),
            What::Seen { queue, .. } => rig.seen(queue),
            What::Saved { queue, epoch } => rig.gpu.finish_save(queue, epoch),
            What::Restored { queue, epoch } => rig.gpu.finish_restore(queue, epoch),
            What::Switched { device, epoch } => rig.gpu.switched(device, epoch),
            What::SliceOver { device, epoch } => rig.gpu.slice_over(device, epoch),
            What::SlotTurn { device } => rig.gpu.slot_turn(device),
            What::CallReaches { device, epoch } => rig.call_reaches(device, epoch),
            What::Resubmitted { queue, epoch } => rig.gpu.finish_resubmit(queue, epoch),
            What::HoldPoll { device, epoch } => rig.hold_poll(device, epoch),
            What::HoldSeen { queue, placed } => rig.gpu.hold_seen(queue, placed),
            What::TaskStart { task } => rig.start_task(task),
            What::Arrive { task } => rig.arrive(task),
            What::Announce { task } => rig.announce(task),
            What::CpuDone { task, request } => rig.go_on(task, request),
            What::EndNoticed { task } => rig.report(Event::TaskVanished { task: task_id(task) }),
            What::PriorityChange { task, change } => rig.change_priority(task, change),
            What::FaultBegins { fault } => self.begin_fault(fault),
            What::SchedulerStep { epoch } if epoch == self.step_epoch => self.run_scheduler(),
            What::SchedulerStep { .. } => {}
            What::SchedulerStart => self.start_scheduler(),
            What::KeeperActs => self.keeper_acts(),
        }
    }

    fn begin_fault(&mut self, fault: usize) {
        let spec = self.scenario.faults[fault];
        match spec.kind {
            FaultKind::TaskDeath(task) => self.rig.end_task(task, Life::Dead),
            FaultKind::DeviceReset(device) => self.rig.reset_device(device),
            FaultKind::SchedulerCrash if self.driver.is_some() => {
                self.driver = None;
                self.rig.lose_scheduler();
                let agenda = &mut self.rig.gpu.agenda;
                agenda.after(KEEPER_DELAY, What::KeeperActs);
                agenda.after(spec.lasts, What::SchedulerStart);
            }
            FaultKind::SchedulerCrash
            | FaultKind::PreemptTimeout
            | FaultKind::ObservationLost
            | FaultKind::ObservationLate(_)
            | FaultKind::ClockAhead(_)
            | FaultKind::ClockBehind(_) => {}
        }
    }

    /// A scheduler starts and adopts what it finds, once no call of its predecessor is under way.
    fn start_scheduler(&mut self) {
        let Some(spec) = self.scenario.scheduler.filter(|_| self.driver.is_none()) else { return };
        if !self.rig.workers.iter().all(crate::control::Worker::is_idle) {
            self.rig.gpu.agenda.after(RETRY, What::SchedulerStart);
            return;
        }
        self.restore_slices();
        if let Ok(driver) = Driver::new(spec.config) {
            self.driver = Some(driver);
            self.rig.introduce();
        }
    }

    /// What a dead scheduler stopped, slowed or held is let go.
    fn keeper_acts(&mut self) {
        if self.driver.is_some() {
            return;
        }
        if !self.rig.workers.iter().all(crate::control::Worker::is_idle) {
            self.rig.gpu.agenda.after(RETRY, What::KeeperActs);
            return;
        }
        self.restore_slices();
        let stopped: Vec<_> = self
            .rig
            .gpu
            .queues
            .iter()
            .filter(|(_, queue)| queue.stopped)
            .map(|(&id, _)| id)
            .collect();
        for queue in stopped {
            self.rig.gpu.resume(queue);
        }
    }

    fn restore_slices(&mut self) {
        let default = self.rig.gpu.model.tsg.slice;
        let changed: Vec<_> = self
            .rig
            .gpu
            .queues
            .iter()
            .filter(|(_, queue)| queue.slice != default)
            .map(|(&id, _)| id)
            .collect();
        for queue in changed {
            self.rig.gpu.set_slice(queue, None);
        }
    }

    fn run_scheduler(&mut self) {
        self.rig.wake = false;
        let Some(driver) = self.driver.as_mut() else { return };
        let wait = driver.step(self.rig.clock(), &mut self.rig);
        while let Some(decision) = driver.scheduler_mut().poll_decision() {
            if self.decisions.len() < self.options.decisions_max {
                // The scheduler's clock may be off; what is kept is when it really happened.
                self.decisions.push(Decision { at: self.rig.now(), ..decision });
            }
        }
        if self.options.check
            && let Err(what) = invariant::check(driver.scheduler())
        {
            self.rig.violation.get_or_insert(what);
        }
        self.step_epoch += 1;
        let epoch = self.step_epoch;
        self.rig.gpu.agenda.after(wait.max(STEP_MIN), What::SchedulerStep { epoch });
    }

    fn check(&mut self) -> Result<(), SimError> {
        if let Some((_, failure)) = self.rig.gpu.failure.take() {
            return Err(SimError::Kernel(failure));
        }
        let now = self.rig.now();
        let mut verdict = Ok(());
        if self.options.check {
            verdict = packets::check(&self.rig);
            if let (Ok(()), Some(inversions)) = (&verdict, self.inversions.as_mut()) {
                verdict = inversions.check(&self.rig);
            }
        }
        if let Some(what) = self.rig.violation.take() {
            verdict = Err(what);
        }
        if self.drained_by.is_some_and(|by| now > by) {
            verdict = Err(self.describe_stuck());
        }
        verdict.map_err(|what| SimError::Violation { at: now, what })
    }

    fn describe_stuck(&self) -> String {
        let alive = self.rig.clients.iter().filter(|client| client.life == Life::Alive);
        let names: Vec<&str> = alive.map(|client| client.spec.name.as_str()).collect();
        format!("work is left that does not get done: {}", names.join(", "))
    }

    fn finish(mut self) -> Result<Outcome, SimError> {
        let now = self.rig.now();
        let difference = memory::first_difference(&self.rig);
        let lost = packets::lost(&self.rig);
        let forgives = self.rig.gpu.machine == MachineKind::Reset;
        if let Some(what) = difference.clone().filter(|_| !forgives) {
            return Err(SimError::Violation { at: now, what });
        }
        if lost > 0 && !forgives {
            let what = format!("{lost} launches of surviving tasks never completed");
            return Err(SimError::Violation { at: now, what });
        }
        let mut launches = vec![0; self.rig.clients.len()];
        for (_, queue) in self.rig.all_queues() {
            launches[queue.task] +=
                queue.launches.iter().filter(|l| l.completed > 0).count() as u64;
        }
        let tasks = self.rig.clients.iter().zip(launches).zip(&self.launches_in_time);
        let tasks = tasks
            .map(|((client, launches), &launches_in_time)| {
                let missed = |served: &&Served| {
                    client.spec.deadline.is_some_and(|deadline| served.latency() > deadline)
                };
                TaskOutcome {
                    name: client.spec.name.clone(),
                    deadline_misses: client.served.iter().filter(missed).count() as u64,
                    served: client.served.clone(),
                    launches_in_time,
                    launches,
                    died: client.life == Life::Dead,
                }
            })
            .collect();
        let tracks = std::mem::take(&mut self.rig.gpu.tracks);
        Ok(Outcome {
            ended_at: now,
            duration: self.scenario.duration,
            tasks,
            preemptions: self.rig.gpu.preemptions,
            reexecuted: self.rig.gpu.reexecuted,
            lost,
            exact: difference.is_none(),
            decisions: self.decisions,
            spans: tracks.finish(now),
            queues: self.rig.roster,
            events: self.events,
        })
    }
}

/// How often whoever watches is told how far the run is.
const EVENTS_PER_NOTE: u64 = 1 << 14;

/// What is left when work stops arriving gets at least this long.
const DRAIN_MIN: Duration = Duration::from_millis(5_000);

/// How long after a scheduler's death the keeper acts (measured: 1.5 to 1.7 ms).
const KEEPER_DELAY: Duration = Duration::from_micros(1_700);

/// How often a starting scheduler looks whether its predecessor's calls are through.
const RETRY: Duration = Duration::from_micros(100);

/// The scheduler's loop never runs more often than this by itself.
const STEP_MIN: Duration = Duration::from_micros(1);
