//! From the order to the next command.

use super::Scheduler;
use super::state::{Device, Grant};
use crate::capability::Mechanism;
use crate::command::Command;
use crate::decision::Reason;
use crate::id::{DeviceId, QueueId};
use crate::lane::Place;
use crate::policy;
use crate::priority::Class;
use crate::queue::{Edge, Standing};
use crate::timer::Timer;

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

    /// Where somebody else decides: who is suspended goes, everybody else is let on.
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
