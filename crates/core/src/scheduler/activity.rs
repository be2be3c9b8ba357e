//! Who has work: from readings of rings, and from hints.

use super::Scheduler;
use crate::capability::Mechanism;
use crate::decision::Reason;
use crate::event::EventError;
use crate::id::{QueueId, TaskId};
use crate::priority::Priority;
use crate::queue::Standing;
use crate::ring::RingView;
use crate::time::{Duration, Instant};
use crate::timer::Timer;

impl Scheduler {
    pub(super) fn observe(&mut self, id: QueueId, ring: RingView) -> Result<(), EventError> {
        let now = self.now;
        let queue = self.queue_mut(id)?;
        let is_at_rest = queue.standing == Standing::On && !queue.active && !ring.has_work();
        if is_at_rest && queue.ring == ring {
            // Most rings show this, most of the time.
            return Ok(());
        }
        let moved = (ring.put, ring.get) != (queue.ring.put, queue.ring.get);
        let was_done = core::mem::replace(&mut queue.ring, ring).is_done();
        // Only of a queue without work does it matter whether that is certain.
        if !queue.active && was_done != ring.is_done() {
            self.reseat(id);
        }
        let queue = self.queue_mut(id)?;
        if ring.has_work() {
            if let Some(since) = queue.empty_since.take() {
                queue.learn_gap(now.since(since));
            }
            self.timers.stop(Timer::Idle(id));
            self.set_active(id, true);
            self.renew_deadline(id);
            return Ok(());
        }
        // A queue that is off cannot show that it is done, because its kernel may be saved
        // half-way; only its device can.
        if queue.standing == Standing::Off {
            self.judge_off(id);
            return Ok(());
        }
        if queue.standing != Standing::On {
            return Ok(());
        }
        if moved {
            // Work came and was fetched between two readings.
            queue.empty_since = Some(now);
            self.begin_doubt(id);
            self.set_active(id, true);
        }
        self.wait_for_idle(id, moved);
        Ok(())
    }

    /// The ring of a queue that is off looks empty. Where only one of several may run, queues are
    /// stopped that look idle, to find out whether they are; those that are may run again.
    fn judge_off(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let mechanism = self.devices.get(&queue.device).map(|d| d.capabilities.mechanism);
        let hinted = self.tasks.get(&queue.task).is_some_and(|task| task.hinted);
        if mechanism == Some(Mechanism::Slice) && !hinted {
            self.set_active(id, !queue.ring.is_done());
        }
    }

