//! One case: some queues, what happens to them at each step, and what the scheduler makes of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use gpreempt_core::backend::Command;
use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::decision::Reason;
use gpreempt_core::event::{Event, SchedAttr};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::RunState;
use gpreempt_core::ring::RingView;
use gpreempt_core::scheduler::Scheduler;
use gpreempt_core::time::{Duration, Instant};

const DEVICE: DeviceId = DeviceId(1);

/// Times are written in microseconds.
const fn micros(us: u32) -> Duration {
    Duration::from_micros(us as u64)
}

/// What happens to a queue at a step, besides its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    Nothing,
    Suspended,
    Released,
    Vanished,
    Changed(u8),
    Appeared,
}

impl Happening {
    fn number(self) -> u32 {
        match self {
            Self::Nothing => 0,
            Self::Suspended => 1,
            Self::Released => 2,
            Self::Vanished => 3,
            Self::Changed(level) => 4 | u32::from(level) << 4,
            Self::Appeared => 5,
        }
    }
}

/// A queue of a case.
#[derive(Clone, Copy, Debug)]
struct Queue {
    task: u32,
    level: u8,
    put: u64,
    get: u64,
    is_there: bool,
    is_suspended: bool,
    /// How eager its process is, in sixteenths of a packet for each step.
    load: u32,
}

/// A case before it is played.
#[derive(Clone, Debug)]
pub(super) struct Case {
    dice: Dice,
    config: Config,
    quiet: u32,
    cost: u32,
    queues: Vec<Queue>,
}

/// What came of a case.
#[derive(Debug)]
pub(super) struct Played {
    /// Its rows of the table.
    pub(super) rows: String,
    /// Every reason that was given for a decision.
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests count them"))]
    pub(super) reasons: BTreeSet<&'static str>,
}

