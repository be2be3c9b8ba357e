//! The scheduler's state for each device, entity, task, gang and queue, and what callers may read
//! of it.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;
use core::ops::Bound;

use super::Scheduler;
use super::background::Background;
use super::min_share::{ShareAccount, ShareState};
use super::run_order::{EntityKey, RunOrder, RunSet};
use crate::backend::{Capabilities, Mechanism};
use crate::event::SchedAttr;
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::priority::{Class, Priority};
use crate::queue::RunState;
use crate::ring::RingView;
use crate::slice_plan::{PlanChooser, SlicePlan};
use crate::statistics::{
    Histogram, Measurement, MeasurementKind, QueueTotals, Slowdown, SlowdownTotals, TimeMeter,
};
use crate::time::{Duration, Instant};

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) capabilities: Capabilities,
    /// The low class, then the high class. Without time slices only the first is used.
    pub(crate) run_orders: [RunOrder; 2],
    pub(crate) entities: BTreeMap<EntityKey, EntityState>,
    /// Queues of each priority.
    pub(crate) levels: [u32; Priority::LEVELS as usize],
    /// Queues of the high class, the highest last.
    pub(crate) high: BTreeSet<(Priority, Reverse<QueueId>)>,
    /// The mix from which the current slices follow.
    pub(crate) class_mix: ClassMix,
    /// Queues whose slice or hardware priority may have to be set.
    pub(crate) unset_queues: BTreeSet<QueueId>,
    /// The only high queue, where its task has a latency budget, and how that is used.
    pub(crate) budgeted: Option<(QueueId, PlanChooser)>,
    /// The queue of which the slowdown is measured all the time.
    pub(crate) measured: Option<QueueId>,
    /// The queue for which holds are permitted.
    pub(crate) hold_permitted: Option<QueueId>,
    /// The high queue that had work last.
    pub(crate) last_active_high: Option<QueueId>,
    /// Queues that are off and have work, the longest waiting first.
    pub(crate) waiting: BTreeSet<(Instant, QueueId)>,
    pub(crate) boost: Option<AgingBoost>,
    /// How long the tasks with a minimum share have been kept off.
    pub(crate) share: ShareAccount,
    /// Another scheduler decides which queues run here.
    pub(crate) externally_scheduled: bool,
    pub(crate) preempt_latency: Histogram,
    pub(crate) background: Background,
}

impl Device {
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities,
            run_orders: [RunOrder::default(), RunOrder::default()],
            entities: BTreeMap::new(),
            levels: [0; Priority::LEVELS as usize],
            high: BTreeSet::new(),
            class_mix: ClassMix::default(),
            unset_queues: BTreeSet::new(),
            budgeted: None,
            measured: None,
            hold_permitted: None,
            last_active_high: None,
            waiting: BTreeSet::new(),
            boost: None,
            share: ShareAccount::default(),
            externally_scheduled: false,
            preempt_latency: Histogram::default(),
            background: Background::default(),
        }
    }

    /// The run order that a queue of that priority belongs to.
    pub(crate) fn order_class(&self, priority: Priority) -> Class {
        match self.capabilities.mechanism {
            Mechanism::Slice => priority.class(),
            Mechanism::Stop | Mechanism::ObserveOnly => Class::Low,
        }
    }

    /// Whether this scheduler orders the queues of this device.
    pub(crate) fn is_scheduled_here(&self) -> bool {
        self.capabilities.mechanism != Mechanism::ObserveOnly && !self.externally_scheduled
    }

    pub(crate) fn run_order(&self, class: Class) -> &RunOrder {
        &self.run_orders[class as usize]
    }

    pub(crate) fn run_order_mut(&mut self, class: Class) -> &mut RunOrder {
        &mut self.run_orders[class as usize]
    }

    /// How the classes share this device, if there is one high queue.
    pub(crate) fn slice_plan(&self) -> SlicePlan {
        self.budgeted.as_ref().map_or(SlicePlan::STRICT, |(_, chooser)| chooser.plan())
    }

    /// With slices only one low queue may be runnable, so turns belong to queues; else to tasks.
    pub(crate) fn entity_key(&self, task: TaskId, queue: QueueId) -> EntityKey {
        let own = self.capabilities.mechanism == Mechanism::Slice;
        EntityKey { task, queue: own.then_some(queue) }
    }
}

