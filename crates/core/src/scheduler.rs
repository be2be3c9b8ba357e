//! The scheduler: events in, commands out.
//!
//! Call order: any number of `handle_*`, then `poll_command` until it has no more, then
//! `poll_decision` for the reasons, then sleep until `poll_timeout` or the next event. Time must
//! not run backwards between calls; [`crate::scheduler_loop`] ensures that.
//!
//! Every queue with work has a rank on its device. The highest rank runs; equal ranks run together.
//! A queue that is on below the highest rank is a priority inversion: it is preempted. A queue of
//! the highest rank that is off is resumed.
//!
//! Every event costs a few lookups in ordered maps, so the cost grows with the logarithm of the
//! number of queues; every command is found in the same way, one at a time.

mod activity;
mod aging;
pub(crate) mod background;
mod gang;
mod min_share;
mod next_command;
mod registry;
pub(crate) mod run_order;
mod slices_and_holds;
pub(crate) mod state;
mod turn;

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};

pub use state::QueueView;

use crate::backend::Command;
use crate::config::{Config, ConfigError};
use crate::decision::{Decision, Reason, UnreadLog};
use crate::event::{Event, EventError, Fault};
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::statistics::{Measurement, MeasurementKind};
use crate::time::{Duration, Instant};
use crate::timer::{Timer, Timers};
use state::{Device, Gang, Queue, Task};

/// Decides which queues run on every device.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    now: Instant,
    devices: BTreeMap<DeviceId, Device>,
    tasks: BTreeMap<TaskId, Task>,
    queues: BTreeMap<QueueId, Queue>,
    gangs: BTreeMap<GangId, Gang>,
    timers: Timers,
    /// Devices that changed since their last command was computed.
    changed_devices: BTreeSet<DeviceId>,
    decisions: UnreadLog<Decision>,
    measurements: UnreadLog<Measurement>,
    /// Whether there was a task with a minimum share: until then no queue is counted for one.
    has_min_share: bool,
    /// The number of turns that were used up.
    turn: u64,
    /// Whether the gangs were updated since the last event or timer. An update moves turns, which
    /// would require another one; one for each event suffices and terminates.
    gangs_updated: bool,
}

