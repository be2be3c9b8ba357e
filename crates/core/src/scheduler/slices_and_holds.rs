//! Time slices, holds and hardware priorities: set when the mix of classes changes, enforced by
//! hardware and hold watcher.
//!
//! The slice rules were measured on an H200. A single high queue gets a slice so long that the
//! hardware never interrupts it, or that of a [plan](crate::slice_plan) for its latency budget;
//! several get short ones and are ordered by preempting. Low queues beside a high one get the
//! shortest slice, or that of the plan, and only one of them may be runnable, because two tiny
//! slices starve each other. Where all priorities are equal, no slice is changed.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Scheduler;
use super::state::{ClassMix, Device};
use crate::backend::{Command, Mechanism};
use crate::busy_periods::BusyTime;
use crate::event::EventError;
use crate::id::{DeviceId, QueueId};
use crate::priority::{Class, Priority};
use crate::queue::RunState;
use crate::slice_plan::{PlanChooser, SlicePlan};
use crate::time::Duration;

impl Scheduler {
    /// Counts a queue of that priority.
    pub(super) fn add_to_mix(&mut self, id: QueueId, priority: Priority) {
        let Some(queue) = self.queues.get(&id) else { return };
        let device_id = queue.device;
        let Some(device) = self.devices.get_mut(&device_id) else { return };
        device.levels[usize::from(priority.level())] += 1;
        device.unset_queues.insert(id);
        if priority.class() == Class::High {
            device.high.insert((priority, Reverse(id)));
        }
        self.update_mix(device_id);
    }

    pub(super) fn remove_from_mix(&mut self, id: QueueId, priority: Priority) {
        let Some(queue) = self.queues.get(&id) else { return };
        let device_id = queue.device;
        let Some(device) = self.devices.get_mut(&device_id) else { return };
        device.levels[usize::from(priority.level())] -= 1;
        device.high.remove(&(priority, Reverse(id)));
        self.update_mix(device_id);
    }

    /// Updates what depends on the classes that are present.
    fn update_mix(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        if device.capabilities.mechanism != Mechanism::Slice {
            return;
        }
        let class_mix = ClassMix {
            mixed: device.levels.iter().filter(|&&count| count > 0).count() > 1,
            high_queues: device.high.len().min(2),
        };
        let is_same = class_mix == device.class_mix;
        device.class_mix = class_mix;
        self.update_budget(id);
        if is_same {
            return;
        }
        self.set_all_slices(id);
        let Some(device) = self.devices.get_mut(&id) else { return };
        let exclusive = class_mix.mixed && class_mix.high_queues > 0;
        if device.run_order(Class::Low).exclusive != exclusive {
            self.end_turn(id, Class::Low);
            if let Some(device) = self.devices.get_mut(&id) {
                device.run_order_mut(Class::Low).exclusive = exclusive;
            }
            self.update_device(id);
        }
        self.changed_devices.insert(id);
    }

    /// All slices of a device have to be set anew.
    fn set_all_slices(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let queues: Vec<QueueId> =
            device.entities.values().flat_map(|entity| entity.queues.iter().copied()).collect();
        device.unset_queues.extend(queues);
        self.changed_devices.insert(id);
    }

    /// Updates whose latency budget counts on a device.
    pub(super) fn update_budget(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let ClassMix { mixed, high_queues } = device.class_mix;
        let is_beside_others = mixed && high_queues == 1;
        let only = device.high.first().map(|(_, Reverse(queue))| *queue);
        let wanted = only.filter(|_| is_beside_others).and_then(|queue| {
            let task = self.queues.get(&queue).and_then(|queue| self.tasks.get(&queue.task))?;
            let budget = task.attr.latency_budget;
            (!budget.is_zero()).then_some((queue, budget))
        });
        let current = device.budgeted.as_ref().map(|(queue, plans)| (*queue, plans.budget()));
        if current == wanted {
            return;
        }
        let before = device.slice_plan();
        device.budgeted = wanted.map(|(queue, budget)| (queue, PlanChooser::new(budget)));
        if device.slice_plan() != before {
            self.set_all_slices(id);
        }
    }

    /// What was measured of a queue with a hold channel.
    pub(super) fn note_slowdown(&mut self, id: QueueId, time: BusyTime) -> Result<(), EventError> {
        let now = self.now;
        let device_id = self.queue_mut(id)?.device;
        let plan = self.devices.get(&device_id).map(Device::slice_plan);
        let is_shared = plan.is_some_and(|plan| plan != SlicePlan::STRICT);
        self.queue_mut(id)?.slowdown.add(time, is_shared);
        let Some(device) = self.devices.get_mut(&device_id) else { return Ok(()) };
        if let Some((_, plans)) = device.budgeted.as_mut().filter(|(queue, _)| *queue == id)
            && plans.take(now, time)
        {
            self.set_all_slices(device_id);
        }
        Ok(())
    }