/// What starved and therefore runs out of order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgingBoost {
    /// One entity, above all others in its run order.
    Entity(EntityKey),
    /// The low class, while the high class is preempted. In it that entity is above all others.
    LowClass(Option<EntityKey>),
}

/// The classes of the queues on a device, on which slices depend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassMix {
    /// Whether there are different priorities.
    pub(crate) mixed: bool,
    /// Queues of the high class: none, one, or more (2).
    pub(crate) high_queues: usize,
}

/// What takes turns on a device: a task, or one queue of it.
#[derive(Debug, Default)]
pub(crate) struct EntityState {
    pub(crate) queues: BTreeSet<QueueId>,
    /// How many of them have work.
    pub(crate) active: u32,
    pub(crate) turn: u64,
    /// Since when it has the turn, if it has it.
    pub(crate) holds: Option<Instant>,
    pub(crate) virtual_time: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) boosted: bool,
    /// When it was last boosted for the minimum share.
    pub(crate) boosted_at: Instant,
}

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) attr: SchedAttr,
    pub(crate) queues: BTreeSet<QueueId>,
    /// A hint began and has not ended.
    pub(crate) hinted: bool,
    pub(crate) suspended: bool,
    /// How long its queues waited with work, each time.
    pub(crate) waits: Histogram,
}

#[derive(Debug, Default)]
pub(crate) struct Gang {
    pub(crate) tasks: BTreeSet<TaskId>,
    /// Off on all devices, because it cannot run on one of them.
    pub(crate) blocked: bool,
}

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) task: TaskId,
    pub(crate) device: DeviceId,
    pub(crate) gang: Option<GangId>,
    pub(crate) own_priority: Option<Priority>,
    /// Suspended, by itself or with its task.
    pub(crate) suspended: bool,
    pub(crate) own_suspended: bool,
    /// The priority in force: the queue's own or its task's.
    pub(crate) priority: Priority,
    pub(crate) run_state: RunState,
    pub(crate) ring: RingView,
    /// Has work, or is expected to have some before a switch would pay.
    pub(crate) active: bool,
    pub(crate) order: Class,
    pub(crate) run_set: RunSet,
    /// A command failed; there is no other before the retry time.
    pub(crate) backing_off: bool,
    pub(crate) failures: u32,
    /// The result of a preempt is unknown. The queue counts as off and is resumed first.
    pub(crate) preempt_unknown: bool,
    /// A preempt is in flight, and no queue of the run order is resumed before its end.
    pub(crate) preempt_awaited: bool,
    /// The command in flight is one in the background.
    pub(crate) in_background: bool,
    /// When the command in flight was given.
    pub(crate) commanded_at: Instant,
    /// Since when it has been off.
    pub(crate) off_since: Instant,
    /// Since when it has waited with work.
    pub(crate) waits_since: Option<Instant>,
    /// Since when the ring has looked empty.
    pub(crate) empty_since: Option<Instant>,
    /// Remaining time for which the queue counts as possibly running.
    pub(crate) possibly_running_for: Duration,
    /// The end of that time, while the queue is on.
    pub(crate) assumed_idle_at: Option<Instant>,
    /// When it last had work.
    pub(crate) worked_at: Option<Instant>,
    /// What it counts as in the device's [`ShareAccount`].
    pub(crate) share: ShareState,
    /// How long the ring is usually empty between two requests.
    pub(crate) gap: Option<Duration>,
    /// The slice in force; the outer none: never set.
    pub(crate) slice: Option<Option<Duration>>,
    pub(crate) hardware_priority_set: Option<Priority>,
    pub(crate) slowdown: Slowdown,
    pub(crate) meter: TimeMeter,
}

impl Queue {
    pub(crate) const fn measured(&self, kind: MeasurementKind, took: Duration) -> Measurement {
        let Self { task, device, priority, .. } = *self;
        Measurement { kind, task, device, priority, took }
    }
}

