//! Aging (optional): a queue that was off longer than `after` outranks all others for `grant`.
//!
//! Where the hardware itself prefers the high class, the low class starves without being off; there
//! the scheduler preempts the high class for `grant`. The minimum share of some tasks uses the same
//! boosts; [`min_share`](super::min_share) says when.

use alloc::vec::Vec;

use super::Scheduler;
use super::run_order::EntityKey;
use super::state::AgingBoost;
use crate::backend::Mechanism;
use crate::config::Aging;
use crate::decision::Reason;
use crate::id::{DeviceId, QueueId};
use crate::priority::Class;
use crate::time::{Duration, Instant};
use crate::timer::Timer;

impl Scheduler {
    /// Sets the timer for the moment at which the longest waiting queue has starved, or the tasks
    /// with a minimum share are owed a boost.
    pub(super) fn set_starvation_timer(&mut self, id: DeviceId) {
        let owed_at = self.has_min_share.then(|| self.settle_share(id)).flatten();
        let starved_at = self.starved_at(id);
        let first = [owed_at, starved_at].into_iter().flatten().min();
        let has_no_boost = || self.devices.get(&id).is_some_and(|device| device.boost.is_none());
        match first.filter(|_| has_no_boost()) {
            Some(at) => {
                if self.timers.end_of(Timer::Starving(id)) != Some(at) {
                    self.timers.set(Timer::Starving(id), at);
                }
            }
            None => self.timers.stop(Timer::Starving(id)),
        }
    }

    /// When the longest waiting queue, or the low class, has starved.
    fn starved_at(&self, id: DeviceId) -> Option<Instant> {
        let aging = self.config.aging?;
        let off = self.devices.get(&id)?.waiting.first().map(|&(since, _)| since);
        let first = [off, self.low_class_blocked_since(id)].into_iter().flatten().min();
        first.map(|since| since + aging.after)
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
        let now = self.now;
        if let Some(share) = self.config.min_share
            && self.settle_share(id).is_some_and(|at| at <= now)
        {
            self.boost_min_share(id, share);
            return;
        }
        let Some(aging) = self.config.aging else {
            self.set_starvation_timer(id);
            return;
        };
        let blocked =
            self.low_class_blocked_since(id).is_some_and(|since| since + aging.after <= now);
        let Some(device) = self.devices.get(&id) else { return };
        let starved =
            device.waiting.first().copied().filter(|(since, _)| *since + aging.after <= now);
        if blocked {
            // Before any single queue: a boost within the blocked class has no effect.
            self.boost_low_class(id, None, aging.grant);
        } else if let Some((since, queue_id)) = starved {
            let waited = now.since(since);
            self.decide(queue_id, Reason::Aged { waited });
            self.boost(id, queue_id, aging.grant);
        } else {
            self.set_starvation_timer(id);
        }
    }

    /// Boosts one of the tasks with a minimum share, each in turn; on a device with slices with the
    /// low class.
    fn boost_min_share(&mut self, id: DeviceId, share: Aging) {
        self.reset_share(id);
        if let Some((key, queue_id)) = self.next_to_boost(id)
            && let Some(device) = self.devices.get_mut(&id)
        {
            let slices = device.capabilities.mechanism == Mechanism::Slice;
            if let Some(entity) = device.entities.get_mut(&key) {
                entity.boosted_at = self.now;
            }
            let since = self.queues.get(&queue_id).and_then(|queue| queue.waits_since);
            if let Some(since) = since {
                self.decide(queue_id, Reason::Aged { waited: self.now.since(since) });
            }
            if slices {
                self.boost_low_class(id, Some(key), share.grant);
            } else {
                self.boost(id, queue_id, share.grant);
            }
        }
        // From here on nothing is owed until the boost is over.
        self.set_starvation_timer(id);
    }

    /// Preempts the high class for `grant`. In the low class `first` is above all others.
    fn boost_low_class(&mut self, id: DeviceId, first: Option<EntityKey>, grant: Duration) {
        let Some(device) = self.devices.get_mut(&id) else { return };
        let over = self.now + grant + device.capabilities.round_trip();
        device.boost = Some(AgingBoost::LowClass(first));
        self.timers.set(Timer::BoostOver(id), over);
        self.changed_devices.insert(id);
        if let Some(key) = first {
            self.set_boosted(id, key, true);
        }
    }

    fn set_boosted(&mut self, id: DeviceId, key: EntityKey, boosted: bool) {
        let device = self.devices.get_mut(&id);
        if let Some(entity) = device.and_then(|device| device.entities.get_mut(&key)) {
            entity.boosted = boosted;
        }
        self.update_entity(id, key);
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
            if device.entities.contains_key(&key) && device.boost.is_none() {
                device.boost = Some(AgingBoost::Entity(key));
                // The time counts from the end of the switch.
                let over = self.now + grant + device.capabilities.round_trip();
                self.timers.set(Timer::BoostOver(device_id), over);
                self.set_boosted(device_id, key, true);
            }
        }
    }

    pub(super) fn end_boost(&mut self, id: DeviceId) {
        let now = self.now;
        let Some(device) = self.devices.get_mut(&id) else { return };
        let boosted = match device.boost.take() {
            Some(AgingBoost::Entity(key)) => Some(key),
            Some(AgingBoost::LowClass(first)) => {
                let high = device.run_order_mut(Class::High);
                high.busy_since = high.busy_since.map(|_| now);
                first
            }
            None => None,
        };
        if let Some(key) = boosted {
            self.set_boosted(id, key, false);
        }
        self.changed_devices.insert(id);
        self.set_starvation_timer(id);
    }
}