    /// The next slice or hardware priority to set on a device, or what to measure.
    pub(super) fn next_setting(&mut self, id: DeviceId) -> Option<Command> {
        let device = self.devices.get_mut(&id)?;
        // While the strict plan is in force, holds tell when the queue is on the engine. A probe
        // is work of its own: it would bring the context of a preempted queue onto the engine.
        let is_interrupted = device.slice_plan() != SlicePlan::STRICT;
        let is_on =
            |id: &QueueId| self.queues.get(id).is_some_and(|queue| queue.run_state == RunState::On);
        let budgeted = device.budgeted.as_ref().map(|(queue, _)| *queue);
        let wanted = budgeted.filter(|queue| is_interrupted && is_on(queue));
        if device.measured != wanted {
            if let Some(queue) = device.measured.take().filter(|id| self.queues.contains_key(id)) {
                return Some(Command::MeasureSlowdown { queue, always: false });
            }
            device.measured = wanted;
            if let Some(queue) = wanted {
                return Some(Command::MeasureSlowdown { queue, always: true });
            }
        }
        while let Some(&queue_id) = device.unset_queues.first() {
            let Some(queue) = self.queues.get_mut(&queue_id) else {
                device.unset_queues.remove(&queue_id);
                continue;
            };
            if device.capabilities.hardware_priority
                && queue.hardware_priority_set != Some(queue.priority)
            {
                queue.hardware_priority_set = Some(queue.priority);
                let priority = queue.priority;
                return Some(Command::SetHardwarePriority { queue: queue_id, priority });
            }
            device.unset_queues.remove(&queue_id);
            let slice = slice_for(device, queue.priority);
            let untouched = slice.is_none() && queue.slice.is_none();
            if queue.slice != Some(slice) && !untouched {
                queue.slice = Some(slice);
                return Some(Command::SetSlice { queue: queue_id, slice });
            }
        }
        None
    }

    /// Permits holds for at most one queue of a device: the high queue that has work, else the one
    /// that had work last, else the highest one.
    pub(super) fn next_hold_command(&mut self, id: DeviceId) -> Option<Command> {
        let device = self.devices.get_mut(&id)?;
        if !device.capabilities.hold {
            return None;
        }
        let first = device.run_order(device.order_class(Priority::MAX)).top();
        let first = first.map(|run_key| run_key.queue.0).filter(|queue| {
            let queue = self.queues.get(queue);
            queue.is_some_and(|queue| queue.priority.class() == Class::High)
        });
        let has_work = |id: &QueueId| self.queues.get(id).is_some_and(|q| q.ring.has_work());
        // A hold for a suspended queue would keep the device idle.
        let may_run = |id: &QueueId| self.queues.get(id).is_some_and(|q| !q.suspended);
        // A hint names a task, not a queue: the work may be in another of its queues.
        let working = first.map(|first| {
            let mut others = device.high.iter().rev().map(|(_, Reverse(id))| *id).filter(may_run);
            if has_work(&first) { first } else { others.find(has_work).unwrap_or(first) }
        });
        // The queue that had work last may be between two kernels, which is what holds are for.
        let lately = device.last_active_high.filter(may_run).filter(|id| {
            let queue = self.queues.get(id);
            queue.is_some_and(|queue| device.high.contains(&(queue.priority, Reverse(*id))))
        });
        device.last_active_high = working.or(lately);
        let mut allowed = device.high.iter().rev().map(|(_, Reverse(id))| *id).filter(may_run);
        let wanted = working.or(lately).or_else(|| allowed.next());
        // A queue without competitors needs no hold.
        let is_alone = device.capabilities.mechanism == Mechanism::Slice && !device.class_mix.mixed;
        let wanted = wanted.filter(|_| !is_alone && device.slice_plan().hold);
        if device.hold_permitted == wanted {
            return None;
        }
        if let Some(queue) = device.hold_permitted.take() {
            return Some(Command::ForbidHold { queue });
        }
        device.hold_permitted = wanted;
        wanted.map(|queue| Command::PermitHold { queue })
    }
}

/// The slice of a queue of that priority; none is the one it had when it appeared.
fn slice_for(device: &Device, priority: Priority) -> Option<Duration> {
    let ClassMix { mixed, high_queues } = device.class_mix;
    if device.capabilities.mechanism != Mechanism::Slice || !mixed {
        return None;
    }
    let plan = device.slice_plan();
    match (priority.class(), high_queues) {
        (Class::High, 1) => Some(plan.high),
        (Class::High, _) => Some(SLICE_AMONG_HIGH),
        (Class::Low, 0) => None,
        (Class::Low, _) => Some(plan.low),
    }
}

/// Short enough for several high queues to alternate.
const SLICE_AMONG_HIGH: Duration = Duration::from_millis(5);
