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
use crate::time::{Duration, Instant};

/// Kernels longer than this may be in the way unseen.
const DOUBT: Duration = Duration::from_millis(100);

impl Queue {
    /// Whether it has to make way although it looks idle. Members of gangs are believed: to stop
    /// one of them for a moment would stop them all.
    pub(super) fn may_run_unseen(&self) -> bool {
        !self.doubt.is_zero() && !self.ring.is_done() && self.gang.is_none()
    }

    /// It goes off.
    pub(super) fn pause_doubt(&mut self, now: Instant) {
        if let Some(sure_at) = self.sure_at.take() {
            self.doubt = sure_at.since(now);
        }
    }

    /// It is on again.
    pub(super) fn go_on_doubting(&mut self, now: Instant) {
        self.sure_at = (!self.doubt.is_zero()).then(|| now + self.doubt);
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
            queue.sure_at = Some(self.now + DOUBT);
        }
    }

    /// Whether a queue that would have to make way was on for long enough: nothing runs in it. No
    /// timer says so, because nobody asks before it is in somebody's way.
    pub(super) fn ends_doubt(&mut self, id: QueueId) -> bool {
        let now = self.now;
        let Some(queue) = self.queues.get_mut(&id) else { return false };
        if queue.active || queue.sure_at.is_none_or(|sure_at| sure_at > now) {
            return false;
        }
        queue.sure_at = None;
        queue.doubt = Duration::ZERO;
        self.reseat(id);
        true
    }
}
