//! Queues that sessions keep off their devices.
//!
//! Each session has its own say: a queue is off as long as any of them wants it so. A say ends when
//! its session takes it back or is closed, and when its lease is over, so that nobody who died or
//! hangs keeps a queue off.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::id::QueueId;

/// One session's say about one queue, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueSuspension {
    /// Until then the queue may go on while it has work.
    pub(crate) begins_ns: u64,
    /// From then on it may run again.
    pub(crate) ends_ns: u64,
    /// The running kernel ends first, however long it takes, and no other begins.
    pub(crate) is_soft: bool,
}

/// What all sessions say.
#[derive(Debug, Default)]
pub(crate) struct QueueSuspensions {
    said: BTreeMap<(QueueId, u64), QueueSuspension>,
    /// What the scheduler was told.
    off: BTreeSet<QueueId>,
    /// What the devices were told to fetch nothing for.
    parked: BTreeSet<QueueId>,
}

/// What is asked of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Whether it has work.
    pub(crate) has_work: bool,
    /// Whether its device fetches nothing for it any more, and what was fetched has ended.
    pub(crate) is_at_rest: bool,
}

impl QueueSuspensions {
    pub(crate) fn insert(&mut self, session: u64, queue: QueueId, suspension: QueueSuspension) {
        self.said.insert((queue, session), suspension);
    }

    /// Whether a session keeps a queue off, or will when its grace is over.
    pub(crate) fn has(&self, session: u64, queue: QueueId) -> bool {
        self.said.contains_key(&(queue, session))
    }

    pub(crate) fn remove(&mut self, session: u64, queue: QueueId) {
        self.said.remove(&(queue, session));
    }

    /// Sessions that have a say.
    pub(crate) fn sessions(&self) -> BTreeSet<u64> {
        self.said.keys().map(|(_, session)| *session).collect()
    }

    /// A session is closed.
    pub(crate) fn end_session(&mut self, session: u64) {
        self.said.retain(|(_, by), _| *by != session);
    }

    /// Ends what is said of those queues, by whomever. Whether anything was.
    pub(crate) fn end_queues(&mut self, mut is_meant: impl FnMut(QueueId) -> bool) -> bool {
        let before = self.said.len();
        self.said.retain(|(queue, _), _| !is_meant(*queue));
        self.said.len() < before
    }

    /// Whether nobody says anything, and everybody knows that.
    pub(crate) fn is_empty(&self) -> bool {
        self.said.is_empty() && self.off.is_empty() && self.parked.is_empty()
    }

