//! Turns: where equals do not share the device, one runs for a slice, then the next.

use alloc::vec::Vec;

use super::Scheduler;
use super::run_order::EntityKey;
use super::state::Device;
use crate::id::{DeviceId, QueueId};
use crate::policy;
use crate::priority::{Class, Priority};
use crate::time::{Duration, Instant};
use crate::timer::Timer;

impl Scheduler {
    /// Gives the turn to the first entity of a run order, if its rank takes turns.
    pub(super) fn choose_turn(&mut self, device_id: DeviceId, class: Class) {
        let Some(device) = self.devices.get(&device_id) else { return };
        let order = device.run_order(class);
        let Some(top) = order.top() else { return };
        if !self.policy(order.exclusive).takes_turns(&top.rank) {
            self.interrupt_turn(device_id, class);
        } else if !order.holders.contains(&top.entity.0) {
            let end = self.now + self.slice_of(device, class);
            self.take_turn(device_id, class, &[top.entity.0], end);
        }
    }

    /// Gives the turn to exactly these entities until `end`.
    pub(super) fn take_turn(
        &mut self,
        device_id: DeviceId,
        class: Class,
        keys: &[EntityKey],
        end: Instant,
    ) {
        for before in self.holders(device_id, class) {
            if !keys.contains(&before) {
                self.leave_turn(device_id, class, before, false);
            }
        }
        for &key in keys {
            let priority =
                self.tasks.get(&key.task).map_or(Priority::DEFAULT, |task| task.attr.priority);
            let Some(device) = self.devices.get_mut(&device_id) else { return };
            let Some(entity) = device.entities.get_mut(&key) else { continue };
            if entity.holds.is_none() {
                entity.holds = Some(self.now);
                let virtual_time = entity.virtual_time;
                let order = device.run_order_mut(class);
                order.holders.insert(key);
                let virtual_now = &mut order.virtual_now[priority.class() as usize];
                *virtual_now = virtual_time.max(*virtual_now);
                self.update_entity(device_id, key);
            }
        }
        self.timers.set(Timer::SliceOver(device_id, class), end);
    }

    /// Ends the turn of an entity and charges its time. An entity that used up its slice ranks last
    /// among equals from now on; one that was interrupted keeps its rank.
    pub(super) fn leave_turn(
        &mut self,
        device_id: DeviceId,
        class: Class,
        key: EntityKey,
        used_up: bool,
    ) {
        let now = self.now;
        let weight = self.tasks.get(&key.task).map_or(1, |task| task.attr.weight);
        let Some(device) = self.devices.get_mut(&device_id) else { return };
        let order = device.run_order_mut(class);
        if order.holders.remove(&key) && order.holders.is_empty() {
            self.timers.stop(Timer::SliceOver(device_id, class));
        }
        let Some(entity) = device.entities.get_mut(&key) else { return };
        let Some(since) = entity.holds.take() else { return };
        // Also while the high class runs: a runnable entity gets its idle time.
        let cost = policy::fair::virtual_cost(now.since(since), weight);
        entity.virtual_time = entity.virtual_time.saturating_add(cost);
        if used_up {
            self.turn += 1;
            entity.turn = self.turn;
        }
        self.update_entity(device_id, key);
    }

    pub(super) fn end_turn(&mut self, device: DeviceId, class: Class) {
        for holder in self.holders(device, class) {
            self.leave_turn(device, class, holder, true);
        }
    }

    /// A rank that takes no turns is first now.
    pub(super) fn interrupt_turn(&mut self, device: DeviceId, class: Class) {
        for holder in self.holders(device, class) {
            self.leave_turn(device, class, holder, false);
        }
    }

    pub(super) fn end_turns(&mut self, device: DeviceId) {
        self.end_turn(device, Class::Low);
        self.end_turn(device, Class::High);
    }

    /// Forgets the time that was charged under other settings.
    pub(super) fn reset_virtual_time(&mut self, device: DeviceId) {
        let Some(device) = self.devices.get_mut(&device) else { return };
        for entity in device.entities.values_mut() {
            entity.virtual_time = 0;
        }
        for order in &mut device.run_orders {
            order.virtual_now = [0; 2];
        }
    }

    /// Lets a queue that changed its class start where that class is: it was charged in the other.
    pub(super) fn reset_queue_virtual_time(&mut self, id: QueueId, class: Class) {
        let Some(queue) = self.queues.get(&id) else { return };
        let Some(device) = self.devices.get(&queue.device) else { return };
        let virtual_now = device.run_order(queue.order).virtual_now[class as usize];
        let Some((device, key, entity)) = self.entity_of(id) else { return };
        entity.virtual_time = virtual_now;
        self.update_entity(device, key);
    }

    fn holders(&self, device: DeviceId, class: Class) -> Vec<EntityKey> {
        let device = self.devices.get(&device);
        let holders = device.map(|device| device.run_order(class).holders.iter().copied());
        holders.into_iter().flatten().collect()
    }

    /// The length of a turn: as configured, but long enough for a switch to pay.
    pub(super) fn slice_of(&self, device: &Device, class: Class) -> Duration {
        let least = device.capabilities.round_trip().times(SWITCHES_PER_SLICE);
        let slice = self.config.slice.max(least);
        if device.run_order(class).exclusive { slice.max(ROTATION_MIN) } else { slice }
    }
}

/// The least length of a turn in round trips, so that switching costs at most 5 % of the time.
const SWITCHES_PER_SLICE: u64 = 20;

/// The least length of a turn in the low class beside a high one. Every change of the runnable
/// queue ends the hardware slices of all queues; more changes cost the high class more than they
/// give the low one.
const ROTATION_MIN: Duration = Duration::from_millis(100);
