//! Which queues have work, from readings of rings and from hints.
//!
//! A packet that was fetched is not finished, and most devices do not say when it is. A queue whose
//! ring has not moved for a while counts as idle, so that no other queue waits for it. Where queues
//! are preempted by command, a kernel may still run in it that delays a higher queue. So for some
//! time the queue is *possibly running*: it is preempted as if it had work.
//!
//! That time is short, because preempting a queue that is really idle is wasted; and it counts only
//! while the queue is on, because a saved kernel makes no progress.

use alloc::vec::Vec;

use super::Scheduler;
use super::state::Queue;
use crate::backend::Mechanism;
use crate::decision::Reason;
use crate::event::EventError;
use crate::id::{QueueId, TaskId};
use crate::priority::Priority;
use crate::queue::RunState;
use crate::ring::RingView;
use crate::time::{Duration, Instant};
use crate::timer::Timer;

/// How long a queue with an empty ring counts as possibly running; longer kernels can delay a
/// higher queue.
const POSSIBLY_RUNNING: Duration = Duration::from_millis(100);

/// Limit for learnt gaps: a minute, so that one long pause is forgotten after a few short ones.
const GAP_MAX: u64 = 60_000_000_000;

impl Scheduler {
    pub(super) fn observe(&mut self, id: QueueId, ring: RingView) -> Result<(), EventError> {
        let now = self.now;
        let queue = self.queue_mut(id)?;
        let is_at_rest = queue.run_state == RunState::On && !queue.active && !ring.has_work();
        if is_at_rest && queue.ring == ring {
            // The most frequent case.
            return Ok(());
        }
        let moved = (ring.put, ring.get) != (queue.ring.put, queue.ring.get);
        let was_done = core::mem::replace(&mut queue.ring, ring).is_done();
        // Whether idleness is certain matters only for a queue without work.
        if !queue.active && was_done != ring.is_done() {
            self.update_queue(id);
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
        // The empty ring of a queue that is off proves nothing, because its kernel may be saved;
        // only the device knows.
        if queue.run_state == RunState::Off {
            self.update_off_queue(id);
            return Ok(());
        }
        if queue.run_state != RunState::On {
            return Ok(());
        }
        if moved {
            // Work was submitted and fetched between two readings.
            queue.empty_since = Some(now);
            self.start_idle_timer(id);
            self.set_active(id, true);
        }
        self.wait_for_idle(id, moved);
        Ok(())
    }

    /// The ring of a queue that is off is empty. In the low class of a device with slices, queues
    /// are preempted to find out whether they are idle; those that are may run again.
    fn update_off_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(&id) else { return };
        let mechanism = self.devices.get(&queue.device).map(|d| d.capabilities.mechanism);
        let hinted = self.tasks.get(&queue.task).is_some_and(|task| task.hinted);
        if mechanism == Some(Mechanism::Slice) && !hinted {
            self.set_active(id, !queue.ring.is_done());
        }
    }