/// One queue as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its identifier.
    pub queue: QueueId,
    /// The task that it belongs to.
    pub task: TaskId,
    /// The device that it is on.
    pub device: DeviceId,
    /// The priority in force.
    pub priority: Priority,
    /// Whether that is the queue's own, and not its task's.
    pub has_own_priority: bool,
    /// Whether it or its task is suspended.
    pub suspended: bool,
    /// Whether the hardware may run it.
    pub run_state: RunState,
    /// Whether it has work, or counts as having some.
    pub active: bool,
    /// The last reading of its ring.
    pub ring: RingView,
    /// How long it has been off with work.
    pub starving: Duration,
    /// How much slower it was than without other work, in per cent, where that is measured: an
    /// average of its last second with work.
    pub slowdown_percent: Option<u32>,
    /// The busy periods in which that was measured.
    pub slowdown_totals: SlowdownTotals,
    /// Time and commands so far.
    pub totals: QueueTotals,
}

impl Scheduler {
    /// Every queue, in order of their identifiers.
    pub fn queues(&self) -> impl Iterator<Item = QueueView> + '_ {
        self.queues.iter().map(|(&id, queue)| self.view_of(id, queue))
    }

    /// The queues after one, in order of their identifiers.
    pub fn queues_after(&self, after: QueueId) -> impl Iterator<Item = QueueView> + '_ {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        self.queues.range(range).map(|(&id, queue)| self.view_of(id, queue))
    }

    /// One queue.
    pub fn queue(&self, id: QueueId) -> Option<QueueView> {
        self.queues.get(&id).map(|queue| self.view_of(id, queue))
    }

    fn view_of(&self, id: QueueId, queue: &Queue) -> QueueView {
        QueueView {
            queue: id,
            task: queue.task,
            device: queue.device,
            priority: queue.priority,
            has_own_priority: queue.own_priority.is_some(),
            suspended: queue.suspended,
            run_state: queue.run_state,
            active: queue.active,
            ring: queue.ring,
            starving: queue.waits_since.map_or(Duration::ZERO, |since| self.now.since(since)),
            slowdown_percent: queue.slowdown.percent(),
            slowdown_totals: queue.slowdown.totals,
            totals: queue.meter.read(self.now),
        }
    }

    /// The tasks of the high-priority queues of a device, the highest priority first, each with the
    /// last time at which the queue had work. A suspended queue counts as one without work.
    pub fn high_work(
        &self,
        device: DeviceId,
    ) -> impl Iterator<Item = (TaskId, Option<Instant>)> + '_ {
        let high = self.devices.get(&device).into_iter().flat_map(|device| device.high.iter());
        high.rev().filter_map(|(_, Reverse(id))| {
            let queue = self.queues.get(id)?;
            let has_work = queue.active && !queue.suspended;
            Some((queue.task, if has_work { Some(self.now) } else { queue.worked_at }))
        })
    }

    /// The identifiers of all devices.
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.devices.keys().copied()
    }

    /// What a device can do; none if it is not known.
    pub fn capabilities(&self, device: DeviceId) -> Option<Capabilities> {
        self.devices.get(&device).map(|device| device.capabilities)
    }

    /// The identifiers of all queues.
    pub fn queue_ids(&self) -> impl Iterator<Item = QueueId> {
        self.queues.keys().copied()
    }

    /// How long queues of a task were off with work, once for each time; none if there is no such
    /// task. A wait counts when it ends.
    pub fn waits(&self, task: TaskId) -> Option<&Histogram> {
        self.tasks.get(&task).map(|task| &task.waits)
    }

    /// The durations of preempts on a device, from command to completion.
    pub fn preempt_latency(&self, device: DeviceId) -> Option<&Histogram> {
        self.devices.get(&device).map(|device| &device.preempt_latency)
    }
}

/// For the checks of [`crate::invariant`].
impl Scheduler {
    pub(crate) fn all_queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.queues.iter().map(|(&id, queue)| (id, queue))
    }

    pub(crate) fn all_devices(&self) -> impl Iterator<Item = (DeviceId, &Device)> {
        self.devices.iter().map(|(&id, device)| (id, device))
    }
}
