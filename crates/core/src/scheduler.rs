//! The scheduler: events in, commands out.
//!
//! Call order: any number of `handle_*`, then `poll_command` until it has no more, then
//! `poll_decision` if somebody wants to know why, then sleep until `poll_timeout` or the next
//! event. Time must not run backwards between calls; [`crate::clock::SteadyClock`] sees to that.
//!
//! The idea in four lines: every queue with work has a rank on its device. The highest rank runs;
//! equal ranks run together. A queue that runs below the top is a priority inversion: it is
//! preempted. A queue that is off and belongs to the top is resumed.
//!
//! Every event costs a few lookups in ordered maps, so the cost grows with the logarithm of the
//! number of queues; every command is found in the same way, one at a time.

mod activity;
mod aging;
mod doubt;
mod gang;
pub(crate) mod order;
mod registry;
pub(crate) mod state;
mod suspension;
mod tuning;
mod turn;
mod view;

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};

pub use view::QueueView;

use crate::command::Command;
use crate::config::{Config, ConfigError};
use crate::decision::{Decision, DecisionLog, Reason};
use crate::event::{Event, EventError, Fault};
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::time::{Duration, Instant};
use crate::timer::{Timer, Timers};
use state::{Device, Gang, Queue, Task};

/// Decides who runs on every device.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    now: Instant,
    devices: BTreeMap<DeviceId, Device>,
    tasks: BTreeMap<TaskId, Task>,
    queues: BTreeMap<QueueId, Queue>,
    gangs: BTreeMap<GangId, Gang>,
    timers: Timers,
    /// Devices where something changed since they were last looked at.
    unsettled: BTreeSet<DeviceId>,
    decisions: DecisionLog,
    /// The last turn that was given up.
    turn: u64,
    /// Whether the gangs were judged since something happened. Judging moves turns, which is a
    /// reason to judge again; once for each thing that happens is enough, and it ends.
    judged: bool,
}

