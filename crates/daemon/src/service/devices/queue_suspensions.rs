//! Requests that name queues, and the queues that sessions keep suspended.
//!
//! A queue is off as long as one session suspends it. A suspension ends when its session resumes
//! the queue or is closed, and when its lease is over, so a client that died or hangs cannot keep a
//! queue off.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::backend::PreemptLevel;
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::RunState;
use gpreempt_core::scheduler::QueueView;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::queue::{DeviceKind, QueueIds, QueueList, QueueRecord, QueueStop, StopDepth};
use gpreempt_wire::text::Text;

use super::Devices;
use crate::service::clients::Requester;
use crate::service::clients::pending_answers::is_off;
use crate::service::clients::permission::{Caller, Operation};
use crate::service::clients::request_error::RequestError;
use crate::service::processes::changes::LEASE_MS_MAX;
use crate::service::processes::inspection::KnownFacts;
use crate::service::processes::process_table::{ProcessTable, TrackedProcess};
use crate::service::undo::Recovery;

/// The longest grace time: a minute.
const GRACE_US_MAX: u32 = 60_000_000;

/// One session's suspension of one queue, on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueSuspension {
    /// Until then the queue may run while it has work.
    pub(crate) begins_ns: u64,
    pub(crate) ends_ns: u64,
    /// The running kernel finishes first, however long it takes, and no other starts.
    pub(crate) is_soft: bool,
    /// The administrator that asked for it: only an administrator ends it before its session does.
    pub(crate) admin: Option<u32>,
}

/// The suspensions of all sessions.
#[derive(Debug, Default)]
pub(crate) struct QueueSuspensions {
    wanted: BTreeMap<(QueueId, u64), QueueSuspension>,
    /// Queues that the scheduler has as suspended.
    off: BTreeSet<QueueId>,
    /// Queues for which the devices fetch nothing.
    parked: BTreeSet<QueueId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueActivity {
    pub(crate) has_work: bool,
    /// Its device fetches nothing for it, and everything fetched has finished.
    pub(crate) is_at_rest: bool,
}

impl QueueSuspensions {
    pub(crate) fn insert(&mut self, session: u64, queue: QueueId, suspension: QueueSuspension) {
        self.wanted.insert((queue, session), suspension);
    }

    /// Whether a session suspends a queue, or will when the grace time is over.
    pub(crate) fn has(&self, session: u64, queue: QueueId) -> bool {
        self.wanted.contains_key(&(queue, session))
    }

    pub(crate) fn remove(&mut self, session: u64, queue: QueueId) {
        self.wanted.remove(&(queue, session));
    }

    pub(crate) fn sessions(&self) -> BTreeSet<u64> {
        self.wanted.keys().map(|(_, session)| *session).collect()
    }

    pub(crate) fn end_session(&mut self, session: u64) {
        self.wanted.retain(|(_, by), _| *by != session);
    }

    /// Ends the suspensions of some queues, of all sessions; those of administrators only for an
    /// administrator. Returns whether there was one.
    pub(crate) fn end_queues(
        &mut self,
        by_admin: bool,
        mut is_meant: impl FnMut(QueueId) -> bool,
    ) -> bool {
        let before = self.wanted.len();
        self.wanted.retain(|(queue, _), suspension| {
            (suspension.admin.is_some() && !by_admin) || !is_meant(*queue)
        });
        self.wanted.len() < before
    }

    /// An administrator that suspends one of some queues.
    pub(crate) fn admin_of(&self, is_meant: impl Fn(QueueId) -> bool) -> Option<u32> {
        let mut of_admins = self.wanted.iter().filter(|(_, suspension)| suspension.admin.is_some());
        of_admins.find(|((queue, _), _)| is_meant(*queue)).and_then(|(_, found)| found.admin)
    }

    /// Whether there is no suspension, and no queue is off because of an earlier one.
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.off.is_empty() && self.parked.is_empty()
    }

