//! Requests that name queues.

use std::num::NonZeroU32;

use gpreempt_core::capability::Level;
use gpreempt_core::event::Event;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::Standing;
use gpreempt_core::scheduler::QueueView;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::queue::{DeviceKind, QueueIds, QueueList, QueueRecord, StopDepth};
use gpreempt_wire::refusal::RefusalCode;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::text::Text;

use super::change::{LEASE_MS_MAX, drives_display};
use super::{Answer, Asker};
use crate::service::member::Member;
use crate::service::pending_answers::is_off;
use crate::service::permission::Caller;
use crate::service::queue_suspensions::{Condition, QueueSuspension};
use crate::service::refused::Refused;
use crate::service::{Service, instant};

/// The longest grace: a minute.
const GRACE_US_MAX: u32 = 60_000_000;

/// What a session asks of some queues.
struct Suspension {
    queues: QueueIds,
    grace_us: u32,
    lease_ms: NonZeroU32,
    depth: StopDepth,
}

impl Service {
    /// Answers those requests that name queues.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are answered by the caller")]
    pub(super) fn answer_about_queues(
        &mut self,
        asker: Asker,
        body: Request,
        now_ns: u64,
    ) -> Result<Answer, Refused> {
        match body {
            Request::ListQueues { after } => return Ok(self.list_queues(asker, after)),
            Request::ReadQueue { queue } => return self.read_queue(asker, queue),
            Request::SuspendQueues { queues, grace_us, lease_ms, depth } => {
                let asked = Suspension { queues, grace_us, lease_ms, depth };
                self.suspend_queues(asker, &asked, now_ns)?;
            }
            Request::ResumeQueues { queues } => self.resume_queues(asker, &queues, now_ns)?,
            Request::SetQueue { queue, priority } => self.set_queue(asker, queue, priority)?,
            _ => {}
        }
        Ok(Reply::Ok.into())
    }

    fn list_queues(&self, asker: Asker, after: u64) -> Answer {
        let views = self.driver.scheduler().queues_after(QueueId(after));
        let records = views.filter_map(|view| self.record(asker, &view));
        Reply::Queues(QueueList::new(records)).into()
    }

    fn read_queue(&self, asker: Asker, queue: u64) -> Result<Answer, Refused> {
        let (view, _) = self.find_queue(queue)?;
        Ok(Reply::Queues(QueueList::new(self.record(asker, &view))).into())
    }

    fn find_queue(&self, id: u64) -> Result<(QueueView, &Member), Refused> {
        let found = self.driver.scheduler().queue(QueueId(id)).and_then(|view| {
            let member = self.roster.of_task(view.task)?;
            Some((view, member))
        });
        let sentence = || format!("there is no queue {id}; it is gone, or never was");
        found.ok_or_else(|| Refused::new(RefusalCode::NoSuchQueue, sentence()))
    }

    fn record(&self, asker: Asker, view: &QueueView) -> Option<QueueRecord> {
        let member = self.roster.of_task(view.task)?;
        let capabilities = self.driver.scheduler().capabilities(view.device);
        Some(QueueRecord {
            id: view.queue.0,
            native: self.backends.native(view.queue).unwrap_or(0),
            start_ticks: member.key.start_ticks,
            pending: view.ring.pending(),
            ran_us: view.account.ran.as_micros(),
            preempts: view.account.preempts,
            pid: member.key.pid,
            uid: member.about.uid,
            device: view.device.0,
            priority: view.priority,
            level: match capabilities.map(|capabilities| capabilities.level) {
                Some(Level::Switch) => 3,
                Some(Level::Park) => 2,
                Some(Level::Gate) | None => 1,
            },
            kind: kind(self.backends.kind_of(view.queue)),
            is_on: view.standing != Standing::Off,
            is_active: view.active,
            is_suspended: view.suspended,
            has_own_priority: view.has_own_priority,
            is_suspended_by_asker: self.queue_suspensions.has(asker.session, view.queue),
            name: Text::new(&member.about.name),
        })
    }

