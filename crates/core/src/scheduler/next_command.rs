//! From the state of queues to the next command.
//!
//! `update_queue` moves a queue to its set of the run order after any change of it; `next_command`
//! compares the run orders of a device with what is on and returns the next command.

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::run_order::{EntityKey, RunKey, RunSet};
use super::state::{AgingBoost, Device, EntityState, Queue};
use super::{RunState, Scheduler, Transition};
use crate::backend::{Command, Mechanism};
use crate::decision::Reason;
use crate::id::{DeviceId, QueueId};
use crate::policy::{self, Policy, SchedEntity};
use crate::priority::Class;
use crate::statistics::Charge;
use crate::timer::Timer;

impl Scheduler {
    pub(super) fn policy(&self, exclusive: bool) -> &'static dyn Policy {
        policy::of(self.config.policy, exclusive)
    }

    /// The set of the run order that a queue belongs to.
    fn run_set_of(&self, id: QueueId, queue: &Queue, device: &Device, order: Class) -> RunSet {
        if queue.preempt_unknown && queue.run_state == RunState::Off && !queue.backing_off {
            return RunSet::MustResume;
        }
        if queue.backing_off || queue.run_state == RunState::Preempting {
            return RunSet::Out;
        }
        if queue.suspended {
            return if queue.run_state == RunState::On {
                RunSet::Suspended(queue.task)
            } else {
                RunSet::Out
            };
        }
        if !queue.active {
            // Two runnable low queues would starve each other, so an empty ring is not enough.
            // Members of gangs are assumed to be idle: preempting one preempts them all.
            let exclusive = device.run_order(order).exclusive && queue.gang.is_none();
            let unproven = exclusive && !queue.ring.is_done();
            return match queue.run_state {
                RunState::On if unproven => RunSet::UnprovenIdle,
                RunState::On if queue.is_possibly_running() => {
                    RunSet::PossiblyRunning(self.run_key_of(id, queue, device, order))
                }
                RunState::Off => RunSet::OffIdle(queue.task),
                RunState::On | RunState::Preempting | RunState::Resuming => RunSet::Out,
            };
        }
        if queue.gang.and_then(|gang| self.gangs.get(&gang)).is_some_and(|gang| gang.blocked) {
            return if queue.run_state == RunState::On { RunSet::GangBlocked } else { RunSet::Out };
        }
        let run_key = self.run_key_of(id, queue, device, order);
        match queue.run_state {
            RunState::On => RunSet::On(run_key),
            RunState::Off => RunSet::Off(run_key),
            RunState::Resuming => RunSet::Resuming(run_key),
            RunState::Preempting => RunSet::Out,
        }
    }

    pub(super) fn run_key_of(
        &self,
        id: QueueId,
        queue: &Queue,
        device: &Device,
        order: Class,
    ) -> RunKey {
        let key = device.entity_key(queue.task, id);
        let holds = device.run_order(order).holders.contains(&key);
        self.run_key_if(id, queue, device, (order, holds))
    }

    /// The key that a queue would have with or without the turn.
    pub(super) fn run_key_if(
        &self,
        id: QueueId,
        queue: &Queue,
        device: &Device,
        (order, holds): (Class, bool),
    ) -> RunKey {
        let key = device.entity_key(queue.task, id);
        // PANIC: a queue's entity exists from its appearance until it vanishes.
        let state = device.entities.get(&key).expect("a queue has an entity");
        let entity = SchedEntity {
            priority: queue.priority,
            weight: self.tasks.get(&queue.task).map_or(1, |task| task.attr.weight),
            deadline: state.deadline,
            virtual_time: state.virtual_time,
            turn: state.turn,
            holds,
            switch_cost: device.capabilities.round_trip(),
        };
        let mut rank = self.policy(device.run_order(order).exclusive).rank(&entity);
        rank.boosted = state.boosted;
        RunKey { rank, entity: Reverse(key), queue: Reverse(id) }
    }

    /// The device, key and state of a queue's entity.
    pub(super) fn entity_of(
        &mut self,
        id: QueueId,
    ) -> Option<(DeviceId, EntityKey, &mut EntityState)> {
        let queue = self.queues.get(&id)?;
        let device = self.devices.get_mut(&queue.device)?;
        let key = device.entity_key(queue.task, id);
        Some((queue.device, key, device.entities.get_mut(&key)?))
    }

    /// Recomputes a queue's set, waiting time and meter after any change of it.
    pub(super) fn update_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(&id) else { return };
        let Some(device) = self.devices.get(&queue.device) else { return };
        let order = device.order_class(queue.priority);
        let run_set = self.run_set_of(id, queue, device, order);
        let (before, order_before) = (queue.run_set, queue.order);
        let now = self.now;
        let queue = self.queues.get_mut(&id).expect("looked up above");
        let device_id = queue.device;
        let device = self.devices.get_mut(&device_id).expect("looked up above");
        if (before, order_before) != (run_set, order) {
            device.run_order_mut(order_before).remove(id, before);
            device.run_order_mut(order).insert(id, run_set);
            if order_before != order && queue.preempt_awaited {
                device.run_order_mut(order_before).preempting -= 1;
                device.run_order_mut(order).preempting += 1;
            }
            (queue.run_set, queue.order) = (run_set, order);
            for class in [order_before, order] {
                let order = device.run_order_mut(class);
                order.busy_since = order.is_busy().then(|| order.busy_since.unwrap_or(now));
            }
        }
        // A suspended queue does not starve: it gets no boost.
        let waits = queue.active && queue.run_state == RunState::Off && !queue.suspended;
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
        let charge = match (queue.active, queue.run_state) {
            (false, _) => Charge::Idle,
            (true, RunState::On | RunState::Preempting) => Charge::Runs,
            (true, RunState::Off | RunState::Resuming) => Charge::Waits,
        };
        let waited = queue.meter.switch(now, charge);
        if queue.suspended {
            queue.meter.forget_wait();
        } else if let Some(waited) = waited {
            self.note_wait(id, waited);
        }
        if self.has_min_share {
            let share = self.share_state_of(id);
            self.count_share(id, share);
        }
        self.changed_devices.insert(device_id);
        self.set_starvation_timer(device_id);
    }

    /// The same for every queue of an entity.
    pub(super) fn update_entity(&mut self, device: DeviceId, key: EntityKey) {
        let queues: Vec<QueueId> = self
            .devices
            .get(&device)
            .and_then(|device| device.entities.get(&key))
            .map(|entity| entity.queues.iter().copied().collect())
            .unwrap_or_default();
        for queue in queues {
            self.update_queue(queue);
        }
    }

    /// The same for every queue of a device.
    pub(super) fn update_device(&mut self, device: DeviceId) {
        let keys: Vec<EntityKey> = self
            .devices
            .get(&device)
            .map(|device| device.entities.keys().copied().collect())
            .unwrap_or_default();
        for key in keys {
            self.update_entity(device, key);
        }
    }
}

