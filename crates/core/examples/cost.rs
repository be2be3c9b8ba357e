//! The cost of an event: `cost QUEUES EVENTS [all]` handles EVENTS events on a device with QUEUES
//! queues and prints nothing. Count its instructions and subtract those of zero events.
//!
//! At most 64 queues have work at a time, as on real hardware; with `all`, every queue may.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;

use gpreempt_core::backend::Command;
use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::config::Config;
use gpreempt_core::event::{Event, EventError, SchedAttr};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::scheduler::Scheduler;
use gpreempt_core::time::{Duration, Instant};

const ACTIVE_MAX: usize = 64;
const HINTED_MAX: usize = 4;
const DEVICE: DeviceId = DeviceId(0);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |name: &str| -> Result<u64, Box<dyn Error>> {
        Ok(arguments.next().ok_or_else(|| format!("{name} is missing"))?.parse()?)
    };
    let (queues, events) = (number("QUEUES")?, number("EVENTS")?);
    let active_max = match arguments.next().as_deref() {
        None => ACTIVE_MAX,
        Some("all") => usize::MAX,
        Some(other) => return Err(format!("`{other}` is not a mode; there is only `all`").into()),
    };
    let mut load = Load::new(queues.max(1), active_max)?;
    for _ in 0..events {
        load.step()?;
    }
    Ok(())
}

/// A scheduler and a generator of events.
struct Load {
    scheduler: Scheduler,
    now: Instant,
    random: u64,
    queues: u64,
    rings: Vec<RingView>,
    tasks: u64,
    /// Queues with work, in no order.
    working: Vec<u64>,
    active_max: usize,
    finished: Option<u64>,
    /// Queues that are off.
    off: BTreeSet<u64>,
    /// Tasks whose hint is open, oldest first.
    hinted: VecDeque<TaskId>,
}

impl Load {
    fn new(queues: u64, active_max: usize) -> Result<Self, Box<dyn Error>> {
        let mut load = Self {
            scheduler: Scheduler::new(Config::default())?,
            now: Instant::ZERO,
            random: 0x9e37_79b9_7f4a_7c15,
            queues,
            rings: Vec::new(),
            tasks: queues / 4 + 1,
            working: Vec::new(),
            active_max: active_max.min(index(queues)),
            finished: None,
            off: BTreeSet::new(),
            hinted: VecDeque::new(),
        };
        load.deliver(Event::DeviceAppeared {
            device: DEVICE,
            capabilities: Capabilities {
                mechanism: Mechanism::Stop,
                level: PreemptLevel::Interrupt,
                preempt_cost: Duration::from_micros(10),
                resume_cost: Duration::from_micros(10),
                quiet: Duration::from_micros(50),
                hold: false,
                hardware_priority: false,
            },
        })?;
        for task in 0..load.tasks {
            let attr = load.attr();
            let task = TaskId(task);
            load.deliver(Event::TaskAppeared { task, attr })?;
        }
        for queue in 0..queues {
            load.rings.push(RingView::default());
            load.deliver(Event::QueueAppeared {
                queue: QueueId(queue),
                task: TaskId(queue % load.tasks),
                device: DEVICE,
                stopped: false,
            })?;
        }
        for queue in 0..queues.min(u64::try_from(load.active_max)?) {
            load.submit(queue)?;
        }
        Ok(load)
    }

    fn submit(&mut self, queue: u64) -> Result<(), EventError> {
        self.working.push(queue);
        let ring = &mut self.rings[index(queue)];
        (ring.put, ring.running) = (ring.put + 1, None);
        self.read(queue)
    }

    /// One event: mostly readings of rings, half of which show a change.
    fn step(&mut self) -> Result<(), EventError> {
        self.now += Duration::from_micros(1);
        match self.below(100) {
            0..80 => self.read_ring(),
            80..85 => self.hint(),
            85..90 => {
                let task = TaskId(self.below(self.tasks));
                let attr = self.attr();
                self.deliver(Event::TaskChanged { task, attr })
            }
            _ => {
                let pause = Duration::from_micros(self.below(100));
                self.now += pause;
                self.scheduler.handle_timeout(self.now);
                self.complete()
            }
        }
    }

    fn hint(&mut self) -> Result<(), EventError> {
        if self.hinted.len() == HINTED_MAX
            && let Some(task) = self.hinted.pop_front()
        {
            return self.deliver(Event::HintEnd { task });
        }
        let task = TaskId(self.below(self.tasks));
        self.hinted.push_back(task);
        let deadline = None;
        self.deliver(Event::HintBegin { task, deadline })
    }

    /// Half of the readings show no change, the others the end or the beginning of work.
    fn read_ring(&mut self) -> Result<(), EventError> {
        let queue = self.below(self.queues);
        if self.below(2) == 0 {
            return self.read(queue);
        }
        if self.working.len() < self.active_max {
            // With `all`, the idle queue is the one that finished last.
            let idle = self.finished.filter(|_| self.active_max == self.rings.len());
            let queue = idle.unwrap_or(queue);
            if !self.rings[index(queue)].has_work() {
                return self.submit(queue);
            }
        }
        let which = self.below(u64::try_from(self.working.len()).unwrap_or(u64::MAX));
        let Some(&queue) = self.working.get(index(which)) else {
            return self.read(queue);
        };
        // A queue that is off cannot finish.
        if !self.off.contains(&queue) {
            self.working.swap_remove(index(which));
            self.finished = Some(queue);
            let ring = &mut self.rings[index(queue)];
            (ring.get, ring.running) = (ring.put, Some(false));
        }
        self.read(queue)
    }

    fn read(&mut self, queue: u64) -> Result<(), EventError> {
        let ring = self.rings[index(queue)];
        let queue = QueueId(queue);
        self.deliver(Event::RingObserved { queue, ring })
    }

    fn deliver(&mut self, event: Event) -> Result<(), EventError> {
        self.scheduler.handle_event(self.now, event)?;
        self.complete()
    }

    /// Completes all commands at once.
    fn complete(&mut self) -> Result<(), EventError> {
        while let Some(command) = self.scheduler.poll_command() {
            let done = match command {
                Command::Preempt { queue, .. } => {
                    self.off.insert(queue.0);
                    Event::Preempted { queue }
                }
                Command::Resume { queue } => {
                    self.off.remove(&queue.0);
                    Event::Resumed { queue }
                }
                Command::SetSlice { .. }
                | Command::PermitHold { .. }
                | Command::ForbidHold { .. }
                | Command::MeasureSlowdown { .. }
                | Command::SetHardwarePriority { .. } => continue,
            };
            self.scheduler.handle_event(self.now, done)?;
        }
        Ok(())
    }

    fn attr(&mut self) -> SchedAttr {
        let level = u8::try_from(self.below(u64::from(Priority::LEVELS))).unwrap_or_default();
        SchedAttr {
            priority: Priority::new(level).unwrap_or(Priority::DEFAULT),
            ..SchedAttr::default()
        }
    }

    /// A number below `limit`, from xorshift64*.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit.max(1)
    }
}

fn index(queue: u64) -> usize {
    usize::try_from(queue).unwrap_or(usize::MAX)
}
