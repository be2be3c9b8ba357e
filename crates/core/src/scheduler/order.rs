//! The order on each device, and the next command that follows from it.
//!
//! A [`Lane`] is one order of precedence on one device. A device that is controlled by stopping
//! queues has one lane. A device with time slices has two, one for each class: the hardware itself
//! prefers the high class, so the lanes are decided apart. In a lane, the highest rank runs and
//! every queue below it is off.
//!
//! `reseat` puts a queue where it belongs after anything about it changed; `settle` compares the
//! lanes of a device with what is on, and gives the next command.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::state::{Device, Grant, Queue};
use super::{Edge, Scheduler, Standing};
use crate::account::Charge;
use crate::capability::Mechanism;
use crate::command::Command;
use crate::decision::Reason;
use crate::id::{DeviceId, QueueId, TaskId};
use crate::policy::{self, Policy, Rank, Seat};
use crate::priority::Class;
use crate::time::Instant;
use crate::timer::Timer;

/// Whose turn it is: a task, or where only one queue may run, one queue of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SeatKey {
    pub(crate) task: TaskId,
    pub(crate) queue: Option<QueueId>,
}

/// A queue's place in a lane. Greater comes first; among equals the older queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) rank: Rank,
    pub(crate) seat: Reverse<SeatKey>,
    pub(crate) queue: Reverse<QueueId>,
}

impl Place {
    /// Whether `self` has to make way for `top`. Where only one seat may run, a tie is not
    /// enough to run together.
    pub(crate) fn yields_to(&self, top: &Self, exclusive: bool) -> bool {
        if exclusive { (self.rank, self.seat) < (top.rank, top.seat) } else { self.rank < top.rank }
    }
}

/// Which set of a lane a queue is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Position {
    /// Not in the lane's order: it has no work, or it is between two places.
    #[default]
    Out,
    /// Runs, or may.
    On(Place),
    /// Off and wants to run.
    Off(Place),
    /// On its way back.
    Resuming(Place),
    /// Runs and must go whatever its rank, because its gang cannot run or its task is suspended.
    Evict,
    /// May be off although it should be on, and must be told to run whatever its rank.
    Restore,
    /// May run and looks idle, which is not certain, where only one may run.
    Idle,
    /// May run and looks idle, but what it has fetched may still run: it is preempted like those
    /// that do run, and no queue is kept off for it.
    Unseen(Place),
    /// Off and done: it may as well be on.
    Parked,
}

/// The queues with work on one lane.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    on: BTreeSet<Place>,
    off: BTreeSet<Place>,
    resuming: BTreeSet<Place>,
    evict: BTreeSet<QueueId>,
    restore: BTreeSet<QueueId>,
    idle: BTreeSet<QueueId>,
    unseen: BTreeSet<Place>,
    parked: BTreeSet<QueueId>,
    /// Preempts in flight.
    pub(crate) preempting: u32,
    /// Whose turn it is: one seat, or several of one gang.
    pub(crate) holders: BTreeSet<SeatKey>,
    /// The virtual time of the last holder of each class: where newcomers start.
    pub(crate) virtual_now: [u64; 2],
    /// Whether only one seat may be on at a time.
    pub(crate) exclusive: bool,
    /// Since when there has been work without a break.
    pub(crate) busy_since: Option<Instant>,
}

impl Lane {
    pub(crate) fn insert(&mut self, queue: QueueId, position: Position) {
        let fresh = match position {
            Position::Out => true,
            Position::On(place) => self.on.insert(place),
            Position::Off(place) => self.off.insert(place),
            Position::Resuming(place) => self.resuming.insert(place),
            Position::Evict => self.evict.insert(queue),
            Position::Restore => self.restore.insert(queue),
            Position::Idle => self.idle.insert(queue),
            Position::Unseen(place) => self.unseen.insert(place),
            Position::Parked => self.parked.insert(queue),
        };
        assert!(fresh, "{queue} is in the lane already");
    }

