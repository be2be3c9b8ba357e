//! Scenarios for the scheduler: devices and tasks, some events, and which queues are on then.
//!
//! The testbed is a scheduler, a clock, and simulated devices that complete commands after their
//! cost.

mod activity;
mod background;
mod budgets;
mod faults;
mod gangs;
mod priorities;
mod turns;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec::Vec;

use crate::backend::{Capabilities, Command, Mechanism, PreemptLevel};
use crate::config::Config;
use crate::decision::{Decision, Reason};
use crate::event::{Event, Fault, SchedAttr};
use crate::id::{DeviceId, QueueId, TaskId};
use crate::invariant;
use crate::priority::Priority;
use crate::queue::RunState;
use crate::ring::RingView;
use crate::scheduler::{QueueView, Scheduler};
use crate::time::{Duration, Instant};

const STOP: Capabilities = Capabilities {
    mechanism: Mechanism::Stop,
    level: PreemptLevel::Interrupt,
    preempt_cost: Duration::from_micros(20),
    resume_cost: Duration::from_micros(10),
    quiet: Duration::from_micros(500),
    hold: false,
    hardware_priority: false,
};

const SLICE: Capabilities = Capabilities { mechanism: Mechanism::Slice, hold: true, ..STOP };

struct Testbed {
    scheduler: Scheduler,
    now: Instant,
    devices: BTreeMap<DeviceId, Capabilities>,
    rings: BTreeMap<QueueId, RingView>,
    at: BTreeMap<QueueId, DeviceId>,
    observe_at: Instant,
    in_flight: BTreeMap<(Instant, QueueId), Command>,
    /// Every command so far.
    commands: Vec<(Instant, Command)>,
    decisions: Vec<Decision>,
    /// Queues whose commands fail.
    broken: BTreeSet<QueueId>,
    /// Queues whose commands fail with `Fault::Gone`.
    gone: BTreeSet<QueueId>,
    /// Queues whose preempts take another time.
    slow: BTreeMap<QueueId, Duration>,
    slices: BTreeMap<u64, Option<Duration>>,
    held: BTreeMap<DeviceId, u64>,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn level(level: u8) -> Priority {
    Priority::new(level).unwrap()
}

/// The attributes of a task of that priority.
fn with(priority: u8) -> SchedAttr {
    SchedAttr { priority: level(priority), ..SchedAttr::default() }
}

impl Testbed {
    fn new(config: Config) -> Self {
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            now: Instant::ZERO,
            devices: BTreeMap::new(),
            rings: BTreeMap::new(),
            at: BTreeMap::new(),
            observe_at: Instant::ZERO,
            in_flight: BTreeMap::new(),
            commands: Vec::new(),
            decisions: Vec::new(),
            broken: BTreeSet::new(),
            gone: BTreeSet::new(),
            slow: BTreeMap::new(),
            slices: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// With one device, number 0.
    fn with_device(config: Config, capabilities: Capabilities) -> Self {
        let mut bed = Self::new(config);
        bed.device(0, capabilities);
        bed
    }

    fn device(&mut self, device: u32, capabilities: Capabilities) {
        let device = DeviceId(device);
        self.devices.insert(device, capabilities);
        self.deliver(Event::DeviceAppeared { device, capabilities });
    }

    /// A task with one queue of the same number on device 0.
    fn task(&mut self, number: u64, attr: SchedAttr) {
        self.deliver(Event::TaskAppeared { task: TaskId(number), attr });
        self.queue(number, number, 0);
    }

    /// The same on any device, with work in its queue.
    fn task_on(&mut self, number: u64, device: u32, attr: SchedAttr) {
        self.deliver(Event::TaskAppeared { task: TaskId(number), attr });
        self.queue(number, number, device);
        self.busy(number);
    }

    /// The same on device 0.
    fn busy_task(&mut self, number: u64, attr: SchedAttr) {
        self.task_on(number, 0, attr);
    }

    fn queue(&mut self, queue: u64, task: u64, device: u32) {
        self.announce(queue, task, device, false);
    }

    fn announce(&mut self, queue: u64, task: u64, device: u32, stopped: bool) {
        let (queue, device) = (QueueId(queue), DeviceId(device));
        self.rings.insert(queue, RingView::default());
        self.at.insert(queue, device);
        self.deliver(Event::QueueAppeared { queue, task: TaskId(task), device, stopped });
    }

    /// Delivers an event that has to be accepted.
    fn deliver(&mut self, event: Event) {
        self.scheduler.handle_event(self.now, event).unwrap();
        self.submit_all();
    }

    /// From now on the queue's ring has work.
    fn busy(&mut self, queue: u64) {
        let ring = self.rings.get_mut(&QueueId(queue)).unwrap();
        (ring.put, ring.running) = (ring.get + 1, None);
    }

    /// From now on the queue's ring is empty, and the device does not report whether it is done.
    fn fetched(&mut self, queue: u64) {
        let ring = self.rings.get_mut(&QueueId(queue)).unwrap();
        (ring.get, ring.running) = (ring.put, None);
    }

    /// From now on the device reports that the queue is done.
    fn done(&mut self, queue: u64) {
        let ring = self.rings.get_mut(&QueueId(queue)).unwrap();
        (ring.get, ring.running) = (ring.put, Some(false));
    }

    /// Removes the ring of a queue that vanishes.
    fn forget(&mut self, queue: u64) {
        self.rings.remove(&QueueId(queue));
        // A hold ends with its queue.
        self.held.retain(|_, held| *held != queue);
    }

    fn change(&mut self, task: u64, attr: SchedAttr) {
        self.deliver(Event::TaskChanged { task: TaskId(task), attr });
    }

    fn set_queue_priority(&mut self, queue: u64, priority: Option<u8>) {
        self.deliver(Event::QueueChanged { queue: QueueId(queue), priority: priority.map(level) });
    }

    fn suspend(&mut self, task: u64, suspended: bool) {
        self.deliver(Event::TaskSuspended { task: TaskId(task), suspended });
    }

    fn suspend_queue(&mut self, queue: u64, suspended: bool) {
        self.deliver(Event::QueueSuspended { queue: QueueId(queue), suspended });
    }

    fn hint(&mut self, task: u64, deadline: Option<Duration>) {
        self.deliver(Event::HintBegin { task: TaskId(task), deadline });
    }

    fn end_hint(&mut self, task: u64) {
        self.deliver(Event::HintEnd { task: TaskId(task) });
    }

    fn vanish_queue(&mut self, queue: u64) {
        self.forget(queue);
        self.deliver(Event::QueueVanished { queue: QueueId(queue) });
    }

    /// A task with one queue of the same number vanishes.
    fn vanish_task(&mut self, task: u64) {
        self.forget(task);
        self.deliver(Event::TaskVanished { task: TaskId(task) });
    }

    fn reconfigure(&mut self, config: Config) {
        self.scheduler.set_config(self.now, config).unwrap();
        self.submit_all();
    }

    /// Runs for a while: rings are read, commands complete, timers end, each at its time.
    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end) {}
        self.now = end;
    }