impl Scheduler {
    /// A scheduler without devices and tasks.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            config,
            now: Instant::ZERO,
            devices: BTreeMap::new(),
            tasks: BTreeMap::new(),
            queues: BTreeMap::new(),
            gangs: BTreeMap::new(),
            timers: Timers::default(),
            changed_devices: BTreeSet::new(),
            decisions: UnreadLog::default(),
            measurements: UnreadLog::default(),
            has_min_share: false,
            turn: 0,
            gangs_updated: false,
        })
    }

    /// The settings in force.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings; running queues keep running until the next command.
    ///
    /// # Errors
    /// If a setting is invalid; then nothing changes.
    pub fn set_config(&mut self, now: Instant, config: Config) -> Result<(), ConfigError> {
        config.check()?;
        self.advance(now);
        self.config = config;
        self.gangs_updated = false;
        let devices: alloc::vec::Vec<_> = self.devices.keys().copied().collect();
        for device in devices {
            self.end_turns(device);
            self.reset_virtual_time(device);
            self.update_device(device);
            self.set_starvation_timer(device);
        }
        Ok(())
    }

    /// Takes in one event.
    ///
    /// # Errors
    /// If it contradicts the state; then nothing changes.
    pub fn handle_event(&mut self, now: Instant, event: Event) -> Result<(), EventError> {
        self.advance(now);
        let is_completion = matches!(
            event,
            Event::Preempted { .. }
                | Event::PreemptFailed { .. }
                | Event::Resumed { .. }
                | Event::ResumeFailed { .. }
        );
        let result = match event {
            Event::DeviceAppeared { device, capabilities } => self.add_device(device, capabilities),
            Event::DeviceCost { device, preempt_cost, resume_cost } => {
                self.set_cost(device, preempt_cost, resume_cost)
            }
            Event::DeviceExternallyScheduled { device, externally_scheduled } => {
                self.set_externally_scheduled(device, externally_scheduled)
            }
            Event::DeviceVanished { device } => self.remove_device(device),
            Event::TaskAppeared { task, attr } => self.add_task(task, attr),
            Event::TaskChanged { task, attr } => self.change_task(task, attr),
            Event::TaskSuspended { task, suspended } => self.suspend_task(task, suspended),
            Event::TaskVanished { task } => self.remove_task(task),
            Event::QueueAppeared { queue, task, device, stopped } => {
                self.add_queue(queue, task, device, stopped)
            }
            Event::QueueChanged { queue, priority } => self.change_queue(queue, priority),
            Event::QueueSuspended { queue, suspended } => self.suspend_queue(queue, suspended),
            Event::QueueVanished { queue } => self.remove_queue(queue),
            Event::RingObserved { queue, ring } => self.observe(queue, ring),
            Event::SlowdownMeasured { queue, time } => self.note_slowdown(queue, time),
            Event::HintBegin { task, deadline } => self.begin_hint(task, deadline),
            Event::HintEnd { task } => self.end_hint(task),
            Event::Preempted { queue } => self.finish_preempt(queue),
            Event::PreemptFailed { queue, fault } => self.fail(queue, fault, true),
            Event::Resumed { queue } => self.finish_resume(queue),
            Event::ResumeFailed { queue, fault } => self.fail(queue, fault, false),
        };
        if let Err(EventError::UnknownQueue(queue)) = result
            && is_completion
        {
            self.end_vanished(queue);
        }
        self.gangs_updated &= result.is_err();
        result
    }

    /// Handles the timers that have expired.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        while let Some(timer) = self.timers.pop(self.now) {
            self.gangs_updated = false;
            match timer {
                Timer::Idle(queue) => self.set_active(queue, false),
                Timer::Overdue(queue) => self.report_overdue(queue),
                Timer::Retry(queue) => self.end_backoff(queue),
                Timer::HintOver(task) => self.drop_hint(task),
                Timer::SliceOver(device, class) => self.end_turn(device, class),
                Timer::Starving(device) => self.boost_starving(device),
                Timer::BoostOver(device) => self.end_boost(device),
                Timer::Vanished(_, queue) => self.end_vanished(queue),
                Timer::Background(device) => drop(self.changed_devices.insert(device)),
            }
        }
    }

    /// The next command for the backend.
    pub fn poll_command(&mut self) -> Option<Command> {
        // A device that changes while its command is computed is inserted again.
        while let Some(device) = self.changed_devices.pop_first() {
            if let Some(command) = self.next_command(device) {
                self.changed_devices.insert(device);
                return Some(command);
            }
        }
        None
    }

    /// When `handle_timeout` has to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The oldest decision that was not read yet.
    pub fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop()
    }

    /// How many decisions were dropped because they were not read.
    pub const fn decisions_dropped(&self) -> u64 {
        self.decisions.dropped()
    }

    /// The oldest measurement that was not read yet.
    pub fn poll_measurement(&mut self) -> Option<Measurement> {
        self.measurements.pop()
    }

    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    fn decide(&mut self, queue: QueueId, reason: Reason) {
        self.decisions.push(Decision { at: self.now, queue, reason });
    }

    fn queue_mut(&mut self, queue: QueueId) -> Result<&mut Queue, EventError> {
        self.queues.get_mut(&queue).ok_or(EventError::UnknownQueue(queue))
    }

    fn finish_preempt(&mut self, id: QueueId) -> Result<(), EventError> {
        let now = self.now;
        let queue = self.queue_mut(id)?;
        let next =
            queue.run_state.next(Transition::Done).ok_or(EventError::NoCommandInFlight(id))?;
        if next != RunState::Off {
            return Err(EventError::NoCommandInFlight(id));
        }
        queue.run_state = next;
        queue.off_since = now;
        queue.failures = 0;
        queue.meter.totals.preempts += 1;
        let (device, latency) = (queue.device, now.since(queue.commanded_at));
        let measured = queue.measured(MeasurementKind::Preempt, latency);
        let queue_is_done = queue.ring.is_done();
        self.finish_awaiting(id);
        if let Some(device) = self.devices.get_mut(&device) {
            device.preempt_latency.record(latency);
        }
        self.measurements.push(measured);
        // It may have had work in spite of its empty ring; only a finished ring proves otherwise.
        if !queue_is_done {
            self.set_active(id, true);
        }
        self.update_queue(id);
        Ok(())
    }

    fn finish_resume(&mut self, id: QueueId) -> Result<(), EventError> {
        let (interval, now) = (self.config.interval, self.now);
        let queue = self.queue_mut(id)?;
        let next =
            queue.run_state.next(Transition::Done).ok_or(EventError::NoCommandInFlight(id))?;
        if next != RunState::On {
            return Err(EventError::NoCommandInFlight(id));
        }
        queue.run_state = next;
        queue.meter.totals.resumes += 1;
        queue.resume_idle_timer(now);
        self.end_in_background(id);
        let queue = self.queue_mut(id)?;
        if core::mem::take(&mut queue.preempt_unknown) {
            // The queue is on for certain; the preempt is retried later.
            queue.backing_off = true;
            let retry_in = backoff(interval, queue.failures);
            self.timers.set(Timer::Retry(id), self.now + retry_in);
        } else {
            queue.failures = 0;
        }
        self.update_queue(id);
        Ok(())
    }

    /// A command failed: no other for this queue before a retry time that doubles each time.
    fn fail(&mut self, id: QueueId, fault: Fault, preempt: bool) -> Result<(), EventError> {
        let (interval, now) = (self.config.interval, self.now);
        let queue = self.queue_mut(id)?;
        let asked = if preempt { RunState::Preempting } else { RunState::Resuming };
        let is_gone = fault == Fault::Gone;
        let preempt_unknown = preempt && fault == Fault::TimedOut;
        let edge = if preempt_unknown { Transition::Unknown } else { Transition::Failed };
        let next = queue.run_state.next(edge).filter(|_| queue.run_state == asked);
        queue.run_state = next.ok_or(EventError::NoCommandInFlight(id))?;
        self.end_in_background(id);
        let queue = self.queue_mut(id)?;
        if queue.run_state == RunState::On {
            queue.resume_idle_timer(now);
        }
        queue.preempt_unknown |= preempt_unknown;
        if is_gone {
            // No failure: the backend will report that the queue vanished.
            queue.backing_off = true;
            if preempt {
                self.finish_awaiting(id);
            }
            self.timers.set(Timer::Retry(id), now + GONE_MAX);
            self.update_queue(id);
            return Ok(());
        }
        let retry_in = backoff(interval, queue.failures);
        queue.failures = queue.failures.saturating_add(1);
        queue.backing_off = !preempt_unknown;
        queue.meter.totals.faults += 1;
        if preempt {
            self.finish_awaiting(id);
            self.decide(id, Reason::PreemptFailed { fault, retry_in });
        } else {
            self.decide(id, Reason::ResumeFailed { fault, retry_in });
        }
        if !preempt_unknown {
            self.timers.set(Timer::Retry(id), self.now + retry_in);
        }
        self.update_queue(id);
        Ok(())
    }

    fn end_backoff(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.backing_off = false;
            self.update_queue(id);
        }
    }

    /// A preempt is late: it is reported, and the other queues no longer wait for it.
    fn report_overdue(&mut self, id: QueueId) {
        let now = self.now;
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.meter.totals.faults += 1;
            let after = now.since(queue.commanded_at);
            self.finish_awaiting(id);
            self.decide(id, Reason::Overdue { after });
        }
    }

    /// A queue's preempt has finished, or the other queues no longer wait for it.
    fn finish_awaiting(&mut self, id: QueueId) {
        self.end_in_background(id);
        self.timers.stop(Timer::Overdue(id));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if core::mem::take(&mut queue.preempt_awaited)
            && let Some(device) = self.devices.get_mut(&queue.device)
        {
            let order = device.run_order_mut(queue.order);
            order.preempting -= 1;
            self.changed_devices.insert(queue.device);
            if order.preempting == 0
                && let Some((winner, since)) = order.blocked.take()
                && self.queues.get(&winner).is_some_and(|winner| winner.active)
            {
                self.note_wait(winner, self.now.since(since));
            }
        }
    }

    /// A queue with work has waited for its device.
    fn note_wait(&mut self, id: QueueId, waited: Duration) {
        let Some(queue) = self.queues.get(&id) else { return };
        if let Some(task) = self.tasks.get_mut(&queue.task) {
            task.waits.record(waited);
        }
        self.measurements.push(queue.measured(MeasurementKind::Wait, waited));
    }
}

