//! Devices, tasks and queues that appear, change, are suspended and vanish.
//!
//! A queue is suspended if its task is or if it is itself; the two end independently. A suspended
//! queue is ranked as if it had no work, and does not starve. All queues of a suspended task are
//! preempted, also idle ones, because a preempt after their next submission would come too late.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Scheduler;
use super::min_share::ShareState;
use super::run_order::RunSet;
use super::state::{Device, Queue, Task};
use crate::backend::Capabilities;
use crate::event::{EventError, SchedAttr};
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::priority::{Class, Priority};
use crate::queue::RunState;
use crate::ring::RingView;
use crate::statistics::{Histogram, Slowdown, TimeMeter};
use crate::time::{Duration, Instant};
use crate::timer::Timer;

impl Scheduler {
    pub(super) fn add_device(
        &mut self,
        id: DeviceId,
        capabilities: Capabilities,
    ) -> Result<(), EventError> {
        if self.devices.contains_key(&id) {
            return Err(EventError::DuplicateDevice(id));
        }
        self.devices.insert(id, Device::new(capabilities));
        Ok(())
    }

    /// Later decisions use the new costs; turns that have begun keep their length.
    pub(super) fn set_cost(
        &mut self,
        id: DeviceId,
        preempt_cost: Duration,
        resume_cost: Duration,
    ) -> Result<(), EventError> {
        let device = self.devices.get_mut(&id).ok_or(EventError::UnknownDevice(id))?;
        device.capabilities.preempt_cost = preempt_cost;
        device.capabilities.resume_cost = resume_cost;
        // Deadlines that are closer together than a switch are equal, so ranks may change.
        self.update_device(id);
        Ok(())
    }

    pub(super) fn set_externally_scheduled(
        &mut self,
        id: DeviceId,
        externally_scheduled: bool,
    ) -> Result<(), EventError> {
        let device = self.devices.get_mut(&id).ok_or(EventError::UnknownDevice(id))?;
        device.externally_scheduled = externally_scheduled;
        // A gang that could not run because of this device may be able to now.
        self.changed_devices.extend(self.devices.keys());
        Ok(())
    }

    pub(super) fn remove_device(&mut self, id: DeviceId) -> Result<(), EventError> {
        if !self.devices.contains_key(&id) {
            return Err(EventError::UnknownDevice(id));
        }
        let here = self.queues.iter().filter(|(_, queue)| queue.device == id);
        let queues: Vec<QueueId> = here.map(|(&queue, _)| queue).collect();
        for queue in queues {
            self.remove_queue(queue)?;
        }
        for timer in [
            Timer::Starving(id),
            Timer::BoostOver(id),
            Timer::Background(id),
            Timer::SliceOver(id, Class::Low),
            Timer::SliceOver(id, Class::High),
        ] {
            self.timers.stop(timer);
        }
        let device = self.devices.remove(&id);
        for queue in device.into_iter().flat_map(|device| device.background.vanished.into_keys()) {
            self.timers.stop(Timer::Vanished(id, queue));
        }
        self.changed_devices.remove(&id);
        // A gang that could not run because of this device may be able to now.
        self.changed_devices.extend(self.devices.keys());
        Ok(())
    }

    pub(super) fn add_task(&mut self, id: TaskId, attr: SchedAttr) -> Result<(), EventError> {
        if attr.weight == 0 {
            return Err(EventError::ZeroWeight(id));
        }
        if self.tasks.contains_key(&id) {
            return Err(EventError::DuplicateTask(id));
        }
        if let Some(gang) = attr.gang {
            self.gangs.entry(gang).or_default().tasks.insert(id);
        }
        self.has_min_share |= attr.has_min_share;
        let (queues, waits) = (BTreeSet::new(), Histogram::default());
        let task = Task { attr, queues, hinted: false, suspended: false, waits };
        self.tasks.insert(id, task);
        Ok(())
    }

