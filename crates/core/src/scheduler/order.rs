//! Ranks, and places in lanes.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Scheduler;
use super::state::{Device, Queue};
use crate::account::Charge;
use crate::id::{DeviceId, QueueId};
use crate::lane::{Place, Position, SeatKey};
use crate::policy::{self, Policy, Seat};
use crate::priority::Class;
use crate::queue::Standing;

impl Scheduler {
    pub(super) fn policy(&self, exclusive: bool) -> &'static dyn Policy {
        policy::of(self.config.policy, exclusive)
    }

    /// Where a queue belongs in its lane's order, as things stand.
    fn position_of(&self, id: QueueId, queue: &Queue, device: &Device, lane: Class) -> Position {
        if queue.doubtful && queue.standing == Standing::Off && !queue.stuck {
            return Position::Restore;
        }
        if queue.stuck || queue.standing == Standing::Preempting {
            return Position::Out;
        }
        if queue.suspended {
            return if queue.standing == Standing::On { Position::Evict } else { Position::Out };
        }
        if !queue.active {
            // Where two would starve each other, looking idle is not enough. Members of gangs are
            // believed: to stop one of them for a moment would stop them all.
            let exclusive = device.lane(lane).exclusive && queue.gang.is_none();
            let doubtful = exclusive && !queue.ring.is_done();
            return match queue.standing {
                Standing::On if doubtful => Position::Idle,
                Standing::On if queue.may_run_unseen() => {
                    Position::Unseen(self.place_of(id, queue, device, lane))
                }
                Standing::Off => Position::Parked,
                Standing::On | Standing::Preempting | Standing::Resuming => Position::Out,
            };
        }
        if queue.gang.and_then(|gang| self.gangs.get(&gang)).is_some_and(|gang| gang.blocked) {
            return if queue.standing == Standing::On { Position::Evict } else { Position::Out };
        }
        let place = self.place_of(id, queue, device, lane);
        match queue.standing {
            Standing::On => Position::On(place),
            Standing::Off => Position::Off(place),
            Standing::Resuming => Position::Resuming(place),
            Standing::Preempting => Position::Out,
        }
    }

    pub(super) fn place_of(
        &self,
        id: QueueId,
        queue: &Queue,
        device: &Device,
        lane: Class,
    ) -> Place {
        let key = device.seat_key(queue.task, id);
        let holds = device.lane(lane).holders.contains(&key);
        self.place_if(id, queue, device, (lane, holds))
    }

    /// The same, if it had the turn or had it not.
    pub(super) fn place_if(
        &self,
        id: QueueId,
        queue: &Queue,
        device: &Device,
        (lane, holds): (Class, bool),
    ) -> Place {
        let key = device.seat_key(queue.task, id);
        // PANIC: a queue sits on its device from the day it appears until it vanishes.
        let state = device.seats.get(&key).expect("a queue has a seat");
        let seat = Seat {
            priority: queue.priority,
            weight: self.tasks.get(&queue.task).map_or(1, |task| task.traits.weight),
            deadline: state.deadline,
            virtual_time: state.virtual_time,
            turn: state.turn,
            holds,
            switch_cost: device.capabilities.round_trip(),
        };
        let mut rank = self.policy(device.lane(lane).exclusive).rank(&seat);
        rank.boosted = state.boosted;
        Place { rank, seat: Reverse(key), queue: Reverse(id) }
    }

    /// Puts a queue where it belongs after anything about it changed.
    pub(super) fn reseat(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let Some(device) = self.devices.get(&queue.device) else {
            return;
        };
        let lane = device.lane_of(queue.priority);
        let position = self.position_of(id, queue, device, lane);
        let (before, lane_before) = (queue.position, queue.lane);
        let now = self.now;
        let queue = self.queues.get_mut(&id).expect("looked up above");
        let device_id = queue.device;
        let device = self.devices.get_mut(&device_id).expect("looked up above");
        if (before, lane_before) != (position, lane) {
            device.lane_mut(lane_before).remove(id, before);
            device.lane_mut(lane).insert(id, position);
            if lane_before != lane && queue.awaited {
                device.lane_mut(lane_before).preempting -= 1;
                device.lane_mut(lane).preempting += 1;
            }
            (queue.position, queue.lane) = (position, lane);
            for class in [lane_before, lane] {
                let lane = device.lane_mut(class);
                lane.busy_since = lane.is_busy().then(|| lane.busy_since.unwrap_or(now));
            }
        }
        // Whoever is suspended does not starve: it gets no turn before it is let on again.
        let waits = queue.active && queue.standing == Standing::Off && !queue.suspended;
        let waits_since = waits.then(|| queue.waits_since.unwrap_or(now));
        if waits_since != queue.waits_since {
            if let Some(since) = queue.waits_since {
                device.waiting.remove(&(since, id));
            }
            if let Some(since) = waits_since {
                device.waiting.insert((since, id));
            }
            queue.waits_since = waits_since;
        }
        let charge = match (queue.active, queue.standing) {
            (false, _) => Charge::Idle,
            (true, Standing::On | Standing::Preempting) => Charge::Runs,
            (true, Standing::Off | Standing::Resuming) => Charge::Waits,
        };
        queue.meter.switch(now, charge);
        self.unsettled.insert(device_id);
        self.watch_for_starvation(device_id);
    }

    /// The same for everybody on a seat.
    pub(super) fn reseat_all(&mut self, device: DeviceId, key: SeatKey) {
        let queues: Vec<QueueId> = self
            .devices
            .get(&device)
            .and_then(|device| device.seats.get(&key))
            .map(|seat| seat.queues.iter().copied().collect())
            .unwrap_or_default();
        for queue in queues {
            self.reseat(queue);
        }
    }

    /// The same for everybody on a device.
    pub(super) fn reorder_device(&mut self, device: DeviceId) {
        let keys: Vec<SeatKey> = self
            .devices
            .get(&device)
            .map(|device| device.seats.keys().copied().collect())
            .unwrap_or_default();
        for key in keys {
            self.reseat_all(device, key);
        }
    }
}