    /// Ends what is over. Returns the queues that are off from now on (true) and those that are
    /// off no longer. `look` returns `None` for a queue that no longer exists.
    pub(crate) fn settle(
        &mut self,
        now_ns: u64,
        look: impl Fn(QueueId) -> Option<QueueActivity>,
    ) -> Vec<(QueueId, bool)> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut off = BTreeSet::new();
        self.wanted.retain(|(queue, _), suspension| {
            let Some(activity) = look(*queue) else { return false };
            let is_done = if suspension.is_soft { activity.is_at_rest } else { !activity.has_work };
            if is_done {
                // The queue has finished its work, so its grace time is over.
                suspension.begins_ns = 0;
            }
            if suspension.ends_ns > now_ns && suspension.begins_ns <= now_ns {
                off.insert(*queue);
            }
            suspension.ends_ns > now_ns
        });
        self.off.retain(|queue| look(*queue).is_some());
        self.parked.retain(|queue| look(*queue).is_some());
        replace(&mut self.off, off)
    }

    /// The queues for which devices must fetch nothing from now on (true) and those for which they
    /// fetch again. Call it before [`Self::settle`].
    pub(crate) fn settle_parks(&mut self, now_ns: u64) -> Vec<(QueueId, bool)> {
        let is_wanted =
            |suspension: &QueueSuspension| suspension.is_soft && suspension.ends_ns > now_ns;
        let wanted = self.wanted.iter().filter(|(_, suspension)| is_wanted(suspension));
        let wanted = wanted.map(|((queue, _), _)| *queue).collect();
        replace(&mut self.parked, wanted)
    }

    /// The next time at which a suspension begins or ends.
    pub(crate) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let times =
            self.wanted.values().flat_map(|suspension| [suspension.begins_ns, suspension.ends_ns]);
        times.filter(|at| *at > now_ns).min()
    }
}

/// Replaces a set. Returns what left it (false), then what was added (true).
fn replace(set: &mut BTreeSet<QueueId>, next: BTreeSet<QueueId>) -> Vec<(QueueId, bool)> {
    let removed = set.difference(&next).map(|queue| (*queue, false));
    let added = next.difference(set).map(|queue| (*queue, true));
    let changes = removed.chain(added).collect();
    *set = next;
    changes
}

impl Devices {
    /// As many queues with ids above `after` as fit into an answer.
    pub(crate) fn list_queues(
        &self,
        table: &ProcessTable,
        requester: Requester,
        after: u64,
    ) -> QueueList {
        let views = self.scheduler().queues_after(QueueId(after));
        QueueList::new(views.filter_map(|view| self.record(table, requester, &view)))
    }

    pub(crate) fn read_queue(
        &self,
        table: &ProcessTable,
        requester: Requester,
        queue: u64,
    ) -> Result<QueueList, RequestError> {
        let (view, _) = self.find_queue(table, queue)?;
        Ok(QueueList::new(self.record(table, requester, &view)))
    }

