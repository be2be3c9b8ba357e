//! A model of devices and tasks that completes commands sooner or later and knows the true state.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::backend::Command;
use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::config::Config;
use gpreempt_core::event::{Event, EventError, Fault, SchedAttr};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::invariant;
use gpreempt_core::ring::RingView;
use gpreempt_core::scheduler::Scheduler;
use gpreempt_core::time::{Duration, Instant};

/// No sequence of calls leads to more commands than this at one instant; more is a loop.
const COMMANDS_AT_ONCE_MAX: usize = 10_000;

/// The true state of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    pub(crate) task: TaskId,
    pub(crate) device: DeviceId,
    pub(crate) off: bool,
    pub(crate) work: bool,
    pub(crate) ring: RingView,
}

pub(crate) struct Model {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Instant,
    pub(crate) devices: BTreeMap<DeviceId, Mechanism>,
    pub(crate) tasks: BTreeMap<TaskId, SchedAttr>,
    pub(crate) suspended: BTreeSet<TaskId>,
    pub(crate) suspended_queues: BTreeSet<QueueId>,
    pub(crate) queues: BTreeMap<QueueId, Truth>,
    /// Every identifier of a queue so far.
    pub(crate) announced: BTreeSet<QueueId>,
    /// Commands in flight, also those of queues that vanished.
    pub(crate) in_flight: BTreeMap<QueueId, Command>,
    /// Queues whose preempt has an unknown result.
    preempt_unknown: BTreeSet<QueueId>,
    held: BTreeMap<DeviceId, QueueId>,
}

pub(crate) fn capabilities(mechanism: Mechanism) -> Capabilities {
    Capabilities {
        mechanism,
        level: PreemptLevel::Interrupt,
        preempt_cost: Duration::from_micros(10),
        resume_cost: Duration::from_micros(10),
        quiet: Duration::from_micros(50),
        hold: mechanism == Mechanism::Slice,
        hardware_priority: mechanism == Mechanism::Stop,
    }
}

