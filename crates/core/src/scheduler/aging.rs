//! Aging (optional): a queue that was off longer than `after` outranks all others for `grant`.
//!
//! Where the hardware itself prefers the high class, the low class starves without being off; there
//! the scheduler preempts the high class for `grant`.

use alloc::vec::Vec;

use super::Scheduler;
use super::run_order::EntityKey;
use super::state::AgingBoost;
use crate::backend::Mechanism;
use crate::decision::Reason;
use crate::id::{DeviceId, QueueId};
use crate::priority::Class;
use crate::time::{Duration, Instant};
use crate::timer::Timer;

impl Scheduler {
    /// Sets the timer for the moment at which the longest waiting queue has starved.
    pub(super) fn set_starvation_timer(&mut self, id: DeviceId) {
        let Some(aging) = self.config.aging else {
            self.timers.stop(Timer::Starving(id));
            return;
        };
        let Some(device) = self.devices.get(&id) else { return };
        let off = device.waiting.first().map(|&(since, _)| since);
        let blocked = self.low_class_blocked_since(id);
        let first = match (off, blocked) {
            (Some(off), Some(blocked)) => Some(off.min(blocked)),
            (off, blocked) => off.or(blocked),
        };
        match first.filter(|_| device.boost.is_none()) {
            Some(since) => {
                let at = since + aging.after;
                if self.timers.end_of(Timer::Starving(id)) != Some(at) {
                    self.timers.set(Timer::Starving(id), at);
                }
            }
            None => self.timers.stop(Timer::Starving(id)),
        }
    }

    /// Since when both classes have had work without a break on a device with slices, so that the
    /// hardware keeps the low class off.
    fn low_class_blocked_since(&self, id: DeviceId) -> Option<Instant> {
        let device = self.devices.get(&id)?;
        let slices = device.capabilities.mechanism == Mechanism::Slice;
        let high = device.run_order(Class::High).busy_since?;
        let low = device.run_order(Class::Low).busy_since?;
        slices.then_some(high.max(low))
    }

    pub(super) fn boost_starving(&mut self, id: DeviceId) {
        let Some(aging) = self.config.aging else { return };
        let now = self.now;
        let blocked =
            self.low_class_blocked_since(id).is_some_and(|since| since + aging.after <= now);
        let Some(device) = self.devices.get_mut(&id) else { return };
        let starved =
            device.waiting.first().copied().filter(|(since, _)| *since + aging.after <= now);
        if blocked {
            // Before any single queue: a boost within the blocked class has no effect.
            let over = now + aging.grant + device.capabilities.round_trip();
            device.boost = Some(AgingBoost::LowClass);
            self.timers.set(Timer::BoostOver(id), over);
            self.changed_devices.insert(id);
        } else if let Some((since, queue_id)) = starved {
            let waited = now.since(since);
            self.decide(queue_id, Reason::Aged { waited });
            self.boost(id, queue_id, aging.grant);
        } else {
            self.set_starvation_timer(id);
        }
    }

    /// Boosts a queue's entity, and those of its gang on the other devices.
    fn boost(&mut self, device_id: DeviceId, queue_id: QueueId, grant: Duration) {
        let Some(queue) = self.queues.get(&queue_id) else { return };
        let Some(device) = self.devices.get(&device_id) else { return };
        let own = (device_id, device.entity_key(queue.task, queue_id));
        let mates = queue.gang.map(|gang| self.gang_entities(gang));
        let mates = mates.into_iter().flatten();
        let entities: Vec<(DeviceId, EntityKey)> =
            core::iter::once(own).chain(mates.map(|(device, _, key)| (device, key))).collect();
        for (device_id, key) in entities {
            let Some(device) = self.devices.get_mut(&device_id) else { continue };
            let Some(entity) = device.entities.get_mut(&key) else { continue };
            if device.boost.is_none() {
                device.boost = Some(AgingBoost::Entity(key));
                entity.boosted = true;
                // The time counts from the end of the switch.
                let over = self.now + grant + device.capabilities.round_trip();
                self.timers.set(Timer::BoostOver(device_id), over);
                self.update_entity(device_id, key);
            }
        }
    }

    pub(super) fn end_boost(&mut self, id: DeviceId) {
        let now = self.now;
        let Some(device) = self.devices.get_mut(&id) else { return };
        match device.boost.take() {
            Some(AgingBoost::Entity(key)) => {
                if let Some(entity) = device.entities.get_mut(&key) {
                    entity.boosted = false;
                }
                self.update_entity(id, key);
            }
            Some(AgingBoost::LowClass) => {
                let high = device.run_order_mut(Class::High);
                high.busy_since = high.busy_since.map(|_| now);
            }
            None => {}
        }
        self.changed_devices.insert(id);
        self.set_starvation_timer(id);
    }
}
