//! Requests that name queues: list, read, suspend, resume, and set a priority.

use std::num::NonZeroU32;

use gpreempt_core::backend::PreemptLevel;
use gpreempt_core::event::Event;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::RunState;
use gpreempt_core::scheduler::QueueView;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::queue::{DeviceKind, QueueIds, QueueList, QueueRecord, StopDepth};
use gpreempt_wire::text::Text;

use super::Devices;
use super::queue_suspensions::QueueSuspension;
use crate::service::clients::pending_answers::is_off;
use crate::service::clients::permission::Caller;
use crate::service::clients::request_error::RequestError;
use crate::service::clients::requests::Asker;
use crate::service::processes::changes::{LEASE_MS_MAX, drives_display};
use crate::service::processes::process_table::Roster;
use crate::service::processes::tracked_process::Member;
use crate::service::undo::guard::Guard;

/// The longest grace: a minute.
const GRACE_US_MAX: u32 = 60_000_000;

/// What a session asks of some queues.
pub(crate) struct Suspension {
    pub(crate) queues: QueueIds,
    pub(crate) grace_us: u32,
    pub(crate) lease_ms: NonZeroU32,
    pub(crate) depth: StopDepth,
}

impl Devices {
    /// As many queues after that one as fit into an answer.
    pub(crate) fn list_queues(&self, table: &Roster, asker: Asker, after: u64) -> QueueList {
        let views = self.scheduler().queues_after(QueueId(after));
        QueueList::new(views.filter_map(|view| self.record(table, asker, &view)))
    }

    pub(crate) fn read_queue(
        &self,
        table: &Roster,
        asker: Asker,
        queue: u64,
    ) -> Result<QueueList, RequestError> {
        let (view, _) = self.find_queue(table, queue)?;
        Ok(QueueList::new(self.record(table, asker, &view)))
    }