    pub(crate) fn remove(&mut self, queue: QueueId, position: Position) {
        let known = match position {
            Position::Out => true,
            Position::On(place) => self.on.remove(&place),
            Position::Off(place) => self.off.remove(&place),
            Position::Resuming(place) => self.resuming.remove(&place),
            Position::Evict => self.evict.remove(&queue),
            Position::Restore => self.restore.remove(&queue),
            Position::Idle => self.idle.remove(&queue),
            Position::Unseen(place) => self.unseen.remove(&place),
            Position::Parked => self.parked.remove(&queue),
        };
        assert!(known, "{queue} is not where it should be in the lane");
    }

    /// The one that should run before all others.
    pub(crate) fn top(&self) -> Option<Place> {
        let tops = [self.on.last(), self.off.last(), self.resuming.last()];
        tops.into_iter().flatten().max().copied()
    }

    /// The first in the order of those that `wanted` accepts.
    pub(crate) fn first_where(&self, wanted: impl Fn(&Place) -> bool) -> Option<Place> {
        let sets = [&self.on, &self.off, &self.resuming];
        let firsts = sets.map(|set| set.iter().rev().find(|place| wanted(place)));
        firsts.into_iter().flatten().max().copied()
    }

    /// One that must go whatever its rank.
    pub(crate) fn evicted(&self) -> Option<QueueId> {
        self.evict.first().copied()
    }

    /// One of which it is unknown whether it runs.
    pub(crate) fn doubtful(&self) -> Option<QueueId> {
        self.restore.first().copied()
    }

    /// One that is off and has nothing to do.
    pub(crate) fn parked(&self) -> Option<QueueId> {
        self.parked.first().copied()
    }

    /// One that looks idle and may not be, while another queue has work and only one may run.
    pub(crate) fn in_the_way(&self) -> Option<QueueId> {
        self.idle.first().copied().filter(|_| self.exclusive && self.is_busy())
    }

    /// The least important of those that run.
    pub(crate) fn lowest_on(&self) -> Option<Place> {
        self.on.first().copied()
    }

    /// The most important of those that are off.
    pub(crate) fn highest_off(&self) -> Option<Place> {
        self.off.last().copied()
    }

    /// The least important of those that run, or may run unseen, if it has to make way for the top.
    pub(crate) fn loser(&self) -> Option<(Place, Place)> {
        let top = self.top()?;
        let low = self.on.first().filter(|low| low.yields_to(&top, self.exclusive));
        // Among equals that take turns it is not worth a switch to find out.
        let coarse = |place: &Place| (place.rank.boosted, place.rank.level);
        let unseen = || self.unseen.first().filter(|low| coarse(low) < coarse(&top));
        low.or_else(unseen).map(|low| (*low, top))
    }

    /// The most important of those that are off, if it may come back.
    pub(crate) fn returner(&self) -> Option<Place> {
        if self.preempting > 0 || self.loser().is_some() || self.in_the_way().is_some() {
            return None;
        }
        let top = self.top()?;
        let back = self.off.last()?;
        (!back.yields_to(&top, self.exclusive)).then_some(*back)
    }

    /// Whether any queue in the order has work.
    pub(crate) fn is_busy(&self) -> bool {
        !(self.on.is_empty() && self.off.is_empty() && self.resuming.is_empty())
    }

    /// How many queues there are in the order, for checks.
    pub(crate) fn len(&self) -> usize {
        let placed = self.on.len() + self.off.len() + self.resuming.len();
        let told = self.evict.len() + self.restore.len() + self.parked.len();
        placed + told + self.idle.len() + self.unseen.len()
    }
}

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

    /// The same for every queue of a seat.
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

    /// The same for every queue of a device.
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

/// From the order to the next command.
impl Scheduler {
    /// The next command for a device, or none if it is as it should be.
    pub(super) fn settle(&mut self, id: DeviceId) -> Option<Command> {
        if !core::mem::replace(&mut self.judged, true) {
            self.judge_gangs();
        }
        if let Some(command) = self.tune(id) {
            return Some(command);
        }
        if self.devices.get(&id)?.capabilities.mechanism == Mechanism::Watch {
            return None;
        }
        if self.devices.get(&id)?.yielded {
            let classes = [Class::High, Class::Low];
            return classes.into_iter().find_map(|class| self.settle_yielded(id, class));
        }
        for class in [Class::High, Class::Low] {
            self.elect(id, class);
            if let Some(command) = self.settle_lane(id, class) {
                return Some(command);
            }
        }
        self.tune_hold(id)
    }