/// From the run order to the next command.
impl Scheduler {
    /// The next command for a device; none if no change is needed.
    pub(super) fn next_command(&mut self, id: DeviceId) -> Option<Command> {
        if !core::mem::replace(&mut self.gangs_updated, true) {
            self.update_gangs();
        }
        if let Some(command) = self.next_setting(id) {
            return Some(command);
        }
        if self.devices.get(&id)?.capabilities.mechanism == Mechanism::ObserveOnly {
            return None;
        }
        if self.devices.get(&id)?.externally_scheduled {
            let classes = [Class::High, Class::Low];
            return classes
                .into_iter()
                .find_map(|class| self.next_when_externally_scheduled(id, class));
        }
        let classes = [Class::High, Class::Low];
        for class in classes {
            self.choose_turn(id, class);
            if let Some(command) = self.next_in_order(id, class) {
                return Some(command);
            }
        }
        if let Some(command) = self.next_hold_command(id) {
            return Some(command);
        }
        if !self.has_room_in_background(id) {
            return None;
        }
        classes.into_iter().find_map(|class| self.next_in_background(id, class))
    }

    /// The kernel schedules this device: preempts suspended queues and resumes all others.
    fn next_when_externally_scheduled(&mut self, id: DeviceId, class: Class) -> Option<Command> {
        let order = self.devices.get(&id)?.run_order(class);
        if let Some(queue) = order.must_resume() {
            return self.resume(queue);
        }
        if let Some(queue) = order.gang_blocked() {
            return self.preempt_with_gang(queue);
        }
        if let Some((_, queue)) = order.suspended(None) {
            return self.preempt(queue, Reason::Suspended);
        }
        let idle = order.off_idle(None).map(|(_, queue)| queue);
        let back = idle.or_else(|| Some(order.highest_off()?.queue.0))?;
        self.resume(back)
    }