    /// Handles what happens next, if that is before `end`.
    fn step(&mut self, end: Instant) -> bool {
        let completes = self.in_flight.first_key_value().map(|(&(at, _), _)| at);
        let times = [Some(self.observe_at), completes, self.scheduler.poll_timeout()];
        let Some(next) = times.into_iter().flatten().min().filter(|&at| at <= end) else {
            return false;
        };
        self.now = self.now.max(next);
        if let Some(entry) = self.in_flight.first_entry()
            && entry.key().0 <= self.now
        {
            let command = entry.remove();
            self.complete(command);
        }
        if self.observe_at <= self.now {
            self.observe_at = self.now + self.scheduler.config().interval;
            for (queue, ring) in self.rings.clone() {
                self.deliver(Event::RingObserved { queue, ring });
            }
        }
        self.scheduler.handle_timeout(self.now);
        self.submit_all();
        true
    }

    fn complete(&mut self, command: Command) {
        let queue = command.queue();
        let is_gone = self.gone.contains(&queue);
        let fault = if is_gone { Fault::Gone } else { Fault::Refused(0x65) };
        let event = match (command, is_gone || self.broken.contains(&queue)) {
            (Command::Preempt { .. }, false) => Event::Preempted { queue },
            (Command::Preempt { .. }, true) => Event::PreemptFailed { queue, fault },
            (_, false) => Event::Resumed { queue },
            (_, true) => Event::ResumeFailed { queue, fault },
        };
        // A queue may vanish before its command completes; then the completion is refused.
        let known = self.rings.contains_key(&queue);
        assert_eq!(self.scheduler.handle_event(self.now, event).is_ok(), known);
        self.submit_all();
    }