    /// Where the kernel decides: suspended queues are preempted, all others are resumed.
    fn settle_yielded(&mut self, id: DeviceId, class: Class) -> Option<Command> {
        let lane = self.devices.get(&id)?.lane(class);
        if let Some(queue) = lane.doubtful() {
            return self.resume(queue);
        }
        if let Some(queue) = lane.evicted() {
            return self.preempt(queue, self.reason_to_evict(queue)?);
        }
        let back = lane.parked().or_else(|| Some(lane.highest_off()?.queue.0))?;
        self.resume(back)
    }

    fn reason_to_evict(&self, queue: QueueId) -> Option<Reason> {
        let evicted = self.queues.get(&queue)?;
        Some(match evicted.gang {
            Some(gang) if !evicted.suspended => Reason::GangBlocked { gang },
            Some(_) | None => Reason::Suspended,
        })
    }

    fn settle_lane(&mut self, id: DeviceId, class: Class) -> Option<Command> {
        let device = self.devices.get(&id)?;
        let lane = device.lane(class);
        if let Some(queue) = lane.doubtful() {
            return self.resume(queue);
        }
        if let Some(queue) = lane.evicted() {
            return self.preempt(queue, self.reason_to_evict(queue)?);
        }
        if let Some(queue) = lane.parked() {
            return self.resume(queue);
        }
        let low_waits = device.lane(Class::Low).is_busy();
        if class == Class::High && device.grant == Some(Grant::LowClass) && low_waits {
            return self.preempt(lane.lowest_on()?.queue.0, Reason::LowTurn);
        }
        if let Some(queue) = lane.in_the_way() {
            return self.preempt(queue, Reason::InDoubt);
        }
        while let Some((loser, winner)) = self.devices.get(&id)?.lane(class).loser() {
            if !self.ends_doubt(loser.queue.0) {
                let reason = self.reason_to_go(&loser, &winner);
                return self.preempt(loser.queue.0, reason);
            }
        }
        let back = self.devices.get(&id)?.lane(class).returner()?;
        self.resume(back.queue.0)
    }

    fn reason_to_go(&self, loser: &Place, winner: &Place) -> Reason {
        let (low, high) = (&loser.rank, &winner.rank);
        let by = winner.queue.0;
        if high.boosted && !low.boosted {
            return Reason::Starved { by };
        }
        if policy::deadline::decides(high, low) {
            return Reason::Deadline { by };
        }
        match (self.queues.get(&by), self.queues.get(&loser.queue.0)) {
            (Some(theirs), Some(own)) if low.level != high.level => {
                Reason::Outranked { by, theirs: theirs.priority, own: own.priority }
            }
            _ => Reason::TurnOver { next: by },
        }
    }

    fn preempt(&mut self, id: QueueId, reason: Reason) -> Option<Command> {
        let now = self.now;
        let queue = self.queues.get_mut(&id)?;
        // PANIC: only queues that are on are in the sets a preempt is chosen from.
        queue.standing = queue.standing.next(Edge::Preempt).expect("a queue that is on");
        queue.commanded_at = now;
        // A ring that is empty while its queue is off says nothing about the client's gaps.
        queue.empty_since = None;
        queue.pause_doubt(now);
        let (device_id, lane) = (queue.device, queue.lane);
        let device: &mut Device = self.devices.get_mut(&device_id)?;
        device.lane_mut(lane).preempting += 1;
        queue.awaited = true;
        let level = device.capabilities.level;
        self.timers.set(Timer::Overdue(id), now + self.config.preempt_timeout);
        self.timers.stop(Timer::Idle(id));
        self.reseat(id);
        self.decide(id, reason);
        Some(Command::Preempt { queue: id, level })
    }

    fn resume(&mut self, id: QueueId) -> Option<Command> {
        let now = self.now;
        let queue = self.queues.get_mut(&id)?;
        // PANIC: only queues that are off are in the set a resume is chosen from.
        queue.standing = queue.standing.next(Edge::Resume).expect("a queue that is off");
        queue.commanded_at = now;
        let off = now.since(queue.off_since);
        debug_assert_eq!(queue.standing, Standing::Resuming);
        self.reseat(id);
        self.decide(id, Reason::Clear { off });
        Some(Command::Resume { queue: id })
    }
}