    pub(super) fn change_task(&mut self, id: TaskId, attr: SchedAttr) -> Result<(), EventError> {
        if attr.weight == 0 {
            return Err(EventError::ZeroWeight(id));
        }
        let task = self.tasks.get_mut(&id).ok_or(EventError::UnknownTask(id))?;
        let SchedAttr { gang, deadline, priority, .. } = task.attr;
        task.attr = SchedAttr { gang, ..attr };
        self.has_min_share |= attr.has_min_share;
        let queues: Vec<QueueId> = task.queues.iter().copied().collect();
        for queue in queues {
            if deadline != attr.deadline {
                self.restart_deadline(queue);
            }
            self.update_priority(queue);
            if let Some(device) = self.queues.get(&queue).map(|queue| queue.device) {
                self.update_budget(device);
            }
            if priority.class() != attr.priority.class() {
                self.reset_queue_virtual_time(queue, attr.priority.class());
            }
        }
        Ok(())
    }

    pub(super) fn remove_task(&mut self, id: TaskId) -> Result<(), EventError> {
        let task = self.tasks.get(&id).ok_or(EventError::UnknownTask(id))?;
        let gang = task.attr.gang;
        let queues: Vec<QueueId> = task.queues.iter().copied().collect();
        for queue in queues {
            self.remove_queue(queue)?;
        }
        self.tasks.remove(&id);
        self.timers.stop(Timer::HintOver(id));
        if let Some(gang) = gang
            && let Some(members) = self.gangs.get_mut(&gang)
        {
            members.tasks.remove(&id);
            if members.tasks.is_empty() {
                self.gangs.remove(&gang);
            }
        }
        Ok(())
    }

    pub(super) fn add_queue(
        &mut self,
        id: QueueId,
        task_id: TaskId,
        device_id: DeviceId,
        stopped: bool,
    ) -> Result<(), EventError> {
        if self.queues.contains_key(&id) {
            return Err(EventError::DuplicateQueue(id));
        }
        let task = self.tasks.get_mut(&task_id).ok_or(EventError::UnknownTask(task_id))?;
        let device =
            self.devices.get_mut(&device_id).ok_or(EventError::UnknownDevice(device_id))?;
        task.queues.insert(id);
        let priority = task.attr.priority;
        let key = device.entity_key(task_id, id);
        let entity = device.entities.entry(key).or_default();
        entity.queues.insert(id);
        if entity.turn == 0 {
            self.turn += 1;
            entity.turn = self.turn;
        }
        let queue = Queue {
            task: task_id,
            device: device_id,
            gang: task.attr.gang,
            own_priority: None,
            suspended: task.suspended,
            own_suspended: false,
            priority,
            run_state: if stopped { RunState::Off } else { RunState::On },
            ring: RingView::default(),
            active: false,
            order: device.order_class(priority),
            run_set: RunSet::Out,
            backing_off: false,
            preempt_awaited: false,
            in_background: false,
            failures: 0,
            preempt_unknown: false,
            commanded_at: Instant::ZERO,
            off_since: self.now,
            waits_since: None,
            empty_since: None,
            possibly_running_for: Duration::ZERO,
            assumed_idle_at: None,
            worked_at: None,
            share: ShareState::default(),
            gap: None,
            slice: None,
            hardware_priority_set: None,
            slowdown: Slowdown::default(),
            meter: TimeMeter::default(),
        };
        let (expected, suspended) = (stopped || task.hinted, task.suspended);
        self.queues.insert(id, queue);
        self.add_to_mix(id, priority);
        // An adopted queue was preempted because it had work; it has to run to show otherwise.
        if expected {
            self.set_active(id, true);
        }
        // No queue of a suspended task is on, not even a new one without work.
        if suspended {
            self.update_queue(id);
        }
        self.changed_devices.insert(device_id);
        Ok(())
    }

    pub(super) fn change_queue(
        &mut self,
        id: QueueId,
        priority: Option<Priority>,
    ) -> Result<(), EventError> {
        self.queue_mut(id)?.own_priority = priority;
        self.update_priority(id);
        Ok(())
    }