    fn find_queue<'a>(
        &self,
        table: &'a Roster,
        id: u64,
    ) -> Result<(QueueView, &'a Member), RequestError> {
        let found = self.scheduler().queue(QueueId(id)).and_then(|view| {
            let member = table.of_task(view.task)?;
            Some((view, member))
        });
        found.ok_or(RequestError::NoSuchQueue(id))
    }

    fn record(&self, table: &Roster, asker: Asker, view: &QueueView) -> Option<QueueRecord> {
        let member = table.of_task(view.task)?;
        let capabilities = self.scheduler().capabilities(view.device);
        Some(QueueRecord {
            id: view.queue.0,
            native: self.backends.native(view.queue).unwrap_or(0),
            start_ticks: member.key.start_ticks,
            pending: view.ring.pending(),
            ran_us: view.totals.ran.as_micros(),
            preempts: view.totals.preempts,
            pid: member.key.pid,
            uid: member.about.uid,
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
            is_suspended_by_asker: self.queue_suspensions.has(asker.session, view.queue),
            name: Text::new(&member.about.name),
        })
    }

    /// Suspends all of the queues, or none of them if one cannot be. They are off when the
    /// suspensions are settled.
    pub(crate) fn suspend_queues(
        &mut self,
        (table, guard): (&Roster, &Guard),
        asker: Asker,
        asked: &Suspension,
        now_ns: u64,
    ) -> Result<(), RequestError> {
        let (grace_us, lease_ms) = (asked.grace_us, asked.lease_ms.get());
        if lease_ms > LEASE_MS_MAX {
            return Err(RequestError::LeaseTooLong(lease_ms));
        }
        if grace_us > GRACE_US_MAX {
            return Err(RequestError::GraceTooLong(grace_us));
        }
        for &id in asked.queues.as_slice() {
            self.check_suspension(table, asker.caller, id, asked.depth)?;
        }
        let is_on = |id: &&u64| self.find_queue(table, **id).is_ok_and(|(view, _)| !is_off(&view));
        if let Some(id) = asked.queues.as_slice().iter().find(is_on) {
            guard.check_journal(|| format!("queue {id}"))?;
        }
        let begins_ns = now_ns.saturating_add(u64::from(grace_us).saturating_mul(1_000));
        let lease_ns = u64::from(lease_ms).saturating_mul(1_000_000);
        let ends_ns = begins_ns.saturating_add(lease_ns);
        let is_soft = asked.depth == StopDepth::Deactivate;
        let begins_ns = if is_soft { u64::MAX } else { begins_ns };
        let suspension = QueueSuspension { begins_ns, ends_ns, is_soft };
        for &id in asked.queues.as_slice() {
            self.queue_suspensions.insert(asker.session, QueueId(id), suspension);
        }
        Ok(())
    }

    fn check_suspension(
        &self,
        table: &Roster,
        caller: Caller,
        id: u64,
        depth: StopDepth,
    ) -> Result<(), RequestError> {
        let (view, member) = self.find_queue(table, id)?;
        caller.check_touch(member.key.pid, member.about.uid)?;
        let capabilities = self.scheduler().capabilities(view.device);
        let level = capabilities.map(|capabilities| capabilities.level);
        let reaches = match depth {
            StopDepth::Any => level > Some(PreemptLevel::BlockSubmission),
            StopDepth::Interrupt => level == Some(PreemptLevel::Interrupt),
            StopDepth::Deactivate => {
                level == Some(PreemptLevel::Deactivate) || self.backends.can_park(view.queue)
            }
        };
        if !reaches {
            return Err(RequestError::NoSuchLevel(id));
        }
        if drives_display(member.key.pid) {
            return Err(RequestError::QueueDrivesDisplay(member.key));
        }
        Ok(())
    }

    /// Ends the asker's suspensions of all of the queues, or of none if one is not suspended.
    pub(crate) fn resume_queues(
        &mut self,
        table: &Roster,
        asker: Asker,
        queues: &QueueIds,
    ) -> Result<(), RequestError> {
        for &id in queues.as_slice() {
            self.find_queue(table, id)?;
            if !self.queue_suspensions.has(asker.session, QueueId(id)) {
                return Err(RequestError::NotSuspendedHere(id));
            }
        }
        for &id in queues.as_slice() {
            self.queue_suspensions.remove(asker.session, QueueId(id));
        }
        Ok(())
    }

    /// Gives a queue a priority of its own, or its process's again.
    pub(crate) fn set_queue(
        &mut self,
        table: &Roster,
        asker: Asker,
        (id, priority): (u64, Option<Priority>),
        default_priority: Option<Priority>,
    ) -> Result<(), RequestError> {
        let (view, member) = self.find_queue(table, id)?;
        asker.caller.check_touch(member.key.pid, member.about.uid)?;
        if let Some(priority) = priority {
            asker.caller.check_priority(priority, member.open_priority(default_priority))?;
        }
        let event = Event::QueueChanged { queue: view.queue, priority };
        self.driver.deliver(self.driver.now(), event)?;
        self.backends.set_queue_priority(view.queue, priority);
        self.is_changed = true;
        Ok(())
    }

    /// Ends every suspension of the queues of a process, of all sessions. Whether there was one.
    pub(crate) fn end_suspensions_of(&mut self, table: &Roster, key: ProcessKey) -> bool {
        let scheduler = self.driver.scheduler();
        self.queue_suspensions.end_queues(|queue| {
            let member = scheduler.queue(queue).and_then(|view| table.of_task(view.task));
            member.is_some_and(|member| member.key == key)
        })
    }

    /// Ends every suspension of queues that the caller may change.
    pub(crate) fn end_suspensions_for(&mut self, table: &Roster, caller: Caller) {
        let scheduler = self.driver.scheduler();
        self.queue_suspensions.end_queues(|queue| {
            let member = scheduler.queue(queue).and_then(|view| table.of_task(view.task));
            member.is_none_or(|member| caller.may_touch(member.about.uid))
        });
    }
}