impl Scheduler {
    /// A scheduler that knows nobody yet.
    ///
    /// # Errors
    /// If a setting makes no sense.
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
            unsettled: BTreeSet::new(),
            decisions: DecisionLog::default(),
            turn: 0,
            judged: false,
        })
    }

    /// The settings in force.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Changes the settings while everything runs.
    ///
    /// # Errors
    /// If a setting makes no sense; then nothing changes.
    pub fn set_config(&mut self, now: Instant, config: Config) -> Result<(), ConfigError> {
        config.check()?;
        self.advance(now);
        self.config = config;
        self.judged = false;
        let devices: alloc::vec::Vec<_> = self.devices.keys().copied().collect();
        for device in devices {
            self.end_turns(device);
            self.forget_virtual_time(device);
            self.reorder_device(device);
            self.watch_for_starvation(device);
        }
        Ok(())
    }

    /// Takes note of something that happened.
    ///
    /// # Errors
    /// If it cannot be true; then nothing changes.
    pub fn handle_event(&mut self, now: Instant, event: Event) -> Result<(), EventError> {
        self.advance(now);
        let result = match event {
            Event::DeviceAppeared { device, capabilities } => self.add_device(device, capabilities),
            Event::DeviceCost { device, preempt_cost, resume_cost } => {
                self.set_cost(device, preempt_cost, resume_cost)
            }
            Event::DeviceYielded { device, yielded } => self.set_yielded(device, yielded),
            Event::DeviceVanished { device } => self.remove_device(device),
            Event::TaskAppeared { task, traits } => self.add_task(task, traits),
            Event::TaskChanged { task, traits } => self.change_task(task, traits),
            Event::TaskSuspended { task, suspended } => self.suspend_task(task, suspended),
            Event::TaskVanished { task } => self.remove_task(task),
            Event::QueueAppeared { queue, task, device, stopped } => {
                self.add_queue(queue, task, device, stopped)
            }
            Event::QueueChanged { queue, priority } => self.change_queue(queue, priority),
            Event::QueueSuspended { queue, suspended } => self.suspend_queue(queue, suspended),
            Event::QueueVanished { queue } => self.remove_queue(queue),
            Event::RingObserved { queue, ring } => self.observe(queue, ring),
            Event::HintBegin { task, deadline } => self.begin_hint(task, deadline),
            Event::HintEnd { task } => self.end_hint(task),
            Event::Preempted { queue } => self.finish_preempt(queue),
            Event::PreemptFailed { queue, fault } => self.fail(queue, fault, true),
            Event::Resumed { queue } => self.finish_resume(queue),
            Event::ResumeFailed { queue, fault } => self.fail(queue, fault, false),
        };
        self.judged &= result.is_err();
        result
    }

    /// Does what time alone brings about.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        while let Some(timer) = self.timers.pop(self.now) {
            self.judged = false;
            match timer {
                Timer::Idle(queue) => self.set_active(queue, false),
                Timer::Overdue(queue) => self.report_overdue(queue),
                Timer::Retry(queue) => self.release_stuck(queue),
                Timer::HintOver(task) => self.drop_hint(task),
                Timer::SliceOver(device, class) => self.end_turn(device, class),
                Timer::Starving(device) => self.help_starving(device),
                Timer::GrantOver(device) => self.end_grant(device),
            }
        }
    }

    /// The next thing the hardware has to do, if any.
    pub fn poll_command(&mut self) -> Option<Command> {
        // A device that changes while it is settled comes round again.
        while let Some(device) = self.unsettled.pop_first() {
            if let Some(command) = self.settle(device) {
                self.unsettled.insert(device);
                return Some(command);
            }
        }
        None
    }

    /// When `handle_timeout` has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// The next choice that nobody has read yet, oldest first.
    pub fn poll_decision(&mut self) -> Option<Decision> {
        self.decisions.pop()
    }

    /// How many decisions were forgotten because nobody read them.
    pub const fn decisions_dropped(&self) -> u64 {
        self.decisions.dropped()
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
        let next = queue.standing.next(Edge::Done).ok_or(EventError::NotAskedFor(id))?;
        if next != Standing::Off {
            return Err(EventError::NotAskedFor(id));
        }
        queue.standing = next;
        queue.off_since = now;
        queue.failures = 0;
        queue.meter.account.preempts += 1;
        let (device, latency) = (queue.device, now.since(queue.commanded_at));
        let queue_is_done = queue.ring.is_done();
        self.stop_waiting(id);
        if let Some(device) = self.devices.get_mut(&device) {
            device.preempt_latency.record(latency);
        }
        // It looked idle and may not have been: until its ring says so, it is not.
        if !queue_is_done {
            self.set_active(id, true);
        }
        self.reseat(id);
        Ok(())
    }

    fn finish_resume(&mut self, id: QueueId) -> Result<(), EventError> {
        let (interval, now) = (self.config.interval, self.now);
        let queue = self.queue_mut(id)?;
        let next = queue.standing.next(Edge::Done).ok_or(EventError::NotAskedFor(id))?;
        if next != Standing::On {
            return Err(EventError::NotAskedFor(id));
        }
        queue.standing = next;
        queue.meter.account.resumes += 1;
        queue.go_on_doubting(now);
        if core::mem::take(&mut queue.doubtful) {
            // It runs for certain; the preempt that was given up on is not repeated at once.
            queue.stuck = true;
            let retry_in = backoff(interval, queue.failures);
            self.timers.set(Timer::Retry(id), self.now + retry_in);
        } else {
            queue.failures = 0;
        }
        self.reseat(id);
        Ok(())
    }

    /// A command did not happen: leave the queue alone for a while, longer each time.
    fn fail(&mut self, id: QueueId, fault: Fault, preempt: bool) -> Result<(), EventError> {
        let (interval, now) = (self.config.interval, self.now);
        let queue = self.queue_mut(id)?;
        let asked = if preempt { Standing::Preempting } else { Standing::Resuming };
        let is_gone = fault == Fault::Gone;
        let doubtful = preempt && fault == Fault::TimedOut;
        let edge = if doubtful { Edge::Unknown } else { Edge::Failed };
        let next = queue.standing.next(edge).filter(|_| queue.standing == asked);
        queue.standing = next.ok_or(EventError::NotAskedFor(id))?;
        if queue.standing == Standing::On {
            queue.go_on_doubting(now);
        }
        queue.doubtful |= doubtful;
        if is_gone {
            // No failure: the backend reports that the queue vanished. Until then it is left alone.
            queue.stuck = true;
            if preempt {
                self.stop_waiting(id);
            }
            self.timers.set(Timer::Retry(id), now + GONE_MAX);
            self.reseat(id);
            return Ok(());
        }
        let retry_in = backoff(interval, queue.failures);
        queue.failures = queue.failures.saturating_add(1);
        queue.stuck = !doubtful;
        queue.meter.account.faults += 1;
        if preempt {
            self.stop_waiting(id);
            self.decide(id, Reason::PreemptFailed { fault, retry_in });
        } else {
            self.decide(id, Reason::ResumeFailed { fault, retry_in });
        }
        if !doubtful {
            self.timers.set(Timer::Retry(id), self.now + retry_in);
        }
        self.reseat(id);
        Ok(())
    }

    fn release_stuck(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.stuck = false;
            self.reseat(id);
        }
    }

    /// A preempt is late. Somebody hears about it, and the others no longer wait for it.
    fn report_overdue(&mut self, id: QueueId) {
        let now = self.now;
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.meter.account.faults += 1;
            let after = now.since(queue.commanded_at);
            self.stop_waiting(id);
            self.decide(id, Reason::Overdue { after });
        }
    }

    /// A queue's preempt has finished, or nobody waits for it any longer.
    fn stop_waiting(&mut self, id: QueueId) {
        self.timers.stop(Timer::Overdue(id));
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if core::mem::take(&mut queue.awaited)
            && let Some(device) = self.devices.get_mut(&queue.device)
        {
            device.lane_mut(queue.lane).preempting -= 1;
            self.unsettled.insert(queue.device);
        }
    }
}