    pub(super) fn remove_queue(&mut self, id: QueueId) -> Result<(), EventError> {
        let queue = self.queue_mut(id)?;
        let (device_id, task_id, priority) = (queue.device, queue.task, queue.priority);
        queue.backing_off = false;
        queue.preempt_unknown = false;
        self.vanish_in_background(id);
        self.finish_awaiting(id);
        self.set_active(id, false);
        self.remove_from_mix(id, priority);
        self.count_share(id, ShareState::NoWork);
        let left = self.queues.remove(&id).map(|queue| (queue.order, queue.run_set));
        for timer in [Timer::Idle(id), Timer::Retry(id)] {
            self.timers.stop(timer);
        }
        if let Some(task) = self.tasks.get_mut(&task_id) {
            task.queues.remove(&id);
        }
        let device = self.devices.get_mut(&device_id).expect("a queue's device is known");
        if let Some((order, run_set)) = left {
            device.run_order_mut(order).remove(id, run_set);
        }
        device.unset_queues.remove(&id);
        if device.hold_permitted == Some(id) {
            device.hold_permitted = None;
        }
        let key = device.entity_key(task_id, id);
        if let Some(entity) = device.entities.get_mut(&key) {
            entity.queues.remove(&id);
            if entity.queues.is_empty() {
                device.entities.remove(&key);
            }
        }
        self.changed_devices.insert(device_id);
        Ok(())
    }

    /// Derives a queue's priority from its own and its task's.
    fn update_priority(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let Some(task) = self.tasks.get(&queue.task) else { return };
        let (before, now) = (queue.priority, queue.own_priority.unwrap_or(task.attr.priority));
        if before != now {
            self.leave_run_order(id, now);
            self.remove_from_mix(id, before);
            let queue = self.queues.get_mut(&id).expect("looked up above");
            queue.priority = now;
            self.add_to_mix(id, now);
        }
        self.update_queue(id);
    }

    /// Ends the turn of a queue whose new priority belongs to the other run order.
    fn leave_run_order(&mut self, id: QueueId, priority: Priority) {
        let Some(queue) = self.queues.get(&id) else { return };
        let Some(device) = self.devices.get(&queue.device) else { return };
        if device.order_class(priority) != queue.order {
            let key = device.entity_key(queue.task, id);
            self.leave_turn(queue.device, queue.order, key, false);
        }
    }

    pub(super) fn suspend_task(&mut self, id: TaskId, suspended: bool) -> Result<(), EventError> {
        let task = self.tasks.get_mut(&id).ok_or(EventError::UnknownTask(id))?;
        task.suspended = suspended;
        let queues: Vec<QueueId> = task.queues.iter().copied().collect();
        for queue in queues {
            self.update_suspension(queue);
        }
        Ok(())
    }

    pub(super) fn suspend_queue(&mut self, id: QueueId, suspended: bool) -> Result<(), EventError> {
        self.queue_mut(id)?.own_suspended = suspended;
        self.update_suspension(id);
        Ok(())
    }

    /// Derives whether a queue is suspended from itself and its task.
    fn update_suspension(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let is_task_off = self.tasks.get(&queue.task).is_some_and(|task| task.suspended);
        let suspended = is_task_off || queue.own_suspended;
        queue.suspended = suspended;
        let (task, device_id, order) = (queue.task, queue.device, queue.order);
        if suspended && let Some(device) = self.devices.get(&device_id) {
            // A suspended queue is not charged for the rest of its turn.
            let key = device.entity_key(task, id);
            self.leave_turn(device_id, order, key, false);
        }
        self.update_queue(id);
    }

    /// Whether any task or queue of a gang is suspended: then none of them can run.
    pub(super) fn is_suspended(&self, gang: GangId) -> bool {
        let members = self.gangs.get(&gang).into_iter().flat_map(|gang| gang.tasks.iter());
        members.filter_map(|task| self.tasks.get(task)).any(|task| {
            let is_off = |id: &QueueId| self.queues.get(id).is_some_and(|queue| queue.suspended);
            task.suspended || task.queues.iter().any(is_off)
        })
    }

    pub(crate) fn is_task_suspended(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| task.suspended)
    }
}
