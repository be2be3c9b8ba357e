//! Nobody waits for ever, if so configured.
//!
//! A queue that was kept off for too long runs above everybody else for a short while. Where the
//! hardware itself prefers the high class, the low class starves without being off; there the
//! high class is stopped for the same short while.

use alloc::vec::Vec;

use super::Scheduler;
use super::order::SeatKey;
use super::state::Grant;
use crate::capability::Mechanism;
use crate::decision::Reason;
use crate::id::{DeviceId, QueueId};
use crate::priority::Class;
use crate::time::{Duration, Instant};
use crate::timer::Timer;

impl Scheduler {
    /// Waits for the moment at which somebody on the device has waited too long.
    pub(super) fn watch_for_starvation(&mut self, id: DeviceId) {
        let Some(aging) = self.config.aging else {
            self.timers.stop(Timer::Starving(id));
            return;
        };
        let Some(device) = self.devices.get(&id) else {
            return;
        };
        let off = device.waiting.first().map(|&(since, _)| since);
        let shadowed = self.shadowed_since(id);
        let first = match (off, shadowed) {
            (Some(off), Some(shadowed)) => Some(off.min(shadowed)),
            (off, shadowed) => off.or(shadowed),
        };
        match first.filter(|_| device.grant.is_none()) {
            Some(since) => {
                let at = since + aging.after;
                if self.timers.end_of(Timer::Starving(id)) != Some(at) {
                    self.timers.set(Timer::Starving(id), at);
                }
            }
            None => self.timers.stop(Timer::Starving(id)),
        }
    }

    /// Since when the low class has been shadowed by the high one without a break.
    fn shadowed_since(&self, id: DeviceId) -> Option<Instant> {
        let device = self.devices.get(&id)?;
        let slices = device.capabilities.mechanism == Mechanism::Slice;
        let high = device.lane(Class::High).busy_since?;
        let low = device.lane(Class::Low).busy_since?;
        slices.then_some(high.max(low))
    }

    pub(super) fn help_starving(&mut self, id: DeviceId) {
        let Some(aging) = self.config.aging else {
            return;
        };
        let now = self.now;
        let shadowed = self.shadowed_since(id).is_some_and(|since| since + aging.after <= now);
        let Some(device) = self.devices.get_mut(&id) else {
            return;
        };
        let starved =
            device.waiting.first().copied().filter(|(since, _)| *since + aging.after <= now);
        if shadowed {
            // Before any single queue: a turn among the shadowed is worth nothing.
            let over = now + aging.grant + device.capabilities.round_trip();
            device.grant = Some(Grant::LowClass);
            self.timers.set(Timer::GrantOver(id), over);
            self.unsettled.insert(id);
        } else if let Some((since, queue_id)) = starved {
            let waited = now.since(since);
            self.decide(queue_id, Reason::Aged { waited });
            self.boost(id, queue_id, aging.grant);
        } else {
            self.watch_for_starvation(id);
        }
    }

    /// Puts a queue's seat above everybody else, and its gang on the other devices with it.
    fn boost(&mut self, device_id: DeviceId, queue_id: QueueId, grant: Duration) {
        let Some(queue) = self.queues.get(&queue_id) else {
            return;
        };
        let Some(device) = self.devices.get(&device_id) else {
            return;
        };
        let own = (device_id, device.seat_key(queue.task, queue_id));
        let mates = queue.gang.map(|gang| self.gang_seats(gang));
        let mates = mates.into_iter().flatten();
        let seats: Vec<(DeviceId, SeatKey)> =
            core::iter::once(own).chain(mates.map(|(device, _, key)| (device, key))).collect();
        for (device_id, key) in seats {
            let Some(device) = self.devices.get_mut(&device_id) else {
                continue;
            };
            let Some(seat) = device.seats.get_mut(&key) else {
                continue;
            };
            if device.grant.is_none() {
                device.grant = Some(Grant::Seat(key));
                seat.boosted = true;
                // The grant begins to count when the device has really changed hands.
                let over = self.now + grant + device.capabilities.round_trip();
                self.timers.set(Timer::GrantOver(device_id), over);
                self.reseat_all(device_id, key);
            }
        }
    }

    pub(super) fn end_grant(&mut self, id: DeviceId) {
        let now = self.now;
        let Some(device) = self.devices.get_mut(&id) else {
            return;
        };
        match device.grant.take() {
            Some(Grant::Seat(key)) => {
                if let Some(seat) = device.seats.get_mut(&key) {
                    seat.boosted = false;
                }
                self.reseat_all(id, key);
            }
            Some(Grant::LowClass) => {
                let high = device.lane_mut(Class::High);
                high.busy_since = high.busy_since.map(|_| now);
            }
            None => {}
        }
        self.unsettled.insert(id);
        self.watch_for_starvation(id);
    }
}