    /// Brings everything up to date: which queues are off from now on (true), and which no longer.
    /// Of a queue it is asked how it is; none means that it is gone.
    pub(crate) fn settle(
        &mut self,
        now_ns: u64,
        look: impl Fn(QueueId) -> Option<Condition>,
    ) -> Vec<(QueueId, bool)> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut off = BTreeSet::new();
        self.said.retain(|(queue, _), suspension| {
            let Some(condition) = look(*queue) else { return false };
            let is_done =
                if suspension.is_soft { condition.is_at_rest } else { !condition.has_work };
            if is_done {
                // It has finished what it had, so its grace is over.
                suspension.begins_ns = 0;
            }
            if suspension.ends_ns > now_ns && suspension.begins_ns <= now_ns {
                off.insert(*queue);
            }
            suspension.ends_ns > now_ns
        });
        self.off.retain(|queue| look(*queue).is_some());
        self.parked.retain(|queue| look(*queue).is_some());
        let gone = self.off.difference(&off).map(|queue| (*queue, false));
        let come = off.difference(&self.off).map(|queue| (*queue, true));
        let changes = gone.chain(come).collect();
        self.off = off;
        changes
    }

    /// For which queues the devices are to fetch nothing from now on (true), and for which they
    /// are again. To be asked before [`Self::settle`].
    pub(crate) fn settle_parks(&mut self, now_ns: u64) -> Vec<(QueueId, bool)> {
        let wanted: BTreeSet<QueueId> = self
            .said
            .iter()
            .filter(|(_, suspension)| suspension.is_soft && suspension.ends_ns > now_ns)
            .map(|((queue, _), _)| *queue)
            .collect();
        let over = self.parked.difference(&wanted).map(|queue| (*queue, false));
        let begun = wanted.difference(&self.parked).map(|queue| (*queue, true));
        let changes = over.chain(begun).collect();
        self.parked = wanted;
        changes
    }

    /// When something changes by itself.
    pub(crate) fn next_ns(&self, now_ns: u64) -> Option<u64> {
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
        QueueSuspension { begins_ns, ends_ns, is_soft: false }
    }

    type Look = fn(QueueId) -> Option<Condition>;
    const BUSY: Look = |_| Some(Condition { has_work: true, is_at_rest: false });
    const DONE: Look = |_| Some(Condition { has_work: false, is_at_rest: false });
    const AT_REST: Look = |_| Some(Condition { has_work: false, is_at_rest: true });
    const GONE: Look = |_| None;

    #[test]
    fn a_soft_one_begins_when_the_device_is_at_rest_and_not_before() {
        let mut suspensions = QueueSuspensions::default();
        let soft = QueueSuspension { begins_ns: u64::MAX, ends_ns: 100, is_soft: true };
        suspensions.insert(1, QUEUE, soft);
        assert!(!suspensions.is_empty());
        assert_eq!(suspensions.settle_parks(1), [(QUEUE, true)]);
        assert_eq!(suspensions.settle_parks(2), []);
        assert_eq!(suspensions.settle(3, BUSY), []);
        assert_eq!(suspensions.settle(4, DONE), [], "something may be on its way");
        assert_eq!(suspensions.settle(5, AT_REST), [(QUEUE, true)]);
        assert_eq!(suspensions.next_ns(5), Some(100));
        assert_eq!(suspensions.settle_parks(100), [(QUEUE, false)]);
        assert_eq!(suspensions.settle(100, AT_REST), [(QUEUE, false)]);
        assert!(suspensions.is_empty());
    }

    #[test]
    fn a_soft_one_that_is_taken_back_lets_the_device_fetch_again() {
        let mut suspensions = QueueSuspensions::default();
        let soft = QueueSuspension { begins_ns: u64::MAX, ends_ns: 100, is_soft: true };
        suspensions.insert(1, QUEUE, soft);
        suspensions.insert(2, QUEUE, suspension(0, 100));
        assert_eq!(suspensions.settle_parks(1), [(QUEUE, true)]);
        assert_eq!(suspensions.settle(1, BUSY), [(QUEUE, true)], "another says at once");
        suspensions.end_session(1);
        assert_eq!(suspensions.settle_parks(2), [(QUEUE, false)]);
        assert_eq!(suspensions.settle(2, BUSY), []);
    }

    #[test]
    fn a_queue_is_off_until_the_last_session_lets_go() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.insert(2, QUEUE, suspension(0, 100));
        assert_eq!(suspensions.settle(1, BUSY), [(QUEUE, true)]);
        assert_eq!(suspensions.settle(2, BUSY), []);
        suspensions.end_session(1);
        assert_eq!(suspensions.settle(3, BUSY), []);
        assert!(!suspensions.has(1, QUEUE) && suspensions.has(2, QUEUE));
        suspensions.remove(2, QUEUE);
        assert_eq!(suspensions.settle(4, BUSY), [(QUEUE, false)]);
        assert_eq!(suspensions.next_ns(4), None);
    }

    #[test]
    fn a_lease_ends_by_itself() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.settle(1, BUSY);
        assert_eq!(suspensions.next_ns(1), Some(100));
        assert_eq!(suspensions.settle(99, BUSY), []);
        assert_eq!(suspensions.settle(100, BUSY), [(QUEUE, false)]);
        assert!(!suspensions.has(1, QUEUE));
    }

    #[test]
    fn a_grace_lasts_until_its_end_or_until_the_work_is_done() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(50, 100));
        assert_eq!(suspensions.settle(1, BUSY), []);
        assert_eq!(suspensions.next_ns(1), Some(50));
        assert_eq!(suspensions.settle(50, BUSY), [(QUEUE, true)]);
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(50, 100));
        assert_eq!(suspensions.settle(2, DONE), [(QUEUE, true)]);
        assert_eq!(suspensions.settle(3, BUSY), [], "more work is no way out");
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.settle(1, BUSY);
        assert_eq!(suspensions.settle(2, GONE), []);
        assert!(!suspensions.has(1, QUEUE));
        suspensions.insert(1, QUEUE, suspension(0, 100));
        assert!(suspensions.end_queues(|queue| queue == QUEUE));
        assert!(!suspensions.end_queues(|queue| queue == QUEUE));
        assert_eq!(suspensions.settle(3, BUSY), []);
    }
}