    /// The ring of a queue that is on looks empty: when does it count as idle?
    fn wait_for_idle(&mut self, id: QueueId, restart: bool) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        if !queue.active || (!restart && self.timers.end_of(Timer::Idle(id)).is_some()) {
            return;
        }
        let Some(device) = self.devices.get(&queue.device) else {
            return;
        };
        let since = *queue.empty_since.get_or_insert(now);
        if self.tasks.get(&queue.task).is_some_and(|task| task.hinted) {
            return;
        }
        let told = queue.ring.is_done() || device.capabilities.quiet.is_zero();
        // A ring that is read once in an interval cannot have been quiet for less than that.
        let quiet = device.capabilities.quiet.max(self.config.interval);
        let quiet = if told { Duration::ZERO } else { quiet };
        // Giving the device away costs a round trip, and another one when it is wanted back.
        let pays_after = device.capabilities.round_trip().times(2);
        let stops = device.capabilities.mechanism == Mechanism::Stop;
        let linger = match queue.gap {
            Some(gap) if stops && gap <= pays_after => gap.times(2).min(self.config.linger_max),
            Some(_) | None => Duration::ZERO,
        };
        let until = since + quiet + linger;
        if until <= now {
            self.set_active(id, false);
            return;
        }
        if !linger.is_zero() && !device.waiting.is_empty() {
            self.decide(id, Reason::Linger { until });
        }
        self.timers.set(Timer::Idle(id), until);
    }

    /// A queue begins or ceases to have work.
    pub(super) fn set_active(&mut self, id: QueueId, active: bool) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        if queue.active == active {
            return;
        }
        queue.active = active;
        let (task_id, device_id, lane) = (queue.task, queue.device, queue.lane);
        let traits = self.tasks.get(&task_id).map(|task| task.traits);
        let deadline = traits.and_then(|traits| traits.deadline);
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        let key = device.seat_key(task_id, id);
        let class = traits.map_or(Priority::DEFAULT, |traits| traits.priority).class();
        let virtual_now = device.lane(lane).virtual_now[class as usize];
        let Some(seat) = device.seats.get_mut(&key) else {
            return;
        };
        if active {
            seat.active += 1;
            if seat.active == 1 {
                // Who slept does not come back with credit.
                seat.virtual_time = seat.virtual_time.max(virtual_now);
                seat.deadline = seat.deadline.or_else(|| deadline.map(|deadline| now + deadline));
            }
        } else {
            seat.active -= 1;
            self.timers.stop(Timer::Idle(id));
            if seat.active == 0 {
                seat.deadline = None;
                self.leave_turn(device_id, lane, key, true);
            }
        }
        self.reseat(id);
    }

    /// A request that missed its deadline does not push others aside for ever.
    fn renew_deadline(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let Some(task) = self.tasks.get(&queue.task) else {
            return;
        };
        let (device_id, task_id) = (queue.device, queue.task);
        let Some(relative) = task.traits.deadline else {
            return;
        };
        let now = self.now;
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        let key = device.seat_key(task_id, id);
        let Some(seat) = device.seats.get_mut(&key) else {
            return;
        };
        if seat.deadline.is_some_and(|deadline| deadline + relative < now) {
            seat.deadline = Some(now + relative);
            self.reseat_all(device_id, key);
        }
    }

    /// Whatever was said about the current request is no longer true; the task's traits are.
    pub(super) fn restart_deadline(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let (device_id, task_id) = (queue.device, queue.task);
        let traits = self.tasks.get(&task_id).map(|task| task.traits);
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        let key = device.seat_key(task_id, id);
        let Some(seat) = device.seats.get_mut(&key) else {
            return;
        };
        let relative = traits.and_then(|traits| traits.deadline);
        let deadline = relative.filter(|_| seat.active > 0).map(|relative| self.now + relative);
        if seat.deadline != deadline {
            seat.deadline = deadline;
            self.reseat_all(device_id, key);
        }
    }

    pub(super) fn begin_hint(
        &mut self,
        id: TaskId,
        deadline: Option<Duration>,
    ) -> Result<(), EventError> {
        let task = self.tasks.get_mut(&id).ok_or(EventError::UnknownTask(id))?;
        task.hinted = true;
        let queues: alloc::vec::Vec<QueueId> = task.queues.iter().copied().collect();
        self.timers.set(Timer::HintOver(id), self.now + self.config.hint_max);
        let deadline = deadline.map(|deadline| self.now + deadline);
        for queue in queues {
            self.timers.stop(Timer::Idle(queue));
            self.set_active(queue, true);
            self.announce_deadline(queue, deadline);
        }
        Ok(())
    }

    fn announce_deadline(&mut self, id: QueueId, deadline: Option<Instant>) {
        let Some(queue) = self.queues.get(&id) else {
            return;
        };
        let (device_id, task) = (queue.device, queue.task);
        let Some(device) = self.devices.get_mut(&device_id) else {
            return;
        };
        let key = device.seat_key(task, id);
        if let Some(deadline) = deadline
            && let Some(seat) = device.seats.get_mut(&key)
        {
            seat.deadline = Some(deadline);
            self.reseat_all(device_id, key);
        }
    }

    pub(super) fn end_hint(&mut self, id: TaskId) -> Result<(), EventError> {
        if !self.tasks.contains_key(&id) {
            return Err(EventError::UnknownTask(id));
        }
        self.drop_hint(id);
        Ok(())
    }

    pub(super) fn drop_hint(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        let hinted = core::mem::take(&mut task.hinted);
        let queues: alloc::vec::Vec<QueueId> = task.queues.iter().copied().collect();
        self.timers.stop(Timer::HintOver(id));
        for queue in queues {
            if hinted {
                self.restart_deadline(queue);
            }
            let off = self.queues.get(&queue).is_none_or(|queue| queue.standing != Standing::On);
            let idle = self.queues.get(&queue).is_none_or(|queue| !queue.ring.has_work());
            if !off && idle {
                self.wait_for_idle(queue, true);
            }
        }
    }
}

impl super::state::Queue {
    /// Remembers how long the ring stayed empty, the recent past more than the distant one.
    fn learn_gap(&mut self, gap: Duration) {
        let learnt = self.gap.map_or(gap, |old| {
            Duration::from_nanos(
                (old.as_nanos().saturating_mul(3) + gap.as_nanos().min(GAP_MAX)) / 4,
            )
        });
        self.gap = Some(learnt);
    }
}

/// Gaps longer than a minute all mean the same.
const GAP_MAX: u64 = 60_000_000_000;