/// Whether the hardware may run a queue, and how that may change.
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
/// A preempt that was given up on may have happened or not: the queue counts as off, and is told to
/// run before anything else is done with it.
///
/// The picture is the law: [`Standing::next`] knows no other edges, so at most one command is
/// ever in flight for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may. Whether it does is the hardware's business.
    On,
    /// A preempt is in flight.
    Preempting,
    /// It may not: its running kernel is saved, its ring is as it was.
    Off,
    /// A resume is in flight.
    Resuming,
}

/// What moves a queue along an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// We asked for a preempt.
    Preempt,
    /// We asked for a resume.
    Resume,
    /// What was asked for happened.
    Done,
    /// What was asked for did not happen.
    Failed,
    /// It is unknown whether it happened. The queue counts as off, so that it is resumed.
    Unknown,
}

impl Standing {
    /// Where `edge` leads from here, if it leads anywhere.
    pub const fn next(self, edge: Edge) -> Option<Self> {
        match (self, edge) {
            (Self::On, Edge::Preempt) => Some(Self::Preempting),
            (Self::Preempting, Edge::Done | Edge::Unknown)
            | (Self::Resuming, Edge::Failed | Edge::Unknown) => Some(Self::Off),
            (Self::Off, Edge::Resume) => Some(Self::Resuming),
            (Self::Resuming, Edge::Done) | (Self::Preempting, Edge::Failed) => Some(Self::On),
            (Self::On | Self::Off, _)
            | (Self::Preempting | Self::Resuming, Edge::Preempt | Edge::Resume) => None,
        }
    }

    /// Whether a command is in flight.
    pub const fn is_moving(self) -> bool {
        matches!(self, Self::Preempting | Self::Resuming)
    }
}

/// How long a queue is left alone after that many failures.
fn backoff(interval: Duration, failures: u32) -> Duration {
    interval.times(1 << failures.min(6)).min(RETRY_MAX)
}

/// The longest time a queue is left alone after a failed command.
const RETRY_MAX: Duration = Duration::from_millis(200);

/// A queue of which a backend said that it is gone, and which has not vanished after this time, is
/// there: commands for it are given again. Backends report within a few milliseconds that a queue
/// vanished.
const GONE_MAX: Duration = Duration::from_millis(1_000);