impl Case {
    /// The case of that seed.
    pub(super) fn draw(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6770_7265);
        let aging = dice.one_in(2).then(|| Aging {
            after: micros(dice.pick(&[10_000, 15_000, 40_000])),
            grant: micros(dice.pick(&[1_000, 5_000, 9_000])),
        });
        // Some cases are about short gaps: readings close together, switches that cost a lot.
        let is_close = dice.one_in(2);
        let config = Config {
            policy: if dice.one_in(2) { PolicyKind::Strict } else { PolicyKind::RoundRobin },
            interval: micros(if is_close { 1_000 } else { dice.pick(&[1_000, 5_000, 10_000]) }),
            slice: micros(dice.pick(&[5_000, 10_000, 30_000])),
            aging,
            linger_max: micros(dice.pick(&[0, 2_000, 8_000])),
            ..Config::default()
        };
        let quiet = dice.pick(if is_close { &[0, 500, 1_500] } else { &[0, 500, 5_000, 12_000] });
        let cost =
            dice.pick(if is_close { &[700, 1_200, 2_500] } else { &[50, 400, 3_000, 5_000] });
        let levels = [0, 4, 4, 7, 8, 12, 15];
        let queues = (0..2 + dice.below(4))
            .map(|_| Queue {
                task: dice.below(3),
                level: dice.pick(&levels),
                put: 0,
                get: 0,
                is_there: true,
                is_suspended: false,
                load: dice.pick(&[1, 4, 8, 16]),
            })
            .collect();
        Self { dice, config, quiet, cost, queues }
    }

    /// Plays it with our scheduler.
    pub(super) fn play(mut self) -> Played {
        let mut game = Game::new(&self);
        let mut rows = self.head();
        for _ in 0..8 + self.dice.below(8) {
            let interval = u32::try_from(self.config.interval.as_micros()).unwrap_or(u32::MAX);
            // Mostly on time, sometimes late.
            let late = if self.dice.one_in(4) { self.dice.below(24) * interval / 8 } else { 0 };
            let passed = interval + late;
            game.now += micros(passed);
            let _ = write!(rows, "\t1, {passed},");
            for index in 0..self.queues.len() {
                let happening = self.happening(index);
                let (put, get) = self.ring(index, game.is_off(index));
                let code = put | get << 4 | happening.number() << 8;
                let _ = write!(rows, " {code:#x},");
                game.happen(index, happening, self.queues[index]);
            }
            let (off, active) = game.decide(&self.queues);
            let _ = writeln!(rows, " {off:#x}, {active:#x},");
        }
        Played { rows, reasons: game.reasons }
    }

    fn head(&self) -> String {
        let Config { interval, slice, linger_max, .. } = self.config;
        let aging = self.config.aging.map_or([Duration::ZERO; 2], |a| [a.after, a.grant]);
        let kind = u32::from(self.config.policy == PolicyKind::RoundRobin);
        let mut head = format!("\t0, {kind},");
        for time in [interval, slice, aging[0], aging[1], linger_max] {
            let _ = write!(head, " {},", time.as_micros());
        }
        let _ = write!(head, " {}, {}, {},", self.quiet, 2 * self.cost, self.queues.len());
        for queue in &self.queues {
            let _ = write!(head, " {:#x},", queue.task << 4 | u32::from(queue.level));
        }
        head.push('\n');
        head
    }

    fn happening(&mut self, index: usize) -> Happening {
        let queue = &mut self.queues[index];
        if !queue.is_there {
            queue.is_there = self.dice.one_in(3);
            return if queue.is_there { Happening::Appeared } else { Happening::Nothing };
        }
        if queue.is_suspended && self.dice.one_in(3) {
            queue.is_suspended = false;
            return Happening::Released;
        }
        match self.dice.below(48) {
            0 if !queue.is_suspended => {
                queue.is_suspended = true;
                Happening::Suspended
            }
            1 => {
                *queue = Queue { put: 0, get: 0, is_there: false, is_suspended: false, ..*queue };
                Happening::Vanished
            }
            2 => {
                queue.level = self.dice.pick(&[0, 4, 9, 15]);
                Happening::Changed(queue.level)
            }
            _ => Happening::Nothing,
        }
    }

    /// How far the ring moves: what its process submits and what the device fetches.
    fn ring(&mut self, index: usize, is_off: bool) -> (u32, u32) {
        let queue = &mut self.queues[index];
        if !queue.is_there {
            return (0, 0);
        }
        let put = if self.dice.below(16) < queue.load { 1 + self.dice.below(3) } else { 0 };
        let pending = u32::try_from(queue.put.saturating_sub(queue.get)).unwrap_or(15) + put;
        let get = match self.dice.below(4) {
            _ if is_off => 0,
            0 => self.dice.below(pending + 1),
            // A reading may be torn: the device is ahead of what we saw of its process.
            1 if self.dice.one_in(40) => pending + 1,
            _ => pending,
        }
        .min(15);
        queue.put += u64::from(put);
        queue.get += u64::from(get);
        (put, get)
    }
}

/// Our scheduler, with a device that does everything at once.
struct Game {
    scheduler: Scheduler,
    now: Instant,
    reasons: BTreeSet<&'static str>,
}

impl Game {
    fn new(case: &Case) -> Self {
        let scheduler = Scheduler::new(case.config).expect("the settings are drawn legal");
        let mut game = Self { scheduler, now: Instant::ZERO, reasons: BTreeSet::new() };
        let capabilities = Capabilities {
            mechanism: Mechanism::Stop,
            level: PreemptLevel::Interrupt,
            preempt_cost: micros(case.cost),
            resume_cost: micros(case.cost),
            quiet: micros(case.quiet),
            hold: false,
            hardware_priority: false,
        };
        game.tell(Event::DeviceAppeared { device: DEVICE, capabilities });
        for task in 0..3 {
            let attr = SchedAttr::default();
            game.tell(Event::TaskAppeared { task: TaskId(task), attr });
        }
        for (index, &queue) in case.queues.iter().enumerate() {
            game.happen(index, Happening::Appeared, queue);
        }
        game
    }

