//! Time slices, holds and hardware priorities: set when the mix of classes changes, enforced by
//! hardware and hold watcher.
//!
//! The slice rules were measured on an H200. A single high queue gets a slice so long that the
//! hardware never interrupts it; several get short ones and are ordered by preempting. Low queues
//! beside a high one get the shortest slice, and only one of them may be runnable, because two
//! tiny slices starve each other. Where all priorities are equal, no slice is changed.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Scheduler;
use super::state::{ClassMix, Device};
use crate::backend::{Command, Mechanism};
use crate::event::EventError;
use crate::id::{DeviceId, QueueId};
use crate::priority::{Class, Priority};
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
        if class_mix == device.class_mix {
            return;
        }
        device.class_mix = class_mix;
        let queues: Vec<QueueId> =
            device.entities.values().flat_map(|entity| entity.queues.iter().copied()).collect();
        device.unset_queues.extend(queues);
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

    /// What was measured of a queue with a hold channel.
    pub(super) fn note_slowdown(
        &mut self,
        id: QueueId,
        busy: Duration,
        off: Duration,
    ) -> Result<(), EventError> {
        let queue = self.queue_mut(id)?;
        let on = busy.saturating_sub(off).as_nanos().max(1);
        let percent = u32::try_from(off.as_nanos().saturating_mul(100) / on).unwrap_or(u32::MAX);
        queue.slowdown_percent = Some(percent);
        Ok(())
    }

    /// The next slice or hardware priority to set on a device.
    pub(super) fn next_setting(&mut self, id: DeviceId) -> Option<Command> {
        let device = self.devices.get_mut(&id)?;
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
        let wanted = wanted.filter(|_| !is_alone);
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
    match (priority.class(), high_queues) {
        (Class::High, 1) => Some(SLICE_ALONE),
        (Class::High, _) => Some(SLICE_AMONG_HIGH),
        (Class::Low, 0) => None,
        (Class::Low, _) => Some(SLICE_LOW),
    }
}

/// Longer than any request.
const SLICE_ALONE: Duration = Duration::from_millis(1_000);
/// Short enough for several high queues to alternate.
const SLICE_AMONG_HIGH: Duration = Duration::from_millis(5);
/// The shortest there is: the hardware switches as soon as a high queue has work.
const SLICE_LOW: Duration = Duration::from_micros(1);