    /// Preempts a queue whose gang cannot run.
    fn preempt_with_gang(&mut self, queue: QueueId) -> Option<Command> {
        let gang = self.queues.get(&queue)?.gang?;
        self.preempt(queue, Reason::GangBlocked { gang })
    }

    fn next_in_order(&mut self, id: DeviceId, class: Class) -> Option<Command> {
        let device = self.devices.get(&id)?;
        let order = device.run_order(class);
        if let Some(queue) = order.must_resume() {
            return self.resume(queue);
        }
        if let Some(queue) = order.gang_blocked() {
            return self.preempt_with_gang(queue);
        }
        let low_waits = device.run_order(Class::Low).is_busy();
        let is_low_turn = matches!(device.boost, Some(AgingBoost::LowClass(_)));
        if class == Class::High && is_low_turn && low_waits {
            return self.preempt(order.lowest_on()?.queue.0, Reason::LowTurn);
        }
        while let Some((loser, winner)) = self.devices.get(&id)?.run_order(class).next_to_preempt()
        {
            if !self.idle_time_passed(loser.queue.0) {
                let reason = self.preempt_reason(&loser, &winner);
                self.begin_blocked(id, class, winner.queue.0);
                return self.preempt(loser.queue.0, reason);
            }
        }
        let back = self.devices.get(&id)?.run_order(class).next_to_resume()?;
        self.resume(back.queue.0)
    }

    /// A queue is about to be preempted for `winner`, which waits for that if it is on.
    fn begin_blocked(&mut self, id: DeviceId, class: Class, winner: QueueId) {
        let is_on = |queue: &Queue| queue.run_state == RunState::On;
        let winner = self.queues.get(&winner).is_some_and(is_on).then_some((winner, self.now));
        if let Some(device) = self.devices.get_mut(&id) {
            let order = device.run_order_mut(class);
            if order.preempting == 0 {
                order.blocked = winner;
            }
        }
    }

    fn preempt_reason(&self, loser: &RunKey, winner: &RunKey) -> Reason {
        let (low, high) = (&loser.rank, &winner.rank);
        let by = winner.queue.0;
        if high.boosted && !low.boosted {
            return Reason::Starved { by };
        }
        if self.policy(false).decides_by_deadline(high, low) {
            return Reason::Deadline { by };
        }
        match (self.queues.get(&by), self.queues.get(&loser.queue.0)) {
            (Some(theirs), Some(own)) if low.level != high.level => {
                Reason::Outranked { by, theirs: theirs.priority, own: own.priority }
            }
            _ => Reason::TurnOver { next: by },
        }
    }

    pub(super) fn preempt(&mut self, id: QueueId, reason: Reason) -> Option<Command> {
        let now = self.now;
        let queue = self.queues.get_mut(&id)?;
        // PANIC: the sets from which a preempt is chosen contain only queues that are on.
        queue.run_state = queue.run_state.next(Transition::Preempt).expect("a queue that is on");
        queue.commanded_at = now;
        // A ring that is empty while its queue is off shows no gap between requests.
        queue.empty_since = None;
        queue.pause_idle_timer(now);
        let (device_id, order) = (queue.device, queue.order);
        let device: &mut Device = self.devices.get_mut(&device_id)?;
        // Queues that are suspended one after the other would keep all others from being resumed.
        if reason != Reason::Suspended {
            device.run_order_mut(order).preempting += 1;
            queue.preempt_awaited = true;
        }
        let level = device.capabilities.level;
        self.timers.set(Timer::Overdue(id), now + self.config.preempt_timeout);
        self.timers.stop(Timer::Idle(id));
        self.update_queue(id);
        self.decide(id, reason);
        Some(Command::Preempt { queue: id, level })
    }

    pub(super) fn resume(&mut self, id: QueueId) -> Option<Command> {
        let now = self.now;
        let queue = self.queues.get_mut(&id)?;
        // PANIC: the sets from which a resume is chosen contain only queues that are off.
        queue.run_state = queue.run_state.next(Transition::Resume).expect("a queue that is off");
        queue.commanded_at = now;
        let off = now.since(queue.off_since);
        debug_assert_eq!(queue.run_state, RunState::Resuming);
        self.update_queue(id);
        self.decide(id, Reason::Unblocked { off });
        Some(Command::Resume { queue: id })
    }
}