impl Model {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            now: Instant::ZERO,
            devices: BTreeMap::new(),
            tasks: BTreeMap::new(),
            suspended: BTreeSet::new(),
            suspended_queues: BTreeSet::new(),
            queues: BTreeMap::new(),
            announced: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            preempt_unknown: BTreeSet::new(),
            held: BTreeMap::new(),
        }
    }

    /// Delivers an event, and checks that the scheduler accepts it exactly if it is consistent.
    pub(crate) fn deliver(&mut self, event: Event) {
        let expected = self.expected(event);
        let before = expected.is_err().then(|| format!("{:?}", self.scheduler));
        let result = self.scheduler.handle_event(self.now, event);
        assert_eq!(result, expected, "{event:?}");
        if let Some(before) = before {
            let after = format!("{:?}", self.scheduler);
            // The end of a command whose queue has vanished may make room for another one.
            let is_late = matches!(
                event,
                Event::Preempted { .. }
                    | Event::PreemptFailed { .. }
                    | Event::Resumed { .. }
                    | Event::ResumeFailed { .. }
            ) && matches!(result, Err(EventError::UnknownQueue(_)));
            assert!(is_late || before == after, "{event:?} was refused and changed something");
        } else {
            self.apply(event);
        }
        self.check();
    }

    fn expected(&self, event: Event) -> Result<(), EventError> {
        let device = |id| known(self.devices.contains_key(&id), EventError::UnknownDevice(id));
        let task = |id| known(self.tasks.contains_key(&id), EventError::UnknownTask(id));
        let queue = |id| known(self.queues.contains_key(&id), EventError::UnknownQueue(id));
        match event {
            Event::DeviceAppeared { device: id, .. } => {
                known(device(id).is_err(), EventError::DuplicateDevice(id))
            }
            Event::DeviceCost { device: id, .. }
            | Event::DeviceExternallyScheduled { device: id, .. }
            | Event::DeviceVanished { device: id } => device(id),
            Event::TaskAppeared { task: id, attr } => {
                known(attr.weight > 0, EventError::ZeroWeight(id))?;
                known(task(id).is_err(), EventError::DuplicateTask(id))
            }
            Event::TaskChanged { task: id, attr } => {
                known(attr.weight > 0, EventError::ZeroWeight(id))?;
                task(id)
            }
            Event::TaskVanished { task: id }
            | Event::TaskSuspended { task: id, .. }
            | Event::HintBegin { task: id, .. }
            | Event::HintEnd { task: id } => task(id),
            Event::QueueAppeared { queue: id, task: of, device: on, .. } => {
                known(queue(id).is_err(), EventError::DuplicateQueue(id))?;
                task(of)?;
                device(on)
            }
            Event::QueueChanged { queue: id, .. }
            | Event::QueueSuspended { queue: id, .. }
            | Event::QueueVanished { queue: id }
            | Event::SlowdownMeasured { queue: id, .. }
            | Event::RingObserved { queue: id, .. } => queue(id),
            Event::Preempted { queue: id } | Event::PreemptFailed { queue: id, .. } => {
                queue(id)?;
                let asked = matches!(self.in_flight.get(&id), Some(Command::Preempt { .. }));
                known(asked, EventError::NoCommandInFlight(id))
            }
            Event::Resumed { queue: id } | Event::ResumeFailed { queue: id, .. } => {
                queue(id)?;
                let asked = matches!(self.in_flight.get(&id), Some(Command::Resume { .. }));
                known(asked, EventError::NoCommandInFlight(id))
            }
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::DeviceAppeared { device, capabilities } => {
                self.devices.insert(device, capabilities.mechanism);
            }
            Event::DeviceVanished { device } => {
                self.devices.remove(&device);
                self.queues.retain(|_, queue| queue.device != device);
            }
            Event::TaskAppeared { task, attr } => {
                self.tasks.insert(task, attr);
            }
            Event::TaskChanged { task, attr } => {
                let gang = self.tasks[&task].gang;
                self.tasks.insert(task, SchedAttr { gang, ..attr });
            }
            Event::TaskSuspended { task, suspended: true } => {
                self.suspended.insert(task);
            }
            Event::TaskSuspended { task, suspended: false } => {
                self.suspended.remove(&task);
            }
            Event::QueueSuspended { queue, suspended: true } => {
                self.suspended_queues.insert(queue);
            }
            Event::QueueSuspended { queue, suspended: false } => {
                self.suspended_queues.remove(&queue);
            }
            Event::TaskVanished { task } => {
                self.tasks.remove(&task);
                self.suspended.remove(&task);
                self.queues.retain(|_, queue| queue.task != task);
            }
            Event::QueueAppeared { queue, task, device, stopped } => {
                let truth =
                    Truth { task, device, off: stopped, work: false, ring: RingView::default() };
                self.queues.insert(queue, truth);
                self.announced.insert(queue);
            }
            Event::QueueVanished { queue } => {
                self.queues.remove(&queue);
            }
            Event::Preempted { queue } => self.complete_truly(queue, Some(true)),
            Event::Resumed { queue } => {
                self.preempt_unknown.remove(&queue);
                self.complete_truly(queue, Some(false));
            }
            Event::PreemptFailed { queue, fault: Fault::TimedOut } => {
                // It may have succeeded; for every second queue it did.
                self.complete_truly(queue, queue.0.is_multiple_of(2).then_some(true));
                self.preempt_unknown.insert(queue);
            }
            Event::PreemptFailed { queue, .. } | Event::ResumeFailed { queue, .. } => {
                self.complete_truly(queue, None);
            }
            Event::QueueChanged { .. }
            | Event::RingObserved { .. }
            | Event::SlowdownMeasured { .. }
            | Event::HintBegin { .. }
            | Event::HintEnd { .. }
            | Event::DeviceExternallyScheduled { .. }
            | Event::DeviceCost { .. } => {}
        }
        self.preempt_unknown.retain(|queue| self.queues.contains_key(queue));
        let queues = &self.queues;
        self.held.retain(|_, queue| queues.contains_key(queue));
    }

    fn complete_truly(&mut self, queue: QueueId, off: Option<bool>) {
        self.in_flight.remove(&queue);
        let truth = self.queues.get_mut(&queue).unwrap();
        truth.off = off.unwrap_or(truth.off);
    }

    /// Completes one command, with success or failure, though its queue may be gone.
    pub(crate) fn complete(&mut self, queue: QueueId, fails: bool) {
        let fault = match queue.0 % 5 {
            0 | 2 => Fault::TimedOut,
            1 | 3 => Fault::Refused(7),
            _ => Fault::Gone,
        };
        let event = match (self.in_flight[&queue], fails) {
            (Command::Preempt { .. }, false) => Event::Preempted { queue },
            (Command::Preempt { .. }, true) => Event::PreemptFailed { queue, fault },
            (_, false) => Event::Resumed { queue },
            (_, true) => Event::ResumeFailed { queue, fault },
        };
        let faults_before = self.faults();
        self.deliver(event);
        self.in_flight.remove(&queue);
        if fails && fault == Fault::Gone {
            assert_eq!(self.faults(), faults_before, "a queue that is gone is no fault");
            // The backend reports that once.
            if self.queues.contains_key(&queue) {
                self.deliver(Event::QueueVanished { queue });
            }
        }
    }

    fn faults(&self) -> u64 {
        self.scheduler.queues().map(|view| view.totals.faults).sum()
    }

    pub(crate) fn complete_all(&mut self) {
        while let Some((&queue, _)) = self.in_flight.first_key_value() {
            self.complete(queue, false);
        }
    }

    /// Reads one ring.
    pub(crate) fn observe(&mut self, queue: QueueId) {
        if let Some(truth) = self.queues.get(&queue) {
            let ring = truth.ring;
            self.deliver(Event::RingObserved { queue, ring });
        }
    }

    pub(crate) fn wait(&mut self, duration: Duration) {
        self.now += duration;
        self.scheduler.handle_timeout(self.now);
        self.check();
    }

    pub(crate) fn set_config(&mut self, config: Config) {
        self.scheduler.set_config(self.now, config).unwrap();
        self.check();
    }

    /// Takes all commands and checks that each is consistent with the true state.
    pub(crate) fn drain(&mut self) {
        for _ in 0..COMMANDS_AT_ONCE_MAX {
            let Some(command) = self.scheduler.poll_command() else {
                return;
            };
            self.check();
            let id = command.queue();
            let Some(truth) = self.queues.get(&id) else {
                panic!("{command:?} for a queue that is not there");
            };
            match command {
                Command::Preempt { .. } | Command::Resume { .. } => {
                    assert_eq!(self.in_flight.get(&id), None, "then {command:?}");
                    let resume = matches!(command, Command::Resume { .. });
                    let preempt_unknown = self.preempt_unknown.contains(&id);
                    assert_eq!(truth.off || preempt_unknown, resume, "{command:?} for {truth:?}");
                    let mechanism = self.devices[&truth.device];
                    assert_ne!(mechanism, Mechanism::ObserveOnly, "{command:?}");
                    self.in_flight.insert(id, command);
                }
                Command::SetSlice { .. } => {
                    assert_eq!(self.devices[&truth.device], Mechanism::Slice);
                }
                Command::PermitHold { .. } => {
                    let held = self.held.insert(truth.device, id);
                    assert_eq!(held, None, "two held on one device");
                }
                Command::ForbidHold { .. } => {
                    assert_eq!(self.held.remove(&truth.device), Some(id));
                }
                Command::MeasureSlowdown { .. } | Command::SetHardwarePriority { .. } => {}
            }
        }
        panic!("commands without end");
    }

    /// Completes commands at this instant until there are none.
    pub(crate) fn rest(&mut self) {
        for _ in 0..1000 {
            self.drain();
            if self.in_flight.is_empty() {
                return;
            }
            self.complete_all();
        }
        panic!("there are always new commands");
    }

    fn check(&self) {
        invariant::check(&self.scheduler).unwrap();
    }
}

fn known(holds: bool, error: EventError) -> Result<(), EventError> {
    if holds { Ok(()) } else { Err(error) }
}
