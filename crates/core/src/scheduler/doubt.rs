//! What may run in a queue whose ring looks empty.
//!
//! A packet that was fetched is not finished, and most devices do not say when it is. A queue whose
//! ring has not moved for a while counts as idle, so that it keeps nobody off. That does not mean
//! that it is not in anybody's way: where queues are stopped by command, a more important one would
//! wait for the end of a long kernel that nobody sees. So for some time such a queue has to make
//! way as if it were seen to run.
//!
//! The time is short, because a queue that is idle indeed is stopped for nothing; and it is time in
//! which the queue was on, because a kernel that was saved does not go on meanwhile.

use super::Scheduler;
use super::state::Queue;
use crate::capability::Mechanism;
use crate::id::QueueId;
use crate::time::Duration;
use crate::timer::Timer;

/// Kernels longer than this may be in the way unseen.
const DOUBT: Duration = Duration::from_millis(100);

impl Queue {
    /// Whether it has to make way although it looks idle. Members of gangs are believed: to stop
    /// one of them for a moment would stop them all.
    pub(super) fn may_run_unseen(&self) -> bool {
        !self.doubt.is_zero() && !self.ring.is_done() && self.gang.is_none()
    }
}

impl Scheduler {
    /// Something was fetched, and nobody will say when it is done.
    pub(super) fn begin_doubt(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let Some(device) = self.devices.get(&queue.device) else { return };
        // Where an empty ring says that everything is done there is nothing to doubt.
        let hides = queue.ring.running.is_none() && !device.capabilities.quiet.is_zero();
        if hides && device.capabilities.mechanism == Mechanism::Stop {
            queue.doubt = DOUBT;
            let sure_at = self.now + DOUBT;
            // Busy rings move at every reading; their timer is put off when it fires.
            if queue.sure_at.replace(sure_at).is_none() {
                self.timers.set(Timer::Sure(id), sure_at);
            }
        }
    }

    /// The queue goes off.
    pub(super) fn pause_doubt(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if let Some(sure_at) = queue.sure_at.take() {
            queue.doubt = sure_at.since(self.now);
            self.timers.stop(Timer::Sure(id));
        }
    }

    /// The queue is on again.
    pub(super) fn go_on_doubting(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if !queue.doubt.is_zero() {
            let sure_at = self.now + queue.doubt;
            queue.sure_at = Some(sure_at);
            self.timers.set(Timer::Sure(id), sure_at);
        }
    }

    /// It was on for long enough, unless there was another sign meanwhile.
    pub(super) fn end_doubt(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        match queue.sure_at {
            Some(sure_at) if sure_at > self.now => self.timers.set(Timer::Sure(id), sure_at),
            _ => {
                queue.sure_at = None;
                queue.doubt = Duration::ZERO;
                self.reseat(id);
            }
        }
    }
}
