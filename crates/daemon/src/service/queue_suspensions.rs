//! Queues that sessions keep off their devices.
//!
//! Each session has its own say: a queue is off as long as any of them wants it so. A say ends when
//! its session takes it back or is closed, and when its lease is over, so that nobody who died or
//! hangs keeps a queue off.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::id::QueueId;

/// One session's say about one queue, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueSuspension {
    /// Until then the queue may go on while it has work.
    pub(super) begins_ns: u64,
    /// From then on it may run again.
    pub(super) ends_ns: u64,
}

/// What all sessions say.
#[derive(Debug, Default)]
pub(super) struct QueueSuspensions {
    said: BTreeMap<(QueueId, u64), QueueSuspension>,
    /// What the scheduler was told.
    off: BTreeSet<QueueId>,
}

impl QueueSuspensions {
    pub(super) fn insert(&mut self, session: u64, queue: QueueId, suspension: QueueSuspension) {
        self.said.insert((queue, session), suspension);
    }

    /// Whether a session keeps a queue off, or will when its grace is over.
    pub(super) fn has(&self, session: u64, queue: QueueId) -> bool {
        self.said.contains_key(&(queue, session))
    }

    pub(super) fn remove(&mut self, session: u64, queue: QueueId) {
        self.said.remove(&(queue, session));
    }

    /// Sessions that have a say.
    pub(super) fn sessions(&self) -> BTreeSet<u64> {
        self.said.keys().map(|(_, session)| *session).collect()
    }

    /// A session is closed.
    pub(super) fn end_session(&mut self, session: u64) {
        self.said.retain(|(_, by), _| *by != session);
    }

    /// Ends what is said of those queues, by whomever.
    pub(super) fn end_queues(&mut self, mut is_meant: impl FnMut(QueueId) -> bool) {
        self.said.retain(|(queue, _), _| !is_meant(*queue));
    }

    /// Brings everything up to date: which queues are off from now on (true), and which no longer.
    /// Of a queue it is asked whether it has work; none means that it is gone.
    pub(super) fn settle(
        &mut self,
        now_ns: u64,
        has_work: impl Fn(QueueId) -> Option<bool>,
    ) -> Vec<(QueueId, bool)> {
        if self.said.is_empty() && self.off.is_empty() {
            return Vec::new();
        }
        let mut off = BTreeSet::new();
        self.said.retain(|(queue, _), suspension| {
            let Some(has_work) = has_work(*queue) else { return false };
            if !has_work {
                // It has finished what it had, so its grace is over.
                suspension.begins_ns = 0;
            }
            if suspension.ends_ns > now_ns && suspension.begins_ns <= now_ns {
                off.insert(*queue);
            }
            suspension.ends_ns > now_ns
        });
        self.off.retain(|queue| has_work(*queue).is_some());
        let gone = self.off.difference(&off).map(|queue| (*queue, false));
        let come = off.difference(&self.off).map(|queue| (*queue, true));
        let changes = gone.chain(come).collect();
        self.off = off;
        changes
    }

    /// When something changes by itself.
    pub(super) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let moments =
            self.said.values().flat_map(|suspension| [suspension.begins_ns, suspension.ends_ns]);
        moments.filter(|at| *at > now_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: QueueId = QueueId(7);

    fn suspension(begins_ns: u64, ends_ns: u64) -> QueueSuspension {
        QueueSuspension { begins_ns, ends_ns }
    }

    #[test]
    fn a_queue_is_off_until_the_last_session_lets_go() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.insert(2, QUEUE, suspension(0, 100));
        assert_eq!(suspensions.settle(1, |_| Some(true)), [(QUEUE, true)]);
        assert_eq!(suspensions.settle(2, |_| Some(true)), []);
        suspensions.end_session(1);
        assert_eq!(suspensions.settle(3, |_| Some(true)), []);
        assert!(!suspensions.has(1, QUEUE) && suspensions.has(2, QUEUE));
        suspensions.remove(2, QUEUE);
        assert_eq!(suspensions.settle(4, |_| Some(true)), [(QUEUE, false)]);
        assert_eq!(suspensions.next_ns(4), None);
    }

    #[test]
    fn a_lease_ends_by_itself() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.settle(1, |_| Some(true));
        assert_eq!(suspensions.next_ns(1), Some(100));
        assert_eq!(suspensions.settle(99, |_| Some(true)), []);
        assert_eq!(suspensions.settle(100, |_| Some(true)), [(QUEUE, false)]);
        assert!(!suspensions.has(1, QUEUE));
    }

    #[test]
    fn a_grace_lasts_until_its_end_or_until_the_work_is_done() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(50, 100));
        assert_eq!(suspensions.settle(1, |_| Some(true)), []);
        assert_eq!(suspensions.next_ns(1), Some(50));
        assert_eq!(suspensions.settle(50, |_| Some(true)), [(QUEUE, true)]);
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(50, 100));
        assert_eq!(suspensions.settle(2, |_| Some(false)), [(QUEUE, true)]);
        assert_eq!(suspensions.settle(3, |_| Some(true)), [], "more work is no way out");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.settle(1, |_| Some(true));
        assert_eq!(suspensions.settle(2, |_| None), []);
        assert!(!suspensions.has(1, QUEUE));
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.end_queues(|queue| queue == QUEUE);
        assert_eq!(suspensions.settle(3, |_| Some(true)), []);
    }
}