    fn suspend_queues(
        &mut self,
        asker: Asker,
        asked: &Suspension,
        now_ns: u64,
    ) -> Result<(), Refused> {
        let bad = |sentence: String| Err(Refused::new(RefusalCode::BadSetting, sentence));
        let (grace_us, lease_ms) = (asked.grace_us, asked.lease_ms.get());
        if lease_ms > LEASE_MS_MAX {
            return bad(format!("a lease of {lease_ms} ms is too long; a day is the longest"));
        }
        if grace_us > GRACE_US_MAX {
            return bad(format!("a grace of {grace_us} us is too long; a minute is the longest"));
        }
        // All of them or none: first everything that may be said against it.
        for &id in asked.queues.as_slice() {
            self.check_suspension(asker.caller, id, asked.depth)?;
        }
        let is_on = |id: &&u64| self.find_queue(**id).is_ok_and(|(view, _)| !is_off(&view));
        if let Some(id) = asked.queues.as_slice().iter().find(is_on) {
            self.check_journal(&format!("queue {id}"))?;
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
        let (count, uid) = (asked.queues.as_slice().len(), asker.caller.uid());
        self.log.debug(format_args!("uid {uid} suspends {count} queues for {lease_ms} ms"));
        self.settle_queue_suspensions(now_ns);
        Ok(())
    }

    fn check_suspension(&self, caller: Caller, id: u64, depth: StopDepth) -> Result<(), Refused> {
        let (view, member) = self.find_queue(id)?;
        caller.check_touch(member.key.pid, member.about.uid)?;
        let capabilities = self.driver.scheduler().capabilities(view.device);
        let level = capabilities.map(|capabilities| capabilities.level);
        let reaches = match depth {
            StopDepth::Any => level > Some(Level::Gate),
            StopDepth::Interrupt => level == Some(Level::Switch),
            StopDepth::Deactivate => {
                level == Some(Level::Park) || self.backends.can_park(view.queue)
            }
        };
        if !reaches {
            let sentence = format!("the device of queue {id} has no preempt of that level");
            return Err(Refused::new(RefusalCode::Unsupported, sentence));
        }
        if drives_display(member.key.pid) {
            let sentence = format!("process {} drives a display", member.key);
            return Err(Refused::new(RefusalCode::NotPermitted, sentence));
        }
        Ok(())
    }

    fn resume_queues(
        &mut self,
        asker: Asker,
        queues: &QueueIds,
        now_ns: u64,
    ) -> Result<(), Refused> {
        for &id in queues.as_slice() {
            self.find_queue(id)?;
            if !self.queue_suspensions.has(asker.session, QueueId(id)) {
                let sentence = format!("this session has not suspended queue {id}");
                return Err(Refused::new(RefusalCode::WrongState, sentence));
            }
        }
        for &id in queues.as_slice() {
            self.queue_suspensions.remove(asker.session, QueueId(id));
        }
        self.settle_queue_suspensions(now_ns);
        Ok(())
    }

    fn set_queue(
        &mut self,
        asker: Asker,
        id: u64,
        priority: Option<Priority>,
    ) -> Result<(), Refused> {
        let (view, member) = self.find_queue(id)?;
        asker.caller.check_touch(member.key.pid, member.about.uid)?;
        if let Some(priority) = priority {
            let open = member.open_priority(self.config.scheduler.default_priority);
            asker.caller.check_priority(priority, open)?;
        }
        let event = Event::QueueChanged { queue: view.queue, priority };
        let told = self.driver.tell(self.driver.now(), event);
        told.map_err(|error| Refused::new(RefusalCode::NoSuchQueue, error.to_string()))?;
        self.backends.set_queue_priority(view.queue, priority);
        self.is_changed = true;
        Ok(())
    }

    /// Ends every suspension of the queues of a process, whoever asked for it. Whether there was
    /// any.
    pub(super) fn end_suspensions_of_queues(&mut self, key: ProcessKey, now_ns: u64) -> bool {
        let (scheduler, roster) = (self.driver.scheduler(), &self.roster);
        let has_ended = self.queue_suspensions.end_queues(|queue| {
            let member = scheduler.queue(queue).and_then(|view| roster.of_task(view.task));
            member.is_some_and(|member| member.key == key)
        });
        self.settle_queue_suspensions(now_ns);
        has_ended
    }

    /// Ends every suspension of processes, and of their queues, that the caller may touch.
    pub(super) fn resume_everything(&mut self, caller: Caller, now_ns: u64) {
        self.resume_all(caller);
        let (scheduler, roster) = (self.driver.scheduler(), &self.roster);
        self.queue_suspensions.end_queues(|queue| {
            let member = scheduler.queue(queue).and_then(|view| roster.of_task(view.task));
            member.is_none_or(|member| caller.may_touch(member.about.uid))
        });
        self.settle_queue_suspensions(now_ns);
    }

    /// Whoever died has no say, even if a child of it still has its connection open.
    pub(in crate::service) fn end_suspensions_of_the_dead(&mut self) {
        for session in self.queue_suspensions.sessions() {
            let process = self.sessions.get_mut(session).and_then(|session| session.process);
            if process.is_some_and(|process| process.check().is_err()) {
                self.queue_suspensions.end_session(session);
            }
        }
    }

    /// Tells the scheduler which queues are suspended, as it is now.
    pub(in crate::service) fn settle_queue_suspensions(&mut self, now_ns: u64) {
        for session in self.sessions.take_left() {
            self.queue_suspensions.end_session(session);
        }
        if self.queue_suspensions.is_empty() {
            return;
        }
        for (queue, parked) in self.queue_suspensions.settle_parks(now_ns) {
            self.backends.park(queue, parked);
        }
        let (scheduler, backends) = (self.driver.scheduler(), &self.backends);
        let look = |queue| {
            let view = scheduler.queue(queue)?;
            Some(Condition { has_work: view.active, is_at_rest: backends.is_at_rest(queue) })
        };
        for (queue, suspended) in self.queue_suspensions.settle(now_ns, look) {
            // It can only be gone, and then nothing has to be said of it.
            let _ = self.driver.tell(instant(now_ns), Event::QueueSuspended { queue, suspended });
            self.is_changed = true;
        }
    }
}

fn kind(name: Option<&str>) -> DeviceKind {
    match name {
        Some("nvidia") => DeviceKind::Nvidia,
        Some("amd") => DeviceKind::Amd,
        Some("emulated") => DeviceKind::Emulated,
        _ => DeviceKind::Other,
    }
}
