//! Slices, holds and hardware priorities: what is set rarely and works without us.
//!
//! The slice rules were measured. One important queue alone gets a slice so long that nobody
//! interrupts it; several get short ones and their order is kept by stopping. Unimportant queues
//! beside an important one get the shortest slice there is, and only one of them may be runnable,
//! because two of those starve each other. Where all are equal, nothing is touched.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Scheduler;
use super::state::{Device, Mixture};
use crate::capability::Mechanism;
use crate::command::Command;
use crate::id::{DeviceId, QueueId};
use crate::priority::{Class, Priority};
use crate::time::Duration;

impl Scheduler {
    /// A queue of that priority is there now.
    pub(super) fn enter_mixture(&mut self, id: QueueId, priority: Priority) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let device_id = queue.device;
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        device.levels[usize::from(priority.level())] += 1;
        device.untuned.insert(id);
        if priority.class() == Class::High {
            device.high.insert((priority, Reverse(id)));
        }
        self.remix(device_id);
    }

    /// It is not there any more.
    pub(super) fn leave_mixture(&mut self, id: QueueId, priority: Priority) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let device_id = queue.device;
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        device.levels[usize::from(priority.level())] -= 1;
        device.high.remove(&(priority, Reverse(id)));
        self.remix(device_id);
    }

    /// Derives everything again that depends on who is there.
    fn remix(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(&id) else {
            return;
        };
        if device.capabilities.mechanism != Mechanism::Slice {
            return;
        }
        let mixture = Mixture {
            mixed: device.levels.iter().filter(|&&count| count > 0).count() > 1,
            high_queues: device.high.len().min(2),
        };
        if mixture == device.mixture {
            return;
        }
        device.mixture = mixture;
        let queues: Vec<QueueId> =
            device.seats.values().flat_map(|seat| seat.queues.iter().copied()).collect();
        device.untuned.extend(queues);
        let exclusive = mixture.mixed && mixture.high_queues > 0;
        if device.lane(Class::Low).exclusive != exclusive {
            self.end_turn(id, Class::Low);
            if let Some(device) = self.devices.get_mut(&id) {
                device.lane_mut(Class::Low).exclusive = exclusive;
            }
            self.reorder_device(id);
        }
        self.unsettled.insert(id);
    }

    /// The next thing to set on a device, if any.
    pub(super) fn tune(&mut self, id: DeviceId) -> Option<Command> {
        let device = self.devices.get_mut(&id)?;
        while let Some(&queue_id) = device.untuned.first() {
            let Some(queue) = self.queues.get_mut(&queue_id) else {
                device.untuned.remove(&queue_id);
                continue;
            };
            if device.capabilities.hardware_priority && queue.told_priority != Some(queue.priority)
            {
                queue.told_priority = Some(queue.priority);
                let priority = queue.priority;
                return Some(Command::SetHardwarePriority { queue: queue_id, priority });
            }
            device.untuned.remove(&queue_id);
            let slice = slice_for(device, queue.priority);
            let untouched = slice.is_none() && queue.slice.is_none();
            if queue.slice != Some(slice) && !untouched {
                queue.slice = Some(slice);
                return Some(Command::SetSlice { queue: queue_id, slice });
            }
        }
        None
    }

    /// At most one queue of a device may be held: the important one that has work, failing that
    /// the one that had work last, failing that the most important one there is.
    pub(super) fn tune_hold(&mut self, id: DeviceId) -> Option<Command> {
        let device = self.devices.get_mut(&id)?;
        if !device.capabilities.hold {
            return None;
        }
        let first = device.lane(device.lane_of(Priority::MAX)).top();
        let first = first.map(|place| place.queue.0).filter(|queue| {
            let queue = self.queues.get(queue);
            queue.is_some_and(|queue| queue.priority.class() == Class::High)
        });
        let has_work = |id: &QueueId| self.queues.get(id).is_some_and(|q| q.ring.has_work());
        // A device that is held for somebody who is kept off is held for nobody.
        let may_run = |id: &QueueId| self.queues.get(id).is_some_and(|q| !q.suspended);
        // A hint names a task, not a queue: where another of its queues has the work, hold that.
        let working = first.map(|first| {
            let mut others = device.high.iter().rev().map(|(_, Reverse(id))| *id).filter(may_run);
            if has_work(&first) { first } else { others.find(has_work).unwrap_or(first) }
        });
        // Who worked last may be in a gap: that is what holds are for.
        let lately = device.worked.filter(may_run).filter(|id| {
            let queue = self.queues.get(id);
            queue.is_some_and(|queue| device.high.contains(&(queue.priority, Reverse(*id))))
        });
        device.worked = working.or(lately);
        let mut allowed = device.high.iter().rev().map(|(_, Reverse(id))| *id).filter(may_run);
        let wanted = working.or(lately).or_else(|| allowed.next());
        // Where nobody else is there, nobody can get into a gap.
        let is_alone = device.capabilities.mechanism == Mechanism::Slice && !device.mixture.mixed;
        let wanted = wanted.filter(|_| !is_alone);
        if device.held == wanted {
            return None;
        }
        if let Some(queue) = device.held.take() {
            return Some(Command::ForbidHold { queue });
        }
        device.held = wanted;
        wanted.map(|queue| Command::PermitHold { queue })
    }
}

/// The slice a queue of that priority should have; none means the one it came with.
fn slice_for(device: &Device, priority: Priority) -> Option<Duration> {
    let Mixture { mixed, high_queues } = device.mixture;
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

/// Long enough that no request is ever cut by it.
const SLICE_ALONE: Duration = Duration::from_millis(1_000);
/// Short enough that important tasks reach the device in turn.
const SLICE_AMONG_HIGH: Duration = Duration::from_millis(5);
/// The shortest there is: gives way as soon as an important queue has work.
const SLICE_LOW: Duration = Duration::from_micros(1);