    /// The ring of a queue that is on is empty: sets the time at which the queue counts as idle.
    fn wait_for_idle(&mut self, id: QueueId, restart: bool) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if !queue.active || (!restart && self.timers.end_of(Timer::Idle(id)).is_some()) {
            return;
        }
        let Some(device) = self.devices.get(&queue.device) else { return };
        let since = *queue.empty_since.get_or_insert(now);
        if self.tasks.get(&queue.task).is_some_and(|task| task.hinted) {
            return;
        }
        let certain = queue.ring.is_done() || device.capabilities.quiet.is_zero();
        // Rings are read once per interval, so a shorter empty time cannot be observed.
        let quiet = device.capabilities.quiet.max(self.config.interval);
        let quiet = if certain { Duration::ZERO } else { quiet };
        // Giving the device to another queue costs a round trip, and taking it back another one.
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
            self.decide(id, Reason::Anticipate { until });
        }
        self.timers.set(Timer::Idle(id), until);
    }

    /// Sets whether a queue has work.
    pub(super) fn set_active(&mut self, id: QueueId, active: bool) {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.active == active {
            return;
        }
        queue.active = active;
        queue.worked_at = Some(now);
        let (task_id, device_id, order) = (queue.task, queue.device, queue.order);
        let attr = self.tasks.get(&task_id).map(|task| task.attr);
        let deadline = attr.and_then(|attr| attr.deadline);
        let Some(device) = self.devices.get_mut(&device_id) else { return };
        let key = device.entity_key(task_id, id);
        let class = attr.map_or(Priority::DEFAULT, |attr| attr.priority).class();
        let virtual_now = device.run_order(order).virtual_now[class as usize];
        let Some(entity) = device.entities.get_mut(&key) else { return };
        if active {
            entity.active += 1;
            if entity.active == 1 {
                // An entity that was idle gets no credit for that time.
                entity.virtual_time = entity.virtual_time.max(virtual_now);
                entity.deadline = entity.deadline.or_else(|| deadline.map(|time| now + time));
            }
        } else {
            entity.active -= 1;
            self.timers.stop(Timer::Idle(id));
            if entity.active == 0 {
                entity.deadline = None;
                self.leave_turn(device_id, order, key, true);
            }
        }
        self.update_queue(id);
    }

    /// Gives a request that missed its deadline by another one a new deadline, so that it does not
    /// rank first for ever.
    fn renew_deadline(&mut self, id: QueueId) {
        let now = self.now;
        let Some(task) = self.queues.get(&id).and_then(|queue| self.tasks.get(&queue.task)) else {
            return;
        };
        let Some(relative) = task.attr.deadline else { return };
        let Some((device, key, entity)) = self.entity_of(id) else { return };
        if entity.deadline.is_some_and(|deadline| deadline + relative < now) {
            entity.deadline = Some(now + relative);
            self.update_entity(device, key);
        }
    }

    /// Replaces the deadline of the current request by that of the task's attributes.
    pub(super) fn restart_deadline(&mut self, id: QueueId) {
        let now = self.now;
        let Some(queue) = self.queues.get(&id) else { return };
        let relative = self.tasks.get(&queue.task).and_then(|task| task.attr.deadline);
        let Some((device, key, entity)) = self.entity_of(id) else { return };
        let deadline = relative.filter(|_| entity.active > 0).map(|relative| now + relative);
        if entity.deadline != deadline {
            entity.deadline = deadline;
            self.update_entity(device, key);
        }
    }

    pub(super) fn begin_hint(
        &mut self,
        id: TaskId,
        deadline: Option<Duration>,
    ) -> Result<(), EventError> {
        let task = self.tasks.get_mut(&id).ok_or(EventError::UnknownTask(id))?;
        task.hinted = true;
        let queues: Vec<QueueId> = task.queues.iter().copied().collect();
        self.timers.set(Timer::HintOver(id), self.now + self.config.hint_max);
        let deadline = deadline.map(|deadline| self.now + deadline);
        for queue in queues {
            self.timers.stop(Timer::Idle(queue));
            self.set_active(queue, true);
            if deadline.is_some()
                && let Some((device, key, entity)) = self.entity_of(queue)
            {
                entity.deadline = deadline;
                self.update_entity(device, key);
            }
        }
        Ok(())
    }

    pub(super) fn end_hint(&mut self, id: TaskId) -> Result<(), EventError> {
        if !self.tasks.contains_key(&id) {
            return Err(EventError::UnknownTask(id));
        }
        self.drop_hint(id);
        Ok(())
    }

    pub(super) fn drop_hint(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let hinted = core::mem::take(&mut task.hinted);
        let queues: Vec<QueueId> = task.queues.iter().copied().collect();
        self.timers.stop(Timer::HintOver(id));
        for id in queues {
            if hinted {
                self.restart_deadline(id);
            }
            let is_on_and_empty =
                |queue: &Queue| queue.run_state == RunState::On && !queue.ring.has_work();
            if self.queues.get(&id).is_some_and(is_on_and_empty) {
                self.wait_for_idle(id, true);
            }
        }
    }
}

impl Queue {
    /// Updates the expected gap between requests: a moving average that weighs the last gap by a
    /// quarter.
    fn learn_gap(&mut self, gap: Duration) {
        let learnt = self.gap.map_or(gap, |old| {
            Duration::from_nanos(
                (old.as_nanos().saturating_mul(3) + gap.as_nanos().min(GAP_MAX)) / 4,
            )
        });
        self.gap = Some(learnt);
    }

    /// Whether the queue is preempted as if it had work. Members of gangs are assumed to be idle:
    /// preempting one of them for a moment would preempt them all.
    pub(super) fn is_possibly_running(&self) -> bool {
        !self.possibly_running_for.is_zero() && !self.ring.is_done() && self.gang.is_none()
    }

    /// The queue is being preempted.
    pub(super) fn pause_idle_timer(&mut self, now: Instant) {
        if let Some(assumed_idle_at) = self.assumed_idle_at.take() {
            self.possibly_running_for = assumed_idle_at.since(now);
        }
    }

    /// The queue is on again.
    pub(super) fn resume_idle_timer(&mut self, now: Instant) {
        let remaining = self.possibly_running_for;
        self.assumed_idle_at = (!remaining.is_zero()).then(|| now + remaining);
    }
}

/// Queues that are possibly running.
impl Scheduler {
    /// Work was fetched, and the device may not report its end.
    fn start_idle_timer(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let Some(device) = self.devices.get(&queue.device) else { return };
        // Where an empty ring means that all work is done, there is nothing to assume.
        let hides = queue.ring.running.is_none() && !device.capabilities.quiet.is_zero();
        if hides && device.capabilities.mechanism == Mechanism::Stop {
            queue.possibly_running_for = POSSIBLY_RUNNING;
            queue.assumed_idle_at = Some(self.now + POSSIBLY_RUNNING);
        }
    }

    /// Whether a queue that would be preempted was on for long enough to count as idle. There is no
    /// timer, because the answer matters only when a higher queue has work.
    pub(super) fn idle_time_passed(&mut self, id: QueueId) -> bool {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(&id) else { return false };
        if queue.active || queue.assumed_idle_at.is_none_or(|at| at > now) {
            return false;
        }
        queue.assumed_idle_at = None;
        queue.possibly_running_for = Duration::ZERO;
        self.update_queue(id);
        true
    }
}
