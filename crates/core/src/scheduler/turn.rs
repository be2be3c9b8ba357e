//! Turns: where equals do not share the device, one has it for a slice, then the next.

use alloc::vec::Vec;

use super::Scheduler;
use super::order::SeatKey;
use super::state::Device;
use crate::id::{DeviceId, QueueId};
use crate::policy;
use crate::priority::{Class, Priority};
use crate::time::{Duration, Instant};
use crate::timer::Timer;

impl Scheduler {
    /// Sees to it that whoever is first in a lane where turns are taken has the turn.
    pub(super) fn elect(&mut self, device_id: DeviceId, class: Class) {
        let Some(device) = self.devices.get(&device_id) else {
            return;
        };
        let lane = device.lane(class);
        let Some(top) = lane.top() else { return };
        if !self.policy(lane.exclusive).takes_turns(&top.rank) {
            self.interrupt_turn(device_id, class);
        } else if !lane.holders.contains(&top.seat.0) {
            let end = self.now + self.slice_of(device, class);
            self.take_turn(device_id, class, &[top.seat.0], end);
        }
    }

    /// Gives the turn to these seats, and to nobody else, until `end`.
    pub(super) fn take_turn(
        &mut self,
        device_id: DeviceId,
        class: Class,
        keys: &[SeatKey],
        end: Instant,
    ) {
        for before in self.holders(device_id, class) {
            if !keys.contains(&before) {
                self.leave_turn(device_id, class, before, false);
            }
        }
        for &key in keys {
            let priority =
                self.tasks.get(&key.task).map_or(Priority::DEFAULT, |task| task.traits.priority);
            let Some(device) = self.devices.get_mut(&device_id) else {
                return;
            };
            let Some(seat) = device.seats.get_mut(&key) else {
                continue;
            };
            if seat.holds.is_none() {
                seat.holds = Some(self.now);
                let virtual_time = seat.virtual_time;
                let lane = device.lane_mut(class);
                lane.holders.insert(key);
                let virtual_now = &mut lane.virtual_now[priority.class() as usize];
                *virtual_now = virtual_time.max(*virtual_now);
                self.reseat_all(device_id, key);
            }
        }
        self.timers.set(Timer::SliceOver(device_id, class), end);
    }

    /// Takes the turn away from a seat and charges it for what it had. Whoever used it up goes
    /// to the back; whoever was interrupted keeps its place in the line.
    pub(super) fn leave_turn(
        &mut self,
        device_id: DeviceId,
        class: Class,
        key: SeatKey,
        used_up: bool,
    ) {
        let now = self.now;
        let weight = self.tasks.get(&key.task).map_or(1, |task| task.traits.weight);
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        let lane = device.lane_mut(class);
        if lane.holders.remove(&key) && lane.holders.is_empty() {
            self.timers.stop(Timer::SliceOver(device_id, class));
        }
        let Some(seat) = device.seats.get_mut(&key) else {
            return;
        };
        let Some(since) = seat.holds.take() else {
            return;
        };
        // Also in the shadow of the high class: whoever is runnable has its gaps.
        let cost = policy::fair::virtual_cost(now.since(since), weight);
        seat.virtual_time = seat.virtual_time.saturating_add(cost);
        if used_up {
            self.turn += 1;
            seat.turn = self.turn;
        }
        self.reseat_all(device_id, key);
    }

    /// The slice is over.
    pub(super) fn end_turn(&mut self, device: DeviceId, class: Class) {
        for holder in self.holders(device, class) {
            self.leave_turn(device, class, holder, true);
        }
    }

    /// Somebody comes in between.
    pub(super) fn interrupt_turn(&mut self, device: DeviceId, class: Class) {
        for holder in self.holders(device, class) {
            self.leave_turn(device, class, holder, false);
        }
    }

    pub(super) fn end_turns(&mut self, device: DeviceId) {
        self.end_turn(device, Class::Low);
        self.end_turn(device, Class::High);
    }

    /// What somebody had under other settings is no debt under new ones.
    pub(super) fn forget_virtual_time(&mut self, device: DeviceId) {
        let Some(device) = self.devices.get_mut(&device) else {
            return;
        };
        for seat in device.seats.values_mut() {
            seat.virtual_time = 0;
        }
        for lane in &mut device.lanes {
            lane.virtual_now = [0; 2];
        }
    }

    /// Whoever is in another class now is like a newcomer there: what it had was had among others.
    pub(super) fn forget_debts(&mut self, id: QueueId, class: Class) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let (device_id, lane) = (queue.device, queue.lane);
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        let key = device.seat_key(queue.task, id);
        let virtual_now = device.lane(lane).virtual_now[class as usize];
        if let Some(seat) = device.seats.get_mut(&key) {
            seat.virtual_time = virtual_now;
            self.reseat_all(device_id, key);
        }
    }

    fn holders(&self, device: DeviceId, class: Class) -> Vec<SeatKey> {
        let device = self.devices.get(&device);
        let holders = device.map(|device| device.lane(class).holders.iter().copied());
        holders.into_iter().flatten().collect()
    }

    /// How long a turn lasts: as configured, but long enough for a switch to pay.
    pub(super) fn slice_of(&self, device: &Device, class: Class) -> Duration {
        let least = device.capabilities.round_trip().times(SWITCHES_PER_SLICE);
        let slice = self.config.slice.max(least);
        if device.lane(class).exclusive { slice.max(ROTATION_MIN) } else { slice }
    }
}

/// A turn is at least that many switches long, so that switching costs a twentieth at most.
const SWITCHES_PER_SLICE: u64 = 20;

/// Every change of who may run ends everybody's hardware slice; more often than this costs the
/// important ones more than it gives the others.
const ROTATION_MIN: Duration = Duration::from_millis(100);
