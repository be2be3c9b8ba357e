//! What readers may see.

use core::ops::Bound;

use super::Scheduler;
use super::state::Queue;
use crate::account::Account;
use crate::capability::Capabilities;
use crate::histogram::Histogram;
use crate::id::{DeviceId, QueueId, TaskId};
use crate::priority::Priority;
use crate::queue::Standing;
use crate::ring::RingView;
use crate::time::Duration;

/// One queue as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its name.
    pub queue: QueueId,
    /// Whose it is.
    pub task: TaskId,
    /// Where it is.
    pub device: DeviceId,
    /// The priority in force.
    pub priority: Priority,
    /// Whether that is its own, and not its task's.
    pub has_own_priority: bool,
    /// Whether it or its task is suspended.
    pub suspended: bool,
    /// Whether it may run.
    pub standing: Standing,
    /// Whether it has work, as far as anybody can tell.
    pub active: bool,
    /// What its ring showed last.
    pub ring: RingView,
    /// How long it has been kept off with work.
    pub starving: Duration,
    /// What it has had so far.
    pub account: Account,
}

impl Scheduler {
    /// Every queue, in order of their names.
    pub fn queues(&self) -> impl Iterator<Item = QueueView> + '_ {
        self.queues.iter().map(|(&id, queue)| self.view_of(id, queue))
    }

    /// The queues that come after one, in order of their names.
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
            standing: queue.standing,
            active: queue.active,
            ring: queue.ring,
            starving: queue.waits_since.map_or(Duration::ZERO, |since| self.now.since(since)),
            account: queue.meter.read(self.now),
        }
    }

    /// What a device can do, if it is there.
    pub fn capabilities(&self, device: DeviceId) -> Option<Capabilities> {
        self.devices.get(&device).map(|device| device.capabilities)
    }

    /// The names of all queues.
    pub fn queue_ids(&self) -> impl Iterator<Item = QueueId> {
        self.queues.keys().copied()
    }

    /// How long preempts on a device took, from command to completion.
    pub fn preempt_latency(&self, device: DeviceId) -> Option<&Histogram> {
        self.devices.get(&device).map(|device| &device.preempt_latency)
    }
}

/// For the checks of [`crate::invariant`].
impl Scheduler {
    pub(crate) fn all_queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.queues.iter().map(|(&id, queue)| (id, queue))
    }

    pub(crate) fn all_devices(&self) -> impl Iterator<Item = (DeviceId, &super::state::Device)> {
        self.devices.iter().map(|(&id, device)| (id, device))
    }
}
