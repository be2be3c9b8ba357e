//! Devices, tasks and queues that come, change and go.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::Scheduler;
use super::order::Position;
use super::state::{Device, Queue, Task};
use crate::account::Meter;
use crate::capability::Capabilities;
use crate::event::{EventError, TaskTraits};
use crate::id::{DeviceId, QueueId, TaskId};
use crate::priority::{Class, Priority};
use crate::queue::Standing;
use crate::ring::RingView;
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

    /// Turns that began go on as they are; what is decided from now on counts the new cost.
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
        self.reorder_device(id);
        Ok(())
    }

    pub(super) fn set_yielded(&mut self, id: DeviceId, yielded: bool) -> Result<(), EventError> {
        let device = self.devices.get_mut(&id).ok_or(EventError::UnknownDevice(id))?;
        device.yielded = yielded;
        // A gang that could not run because of this device may be able to now.
        self.unsettled.extend(self.devices.keys());
        Ok(())
    }

    pub(super) fn remove_device(&mut self, id: DeviceId) -> Result<(), EventError> {
        if !self.devices.contains_key(&id) {
            return Err(EventError::UnknownDevice(id));
        }
        let queues: Vec<QueueId> = self
            .queues
            .iter()
            .filter(|(_, queue)| queue.device == id)
            .map(|(&queue, _)| queue)
            .collect();
        for queue in queues {
            self.remove_queue(queue)?;
        }
        for timer in [
            Timer::Starving(id),
            Timer::GrantOver(id),
            Timer::SliceOver(id, Class::Low),
            Timer::SliceOver(id, Class::High),
        ] {
            self.timers.stop(timer);
        }
        self.devices.remove(&id);
        self.unsettled.remove(&id);
        // A gang that could not run because of this device may be able to now.
        self.unsettled.extend(self.devices.keys());
        Ok(())
    }

    pub(super) fn add_task(&mut self, id: TaskId, traits: TaskTraits) -> Result<(), EventError> {
        if traits.weight == 0 {
            return Err(EventError::ZeroWeight(id));
        }
        if self.tasks.contains_key(&id) {
            return Err(EventError::DuplicateTask(id));
        }
        if let Some(gang) = traits.gang {
            self.gangs.entry(gang).or_default().tasks.insert(id);
        }
        let task = Task { traits, queues: BTreeSet::new(), hinted: false, suspended: false };
        self.tasks.insert(id, task);
        Ok(())
    }

    pub(super) fn change_task(&mut self, id: TaskId, traits: TaskTraits) -> Result<(), EventError> {
        if traits.weight == 0 {
            return Err(EventError::ZeroWeight(id));
        }
        let task = self.tasks.get_mut(&id).ok_or(EventError::UnknownTask(id))?;
        let TaskTraits { gang, deadline, priority, .. } = task.traits;
        task.traits = TaskTraits { gang, ..traits };
        let queues: Vec<QueueId> = task.queues.iter().copied().collect();
        for queue in queues {
            if deadline != traits.deadline {
                self.restart_deadline(queue);
            }
            self.update_priority(queue);
            if priority.class() != traits.priority.class() {
                self.forget_debts(queue, traits.priority.class());
            }
        }
        Ok(())
    }

    pub(super) fn remove_task(&mut self, id: TaskId) -> Result<(), EventError> {
        let task = self.tasks.get(&id).ok_or(EventError::UnknownTask(id))?;
        let gang = task.traits.gang;
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
        let priority = task.traits.priority;
        let key = device.seat_key(task_id, id);
        let seat = device.seats.entry(key).or_default();
        seat.queues.insert(id);
        if seat.turn == 0 {
            self.turn += 1;
            seat.turn = self.turn;
        }
        let queue = Queue {
            task: task_id,
            device: device_id,
            gang: task.traits.gang,
            own_priority: None,
            suspended: task.suspended,
            own_suspended: false,
            priority,
            standing: if stopped { Standing::Off } else { Standing::On },
            ring: RingView::default(),
            active: false,
            lane: device.lane_of(priority),
            position: Position::Out,
            stuck: false,
            awaited: false,
            failures: 0,
            doubtful: false,
            commanded_at: Instant::ZERO,
            off_since: self.now,
            waits_since: None,
            empty_since: None,
            doubt: Duration::ZERO,
            sure_at: None,
            gap: None,
            slice: None,
            told_priority: None,
            meter: Meter::default(),
        };
        let (expected, suspended) = (stopped || task.hinted, task.suspended);
        self.queues.insert(id, queue);
        self.enter_mixture(id, priority);
        // An adopted queue was stopped because it had work; only running it can show otherwise.
        if expected {
            self.set_active(id, true);
        }
        // A suspended task has no queue that is on, not even a new one that looks idle.
        if suspended {
            self.reseat(id);
        }
        self.unsettled.insert(device_id);
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
        queue.stuck = false;
        queue.doubtful = false;
        self.stop_waiting(id);
        self.set_active(id, false);
        self.leave_mixture(id, priority);
        let left = self.queues.remove(&id).map(|queue| (queue.lane, queue.position));
        for timer in [Timer::Idle(id), Timer::Retry(id)] {
            self.timers.stop(timer);
        }
        if let Some(task) = self.tasks.get_mut(&task_id) {
            task.queues.remove(&id);
        }
        let device = self.devices.get_mut(&device_id).expect("a queue's device is known");
        if let Some((lane, position)) = left {
            device.lane_mut(lane).remove(id, position);
        }
        device.untuned.remove(&id);
        if device.held == Some(id) {
            device.held = None;
        }
        let key = device.seat_key(task_id, id);
        if let Some(seat) = device.seats.get_mut(&key) {
            seat.queues.remove(&id);
            if seat.queues.is_empty() {
                device.seats.remove(&key);
            }
        }
        self.unsettled.insert(device_id);
        Ok(())
    }

    /// Brings a queue's priority in line with its own and its task's.
    fn update_priority(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let Some(task) = self.tasks.get(&queue.task) else {
            return;
        };
        let (before, now) = (queue.priority, queue.own_priority.unwrap_or(task.traits.priority));
        if before != now {
            self.leave_lane(id, now);
            self.leave_mixture(id, before);
            let queue = self.queues.get_mut(&id).expect("looked up above");
            queue.priority = now;
            self.enter_mixture(id, now);
        }
        self.reseat(id);
    }
    /// A queue whose new priority belongs to the other lane leaves its turn behind.
    fn leave_lane(&mut self, id: QueueId, priority: Priority) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let Some(device) = self.devices.get(&queue.device) else {
            return;
        };
        if device.lane_of(priority) != queue.lane {
            let key = device.seat_key(queue.task, id);
            self.leave_turn(queue.device, queue.lane, key, false);
        }
    }
}