/// Whether the hardware may run a queue.
///
/// ```text
///              Preempt                  done
///      On ----------------> Preempting ------> Off
///       ^ ^                     |               |
///       | +------- failed ------+               | Resume
///       |                                       v
///       +------------------ done --------- Resuming
///                                failed: back to Off
/// ```
/// After a preempt that timed out the queue counts as off and is resumed before any other command.
///
/// [`RunState::next`] permits no other transitions, so at most one command is in flight for a
/// queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// The hardware may run it.
    On,
    /// A preempt is in flight.
    Preempting,
    /// Preempted: its kernel is saved or finished, its ring is unchanged.
    Off,
    /// A resume is in flight.
    Resuming,
}

/// What changes a run state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A preempt was commanded.
    Preempt,
    /// A resume was commanded.
    Resume,
    /// The command succeeded.
    Done,
    /// The command failed.
    Failed,
    /// The result is unknown. The queue counts as off, so that it is resumed.
    Unknown,
}

impl RunState {
    /// The state after `transition`; none if it is not possible here.
    pub const fn next(self, transition: Transition) -> Option<Self> {
        match (self, transition) {
            (Self::On, Transition::Preempt) => Some(Self::Preempting),
            (Self::Preempting, Transition::Done | Transition::Unknown)
            | (Self::Resuming, Transition::Failed | Transition::Unknown) => Some(Self::Off),
            (Self::Off, Transition::Resume) => Some(Self::Resuming),
            (Self::Resuming, Transition::Done) | (Self::Preempting, Transition::Failed) => {
                Some(Self::On)
            }
            (Self::On | Self::Off, _)
            | (Self::Preempting | Self::Resuming, Transition::Preempt | Transition::Resume) => None,
        }
    }

    /// Whether a command is in flight.
    pub const fn is_moving(self) -> bool {
        matches!(self, Self::Preempting | Self::Resuming)
    }
}

/// The time to the next try after that many failures.
fn backoff(interval: Duration, failures: u32) -> Duration {
    interval.times(1 << failures.min(6)).min(RETRY_MAX)
}

/// The longest time between two tries.
const RETRY_MAX: Duration = Duration::from_millis(200);

/// If a backend reported [`Fault::Gone`] and the queue has not vanished after this time, commands
/// for it are tried again. Backends report within a few milliseconds that a queue vanished.
const GONE_MAX: Duration = Duration::from_millis(1_000);
