//! What the scheduler remembers of each thing.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;

use super::order::{Lane, Position, SeatKey};
use crate::account::Meter;
use crate::capability::{Capabilities, Mechanism};
use crate::event::TaskTraits;
use crate::histogram::Histogram;
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::priority::{Class, Priority};
use crate::queue::Standing;
use crate::ring::RingView;
use crate::time::{Duration, Instant};

/// One device and everybody who has a seat on it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) capabilities: Capabilities,
    /// The low lane, then the high lane. Without time slices only the first is used.
    pub(crate) lanes: [Lane; 2],
    pub(crate) seats: BTreeMap<SeatKey, SeatState>,
    /// Queues of each priority.
    pub(crate) levels: [u32; Priority::LEVELS as usize],
    /// Important queues, most important last.
    pub(crate) high: BTreeSet<(Priority, Reverse<QueueId>)>,
    /// What the slices were last derived from.
    pub(crate) mixture: Mixture,
    /// Queues whose slice or hardware priority is not what it should be.
    pub(crate) untuned: BTreeSet<QueueId>,
    /// Who may be held.
    pub(crate) held: Option<QueueId>,
    /// The important queue that had work last.
    pub(crate) worked: Option<QueueId>,
    /// Queues that are off and want to run, longest waiting first.
    pub(crate) waiting: BTreeSet<(Instant, QueueId)>,
    /// Who runs out of order because it starved.
    pub(crate) grant: Option<Grant>,
    /// Somebody else decides who runs here.
    pub(crate) yielded: bool,
    /// How long preempts took.
    pub(crate) preempt_latency: Histogram,
}

impl Device {
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            lanes: [Lane::default(), Lane::default()],
            seats: BTreeMap::new(),
            levels: [0; Priority::LEVELS as usize],
            high: BTreeSet::new(),
            mixture: Mixture::default(),
            untuned: BTreeSet::new(),
            held: None,
            worked: None,
            waiting: BTreeSet::new(),
            grant: None,
            yielded: false,
            preempt_latency: Histogram::default(),
        }
    }

    /// The lane a queue of that priority belongs to.
    pub(crate) fn lane_of(&self, priority: Priority) -> Class {
        match self.capabilities.mechanism {
            Mechanism::Slice => priority.class(),
            Mechanism::Stop | Mechanism::Watch => Class::Low,
        }
    }

    /// Whether we decide who comes first here.
    pub(crate) fn is_ordered(&self) -> bool {
        self.capabilities.mechanism != Mechanism::Watch && !self.yielded
    }

    pub(crate) fn lane(&self, class: Class) -> &Lane {
        &self.lanes[class as usize]
    }

    pub(crate) fn lane_mut(&mut self, class: Class) -> &mut Lane {
        &mut self.lanes[class as usize]
    }

    /// Where only one queue may be runnable, turns belong to queues, elsewhere to tasks.
    pub(crate) fn seat_key(&self, task: TaskId, queue: QueueId) -> SeatKey {
        let own = self.capabilities.mechanism == Mechanism::Slice;
        SeatKey { task, queue: own.then_some(queue) }
    }
}

/// Who runs out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// One seat, above everybody else in its lane.
    Seat(SeatKey),
    /// The whole low class, while the high class is stopped.
    LowClass,
}

/// What kinds of queues are on a device: what slices depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mixture {
    /// Whether there are different priorities at all.
    pub(crate) mixed: bool,
    /// Important queues: none, one, or more (2).
    pub(crate) high_queues: usize,
}

/// A task's place on one device.
#[derive(Debug, Default)]
pub(crate) struct SeatState {
    pub(crate) queues: BTreeSet<QueueId>,
    /// How many of them have work.
    pub(crate) active: u32,
    pub(crate) turn: u64,
    /// Since when it has the turn, if it has it.
    pub(crate) holds: Option<Instant>,
    pub(crate) virtual_time: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) boosted: bool,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) traits: TaskTraits,
    pub(crate) queues: BTreeSet<QueueId>,
    /// A request is announced and not ended.
    pub(crate) hinted: bool,
    /// Somebody took it off its devices, whatever its priority.
    pub(crate) suspended: bool,
}

/// Tasks that run and stop together.
#[derive(Debug, Default)]
pub(crate) struct Gang {
    pub(crate) tasks: BTreeSet<TaskId>,
    /// Whether it has to be off everywhere because it cannot run somewhere.
    pub(crate) blocked: bool,
}

/// One thing the hardware can stop.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) task: TaskId,
    pub(crate) device: DeviceId,
    pub(crate) gang: Option<GangId>,
    pub(crate) own_priority: Option<Priority>,
    /// It is suspended: its task is, or it alone.
    pub(crate) suspended: bool,
    /// Somebody took it off its device, whatever becomes of its task.
    pub(crate) own_suspended: bool,
    /// The priority in force: its own or its task's.
    pub(crate) priority: Priority,
    pub(crate) standing: Standing,
    pub(crate) ring: RingView,
    /// Has work, or is expected to have some before a switch would pay.
    pub(crate) active: bool,
    pub(crate) lane: Class,
    pub(crate) position: Position,
    /// A command for it failed; it is left alone for a while.
    pub(crate) stuck: bool,
    pub(crate) failures: u32,
    /// A preempt was given up on and may have happened all the same.
    pub(crate) doubtful: bool,
    /// A preempt is in flight and nobody comes back before it has finished.
    pub(crate) awaited: bool,
    /// When the command in flight was given.
    pub(crate) commanded_at: Instant,
    /// Since when it has been off.
    pub(crate) off_since: Instant,
    /// Since when it has waited with work.
    pub(crate) waits_since: Option<Instant>,
    /// Since when the ring has looked empty.
    pub(crate) empty_since: Option<Instant>,
    /// How much longer something may run in it that its ring does not show.
    pub(crate) doubt: Duration,
    /// Until when that is, while it is on.
    pub(crate) sure_at: Option<Instant>,
    /// How long its ring usually stays empty.
    pub(crate) gap: Option<Duration>,
    /// The slice in force; the outer none means that nobody ever set one.
    pub(crate) slice: Option<Option<Duration>>,
    /// The priority the hardware was told.
    pub(crate) told_priority: Option<Priority>,
    pub(crate) meter: Meter,
}