    fn find_queue<'a>(
        &self,
        table: &'a ProcessTable,
        id: u64,
    ) -> Result<(QueueView, &'a TrackedProcess), RequestError> {
        let view = self.scheduler().queue(QueueId(id));
        let found = view.and_then(|view| Some((view, table.of_task(view.task)?)));
        found.ok_or(RequestError::NoSuchQueue(id))
    }

    fn record(
        &self,
        table: &ProcessTable,
        requester: Requester,
        view: &QueueView,
    ) -> Option<QueueRecord> {
        let process = table.of_task(view.task)?;
        if !requester.caller.may_read(process.labels.uid) {
            return None;
        }
        let capabilities = self.scheduler().capabilities(view.device);
        Some(QueueRecord {
            id: view.queue.0,
            native: self.backends.native(view.queue).unwrap_or(0),
            start_ticks: process.key.start_ticks,
            pending: view.ring.pending(),
            ran_us: view.totals.ran.as_micros(),
            preempts: view.totals.preempts,
            pid: process.key.pid,
            uid: process.labels.uid,
            device: view.device.0,
            priority: view.priority,
            level: match capabilities.map(|capabilities| capabilities.level) {
                Some(PreemptLevel::Interrupt) => 3,
                Some(PreemptLevel::Deactivate) => 2,
                Some(PreemptLevel::BlockSubmission) | None => 1,
            },
            kind: self.backends.kind_of(view.queue).map_or(DeviceKind::Other, DeviceKind::named),
            is_on: view.run_state != RunState::Off,
            is_active: view.active,
            is_suspended: view.suspended,
            has_own_priority: view.has_own_priority,
            is_suspended_by_asker: self.queue_suspensions.has(requester.session, view.queue),
            name: Text::new(&process.labels.name),
        })
    }

    /// Suspends all of the queues, or none if one cannot be suspended. They are off after
    /// [`Devices::settle_queue_suspensions`].
    pub(crate) fn suspend_queues(
        &mut self,
        (table, recovery, facts): (&ProcessTable, &Recovery, &KnownFacts),
        requester: Requester,
        stop: &QueueStop,
        now_ns: u64,
    ) -> Result<(), RequestError> {
        let (grace_us, lease_ms) = (stop.grace_us, stop.lease_ms.get());
        if lease_ms > LEASE_MS_MAX {
            return Err(RequestError::LeaseTooLong(lease_ms));
        }
        if grace_us > GRACE_US_MAX {
            return Err(RequestError::GraceTooLong(grace_us));
        }
        let mut owners = BTreeSet::new();
        for &id in stop.queues.as_slice() {
            owners.insert(self.check_suspension(table, requester.caller, id, stop.depth)?);
        }
        if let Some(key) = facts.find_display(owners)? {
            return Err(RequestError::QueueDrivesDisplay(key));
        }
        let is_on = |id: &&u64| self.find_queue(table, **id).is_ok_and(|(view, _)| !is_off(&view));
        if let Some(id) = stop.queues.as_slice().iter().find(is_on) {
            recovery.check_journal(|| format!("queue {id}"))?;
        }
        let begins_ns = now_ns.saturating_add(u64::from(grace_us).saturating_mul(1_000));
        let lease_ns = u64::from(lease_ms).saturating_mul(1_000_000);
        let ends_ns = begins_ns.saturating_add(lease_ns);
        let is_soft = stop.depth == StopDepth::Deactivate;
        let begins_ns = if is_soft { u64::MAX } else { begins_ns };
        let caller = requester.caller;
        let admin = caller.is_admin().then_some(caller.uid());
        let suspension = QueueSuspension { begins_ns, ends_ns, is_soft, admin };
        for &id in stop.queues.as_slice() {
            self.queue_suspensions.insert(requester.session, QueueId(id), suspension);
        }
        Ok(())
    }

    /// Returns the process of the queue.
    fn check_suspension(
        &self,
        table: &ProcessTable,
        caller: Caller,
        id: u64,
        depth: StopDepth,
    ) -> Result<ProcessKey, RequestError> {
        let (view, process) = self.find_queue(table, id)?;
        caller.check_touch(process.key.pid, process.labels.uid)?;
        let capabilities = self.scheduler().capabilities(view.device);
        let level = capabilities.map(|capabilities| capabilities.level);
        let is_supported = match depth {
            StopDepth::Any => level > Some(PreemptLevel::BlockSubmission),
            StopDepth::Interrupt => level == Some(PreemptLevel::Interrupt),
            StopDepth::Deactivate => {
                level == Some(PreemptLevel::Deactivate) || self.backends.can_park(view.queue)
            }
        };
        if !is_supported {
            return Err(RequestError::NoSuchLevel(id));
        }
        Ok(process.key)
    }

    /// Ends the requester's suspensions of all of the queues, or of none if it has not suspended
    /// one of them.
    pub(crate) fn resume_queues(
        &mut self,
        table: &ProcessTable,
        requester: Requester,
        queues: &QueueIds,
    ) -> Result<(), RequestError> {
        for &id in queues.as_slice() {
            self.find_queue(table, id)?;
            if !self.queue_suspensions.has(requester.session, QueueId(id)) {
                return Err(RequestError::NotSuspendedHere(id));
            }
        }
        for &id in queues.as_slice() {
            self.queue_suspensions.remove(requester.session, QueueId(id));
        }
        Ok(())
    }

    /// Gives a queue a priority of its own; `None` restores that of its process.
    pub(crate) fn set_queue(
        &mut self,
        table: &ProcessTable,
        requester: Requester,
        (id, priority): (u64, Option<Priority>),
        default_priority: Option<Priority>,
    ) -> Result<(), RequestError> {
        let (view, process) = self.find_queue(table, id)?;
        let caller = requester.caller;
        let change = SchedAttrChange { priority, ..SchedAttrChange::default() };
        caller.check(Operation::Change(change), &process.target(default_priority))?;
        let of_process = process.applied.map_or(Priority::DEFAULT, |applied| applied.attr.priority);
        let wanted = priority.unwrap_or(of_process);
        self.queue_priorities.check(caller, view.queue, wanted)?;
        let event = Event::QueueChanged { queue: view.queue, priority };
        self.driver.deliver(self.driver.now(), event)?;
        self.backends.set_queue_priority(view.queue, priority);
        let scheduler = self.driver.scheduler();
        self.queue_priorities.retain(|queue| scheduler.queue(queue).is_some());
        self.queue_priorities.set(caller, view.queue, priority);
        self.is_changed = true;
        Ok(())
    }

    /// Gives queues of a task whose owner raised them above that priority the task's own.
    pub(crate) fn limit_queues(&mut self, task: TaskId, most: Priority) {
        let scheduler = self.driver.scheduler();
        let is_of_task = |queue| scheduler.queue(queue).is_some_and(|view| view.task == task);
        for queue in self.queue_priorities.take_above(most, is_of_task) {
            // A queue that vanished meanwhile needs no limit.
            let event = Event::QueueChanged { queue, priority: None };
            let _ = self.driver.deliver(self.driver.now(), event);
            self.backends.set_queue_priority(queue, None);
        }
    }

    /// An administrator that suspends a queue of a process.
    pub(crate) fn suspended_by_admin(&self, table: &ProcessTable, key: ProcessKey) -> Option<u32> {
        let task = table.get(key)?.applied?.task;
        let is_its = |queue| self.scheduler().queue(queue).is_some_and(|view| view.task == task);
        self.queue_suspensions.admin_of(is_its)
    }

    /// Ends the suspensions of a process's queues, of all sessions; those of administrators only
    /// for an administrator. Returns whether there was one.
    pub(crate) fn end_suspensions_of(
        &mut self,
        table: &ProcessTable,
        key: ProcessKey,
        by_admin: bool,
    ) -> bool {
        let is_it = |process: Option<&TrackedProcess>| process.is_some_and(|it| it.key == key);
        self.end_suspensions(table, by_admin, is_it)
    }

    /// Ends the suspensions of all queues that the caller may end.
    pub(crate) fn end_suspensions_for(&mut self, table: &ProcessTable, caller: Caller) {
        self.end_suspensions(table, caller.is_admin(), |process| {
            process.is_none_or(|process| caller.may_touch(process.labels.uid))
        });
    }

    fn end_suspensions(
        &mut self,
        table: &ProcessTable,
        by_admin: bool,
        is_meant: impl Fn(Option<&TrackedProcess>) -> bool,
    ) -> bool {
        let scheduler = self.driver.scheduler();
        self.queue_suspensions.end_queues(by_admin, |queue| {
            is_meant(scheduler.queue(queue).and_then(|view| table.of_task(view.task)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: QueueId = QueueId(7);

    fn suspension(begins_ns: u64, ends_ns: u64) -> QueueSuspension {
        QueueSuspension { begins_ns, ends_ns, is_soft: false, admin: None }
    }

    type Look = fn(QueueId) -> Option<QueueActivity>;
    const BUSY: Look = |_| Some(QueueActivity { has_work: true, is_at_rest: false });
    const DONE: Look = |_| Some(QueueActivity { has_work: false, is_at_rest: false });
    const AT_REST: Look = |_| Some(QueueActivity { has_work: false, is_at_rest: true });
    const GONE: Look = |_| None;

    #[test]
    fn a_soft_suspension_begins_when_the_device_is_at_rest() {
        let mut suspensions = QueueSuspensions::default();
        let soft =
            QueueSuspension { begins_ns: u64::MAX, ends_ns: 100, is_soft: true, admin: None };
        suspensions.insert(1, QUEUE, soft);
        assert!(!suspensions.is_empty());
        assert_eq!(suspensions.settle_parks(1), [(QUEUE, true)]);
        assert_eq!(suspensions.settle_parks(2), []);
        assert_eq!(suspensions.settle(3, BUSY), []);
        assert_eq!(suspensions.settle(4, DONE), [], "a fetched packet may still run");
        assert_eq!(suspensions.settle(5, AT_REST), [(QUEUE, true)]);
        assert_eq!(suspensions.next_ns(5), Some(100));
        assert_eq!(suspensions.settle_parks(100), [(QUEUE, false)]);
        assert_eq!(suspensions.settle(100, AT_REST), [(QUEUE, false)]);
        assert!(suspensions.is_empty());
    }

    #[test]
    fn a_soft_suspension_that_ends_lets_the_device_fetch_again() {
        let mut suspensions = QueueSuspensions::default();
        let soft =
            QueueSuspension { begins_ns: u64::MAX, ends_ns: 100, is_soft: true, admin: None };
        suspensions.insert(1, QUEUE, soft);
        suspensions.insert(2, QUEUE, suspension(0, 100));
        assert_eq!(suspensions.settle_parks(1), [(QUEUE, true)]);
        assert_eq!(
            suspensions.settle(1, BUSY),
            [(QUEUE, true)],
            "the other session gave no grace time"
        );
        suspensions.end_session(1);
        assert_eq!(suspensions.settle_parks(2), [(QUEUE, false)]);
        assert_eq!(suspensions.settle(2, BUSY), []);
    }

    #[test]
    fn a_queue_is_off_until_the_last_session_resumes_it() {
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
    fn the_suspension_of_an_administrator_is_ended_by_administrators_alone() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, QueueSuspension { admin: Some(0), ..suspension(0, 100) });
        suspensions.insert(2, QUEUE, suspension(0, 100));
        assert_eq!(suspensions.admin_of(|queue| queue == QUEUE), Some(0));
        assert_eq!(suspensions.admin_of(|queue| queue != QUEUE), None);
        assert!(suspensions.end_queues(false, |_| true), "that of the owner ends");
        assert!(!suspensions.end_queues(false, |_| true), "that of root does not");
        assert!(suspensions.has(1, QUEUE) && !suspensions.has(2, QUEUE));
        assert!(suspensions.end_queues(true, |_| true));
        assert!(suspensions.is_empty());
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
        assert_eq!(suspensions.settle(3, BUSY), [], "new work does not end a suspension");
    }

    #[test]
    fn suspensions_of_vanished_queues_are_forgotten() {
        let mut suspensions = QueueSuspensions::default();
        suspensions.insert(1, QUEUE, suspension(0, 100));
        suspensions.settle(1, BUSY);
        assert_eq!(suspensions.settle(2, GONE), []);
        assert!(!suspensions.has(1, QUEUE));
        suspensions.insert(1, QUEUE, suspension(0, 100));
        assert!(suspensions.end_queues(false, |queue| queue == QUEUE));
        assert!(!suspensions.end_queues(false, |queue| queue == QUEUE));
        assert_eq!(suspensions.settle(3, BUSY), []);
    }
}