    fn tell(&mut self, event: Event) {
        self.scheduler.handle_event(self.now, event).expect("the case tells nothing impossible");
    }

    fn is_off(&self, index: usize) -> bool {
        let queue = self.scheduler.queue(id(index));
        queue.is_some_and(|queue| queue.run_state == RunState::Off)
    }

    fn happen(&mut self, index: usize, happening: Happening, queue: Queue) {
        let id = id(index);
        let priority = Priority::new(queue.level);
        match happening {
            Happening::Nothing => {}
            Happening::Suspended => {
                self.tell(Event::QueueSuspended { queue: id, suspended: true });
            }
            Happening::Released => {
                self.tell(Event::QueueSuspended { queue: id, suspended: false });
            }
            Happening::Vanished => self.tell(Event::QueueVanished { queue: id }),
            Happening::Changed(_) => self.tell(Event::QueueChanged { queue: id, priority }),
            Happening::Appeared => {
                let task = TaskId(queue.task.into());
                let device = DEVICE;
                self.tell(Event::QueueAppeared { queue: id, task, device, stopped: false });
                self.tell(Event::QueueChanged { queue: id, priority });
            }
        }
    }

    /// Reads the rings and lets everything be done. The answer has a bit for each queue that is
    /// off, and one for each that has work.
    fn decide(&mut self, queues: &[Queue]) -> (u32, u32) {
        for (index, queue) in queues.iter().enumerate().filter(|(_, queue)| queue.is_there) {
            let ring = RingView { put: queue.put, get: queue.get, running: None };
            self.tell(Event::RingObserved { queue: id(index), ring });
        }
        self.scheduler.handle_timeout(self.now);
        while let Some(command) = self.scheduler.poll_command() {
            match command {
                Command::Preempt { queue, .. } => self.tell(Event::Preempted { queue }),
                Command::Resume { queue } => self.tell(Event::Resumed { queue }),
                Command::SetSlice { .. }
                | Command::PermitHold { .. }
                | Command::ForbidHold { .. }
                | Command::SetHardwarePriority { .. } => {}
            }
        }
        while let Some(decision) = self.scheduler.poll_decision() {
            self.reasons.extend(name(&decision.reason));
        }
        self.scheduler.queues().fold((0, 0), |(off, active), queue| {
            let bit = 1_u32 << queue.queue.0;
            let off = off | if queue.run_state == RunState::Off { bit } else { 0 };
            (off, active | if queue.active { bit } else { 0 })
        })
    }
}

fn id(index: usize) -> QueueId {
    QueueId(index as u64)
}

/// The reasons that the kernel's policy knows too.
fn name(reason: &Reason) -> Option<&'static str> {
    match reason {
        Reason::Outranked { .. } => Some("outranked"),
        Reason::TurnOver { .. } => Some("turn over"),
        Reason::Starved { .. } => Some("starved"),
        Reason::Suspended => Some("suspended"),
        Reason::Unblocked { .. } => Some("clear"),
        Reason::Aged { .. } => Some("aged"),
        Reason::Anticipate { .. } => Some("linger"),
        Reason::Deadline { .. }
        | Reason::GangBlocked { .. }
        | Reason::PossiblyRunning
        | Reason::LowTurn
        | Reason::Overdue { .. }
        | Reason::PreemptFailed { .. }
        | Reason::ResumeFailed { .. } => None,
    }
}

/// Numbers that look random and are the same everywhere (splitmix64).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        u32::try_from(mixed % u64::from(bound.max(1))).unwrap_or_default()
    }

    fn one_in(&mut self, chances: u32) -> bool {
        self.below(chances) == 0
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(u32::try_from(choices.len()).unwrap_or(1)) as usize]
    }
}