    fn submit_all(&mut self) {
        invariant::check(&self.scheduler).unwrap();
        while let Some(command) = self.scheduler.poll_command() {
            invariant::check(&self.scheduler).unwrap();
            self.commands.push((self.now, command));
            let queue = command.queue();
            let device = self.at[&queue];
            let capabilities = self.devices[&device];
            match command {
                Command::Preempt { level, .. } => {
                    assert_eq!(level, capabilities.level);
                    let cost = self.slow.get(&queue).copied();
                    self.submit(command, cost.unwrap_or(capabilities.preempt_cost));
                }
                Command::Resume { .. } => self.submit(command, capabilities.resume_cost),
                Command::SetSlice { slice, .. } => {
                    self.slices.insert(queue.0, slice);
                }
                Command::PermitHold { .. } => {
                    assert_eq!(self.held.insert(device, queue.0), None, "two are held");
                }
                Command::ForbidHold { .. } => {
                    assert_eq!(self.held.remove(&device), Some(queue.0));
                }
                Command::MeasureSlowdown { .. } | Command::SetHardwarePriority { .. } => {}
            }
        }
        while let Some(decision) = self.scheduler.poll_decision() {
            self.decisions.push(decision);
        }
    }

    fn submit(&mut self, command: Command, cost: Duration) {
        let twice = self.in_flight.values().any(|c| c.queue() == command.queue());
        assert!(!twice, "a second command: {command:?}");
        self.in_flight.insert((self.now + cost, command.queue()), command);
    }

    fn view(&self, queue: u64) -> QueueView {
        let mut views = self.scheduler.queues();
        views.find(|view| view.queue.0 == queue).unwrap()
    }

    /// The queues with work that may run.
    fn running(&self) -> Vec<u64> {
        let views = self.scheduler.queues();
        let on = views.filter(|view| view.active && view.run_state == RunState::On);
        on.map(|view| view.queue.0).collect()
    }

    /// The queues that are off.
    fn stopped(&self) -> Vec<u64> {
        let views = self.scheduler.queues();
        let off = views.filter(|view| view.run_state == RunState::Off);
        off.map(|view| view.queue.0).collect()
    }

    /// Runs for a while and checks which queues with work are on then, and which are off.
    #[track_caller]
    fn run_then<const N: usize, const M: usize>(
        &mut self,
        duration: Duration,
        running: [u64; N],
        stopped: [u64; M],
    ) {
        self.run_then_on(duration, running);
        assert_eq!(self.stopped(), stopped);
    }

    /// Runs for a while and checks which queues with work are on then.
    #[track_caller]
    fn run_then_on<const N: usize>(&mut self, duration: Duration, running: [u64; N]) {
        self.run(duration);
        assert_eq!(self.running(), running);
    }

    /// Runs for a while and checks which queues are off then.
    #[track_caller]
    fn run_then_off<const N: usize>(&mut self, duration: Duration, stopped: [u64; N]) {
        self.run(duration);
        assert_eq!(self.stopped(), stopped);
    }

    /// How many preempts there were so far.
    fn preempts(&self) -> usize {
        let commands = self.commands.iter();
        commands.filter(|(_, command)| matches!(command, Command::Preempt { .. })).count()
    }

    /// The texts of the decisions about one queue so far.
    fn texts(&self, queue: u64) -> Vec<alloc::string::String> {
        let about = self.reasons(queue).into_iter();
        about.map(|reason| reason.to_string()).collect()
    }

    fn reasons(&self, queue: u64) -> Vec<Reason> {
        let about = self.decisions.iter().filter(|d| d.queue.0 == queue);
        about.map(|decision| decision.reason).collect()
    }

    fn ran(&self, queue: u64) -> Duration {
        self.view(queue).totals.ran
    }
}
