//! A scheduler, a clock, and devices that do what they are told after a while.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec::Vec;

use crate::capability::{Capabilities, Level, Mechanism};
use crate::command::Command;
use crate::config::Config;
use crate::decision::{Decision, Reason};
use crate::event::{Event, Fault, TaskTraits};
use crate::id::{DeviceId, QueueId, TaskId};
use crate::invariant;
use crate::priority::Priority;
use crate::queue::Standing;
use crate::ring::RingView;
use crate::scheduler::{QueueView, Scheduler};
use crate::time::{Duration, Instant};

pub(super) const STOP: Capabilities = Capabilities {
    mechanism: Mechanism::Stop,
    level: Level::Switch,
    preempt_cost: Duration::from_micros(20),
    resume_cost: Duration::from_micros(10),
    quiet: Duration::from_micros(500),
    hold: false,
    hardware_priority: false,
};

pub(super) const SLICE: Capabilities =
    Capabilities { mechanism: Mechanism::Slice, hold: true, ..STOP };

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) now: Instant,
    devices: BTreeMap<DeviceId, Capabilities>,
    rings: BTreeMap<QueueId, RingView>,
    at: BTreeMap<QueueId, DeviceId>,
    observe_at: Instant,
    in_flight: BTreeMap<(Instant, QueueId), Command>,
    /// Every command so far, in order.
    pub(super) commands: Vec<(Instant, Command)>,
    pub(super) decisions: Vec<Decision>,
    /// Queues whose next commands fail.
    pub(super) broken: BTreeSet<QueueId>,
    /// Queues whose next commands find that they are gone.
    pub(super) gone: BTreeSet<QueueId>,
    /// Queues whose preempts take this long instead.
    pub(super) slow: BTreeMap<QueueId, Duration>,
    pub(super) slices: BTreeMap<u64, Option<Duration>>,
    pub(super) held: BTreeMap<DeviceId, u64>,
}

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

pub(super) fn level(level: u8) -> Priority {
    Priority::new(level).unwrap()
}

/// A task of that priority and nothing special.
pub(super) fn with(priority: u8) -> TaskTraits {
    TaskTraits { priority: level(priority), ..TaskTraits::default() }
}

impl World {
    pub(super) fn new(config: Config) -> Self {
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

    /// A world with one device, number 0.
    pub(super) fn with_device(config: Config, capabilities: Capabilities) -> Self {
        let mut world = Self::new(config);
        world.device(0, capabilities);
        world
    }

    pub(super) fn device(&mut self, device: u32, capabilities: Capabilities) {
        let device = DeviceId(device);
        self.devices.insert(device, capabilities);
        self.tell(Event::DeviceAppeared { device, capabilities });
    }

    /// A task with one queue of the same number on device 0.
    pub(super) fn task(&mut self, number: u64, traits: TaskTraits) {
        let task = TaskId(number);
        self.tell(Event::TaskAppeared { task, traits });
        self.queue(number, number, 0);
    }

    pub(super) fn queue(&mut self, queue: u64, task: u64, device: u32) {
        self.announce(queue, task, device, false);
    }

    pub(super) fn announce(&mut self, queue: u64, task: u64, device: u32, stopped: bool) {
        let (queue, device) = (QueueId(queue), DeviceId(device));
        self.rings.insert(queue, RingView::default());
        self.at.insert(queue, device);
        self.tell(Event::QueueAppeared { queue, task: TaskId(task), device, stopped });
    }

    /// Says something that has to be believed.
    pub(super) fn tell(&mut self, event: Event) {
        self.scheduler.handle_event(self.now, event).unwrap();
        self.obey();
    }

    /// From now on the queue's ring shows work.
    pub(super) fn busy(&mut self, queue: u64) {
        let ring = self.rings.get_mut(&QueueId(queue)).unwrap();
        (ring.put, ring.running) = (ring.get + 1, None);
    }

    /// From now on the queue's ring looks empty, and nobody can tell whether it is done.
    pub(super) fn fetched(&mut self, queue: u64) {
        let ring = self.rings.get_mut(&QueueId(queue)).unwrap();
        (ring.get, ring.running) = (ring.put, None);
    }

    /// From now on the device says that the queue is done.
    pub(super) fn done(&mut self, queue: u64) {
        let ring = self.rings.get_mut(&QueueId(queue)).unwrap();
        (ring.get, ring.running) = (ring.put, Some(false));
    }

    /// The queue is gone, and its ring with it.
    pub(super) fn forget(&mut self, queue: u64) {
        self.rings.remove(&QueueId(queue));
    }

    pub(super) fn reconfigure(&mut self, config: Config) {
        self.scheduler.set_config(self.now, config).unwrap();
        self.obey();
    }

    /// Lets time pass: rings are read, commands complete, timers end, each at its time.
    pub(super) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end) {}
        self.now = end;
    }

    /// The next thing that happens by `end`, if any.
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
                self.tell(Event::RingObserved { queue, ring });
            }
        }
        self.scheduler.handle_timeout(self.now);
        self.obey();
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
        // A queue may vanish before its command completes; then nobody wants to know.
        let known = self.rings.contains_key(&queue);
        assert_eq!(self.scheduler.handle_event(self.now, event).is_ok(), known);
        self.obey();
    }

    fn obey(&mut self) {
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
                Command::SetHardwarePriority { .. } => {}
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

    pub(super) fn view(&self, queue: u64) -> QueueView {
        let mut views = self.scheduler.queues();
        views.find(|view| view.queue.0 == queue).unwrap()
    }

    /// The queues with work that may run.
    pub(super) fn running(&self) -> Vec<u64> {
        let views = self.scheduler.queues();
        let on = views.filter(|view| view.active && view.standing == Standing::On);
        on.map(|view| view.queue.0).collect()
    }

    /// The queues that are off.
    pub(super) fn stopped(&self) -> Vec<u64> {
        let views = self.scheduler.queues();
        let off = views.filter(|view| view.standing == Standing::Off);
        off.map(|view| view.queue.0).collect()
    }

    /// How many preempts there were so far.
    pub(super) fn preempts(&self) -> usize {
        let commands = self.commands.iter();
        commands.filter(|(_, command)| matches!(command, Command::Preempt { .. })).count()
    }

    /// The sentences about one queue so far.
    pub(super) fn told(&self, queue: u64) -> Vec<alloc::string::String> {
        let about = self.reasons(queue).into_iter();
        about.map(|reason| reason.to_string()).collect()
    }

    pub(super) fn reasons(&self, queue: u64) -> Vec<Reason> {
        let about = self.decisions.iter().filter(|d| d.queue.0 == queue);
        about.map(|decision| decision.reason).collect()
    }

    pub(super) fn ran(&self, queue: u64) -> Duration {
        self.view(queue).account.ran
    }
}
