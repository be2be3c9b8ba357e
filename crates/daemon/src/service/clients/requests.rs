//! What clients ask for, and what they get.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpreempt_core::time::Duration;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::hint_page::SLOTS;
use gpreempt_wire::message::Message;
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::queue::QueueStop;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::Request;
use gpreempt_wire::server::SnapshotError;

use super::pending_answers::Asked;
use super::permission::Caller;
use super::request_error::RequestError;
use super::sessions::{AT_ONCE_MAX, Follower};
use crate::service::devices::policy_settings;
use crate::service::devices::queue_requests::Suspension;
use crate::service::work_budget::Work;
use crate::service::{Service, instant};

/// What a request is answered with.
enum Answer {
    Reply(Box<Reply>),
    Snapshot(Arc<str>),
    Page(OwnedFd),
    Nothing,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self::Reply(Box::new(reply))
    }
}

/// Who asks, and in which session.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) session: u64,
    pub(crate) caller: Caller,
    pub(crate) process: Option<ProcessKey>,
}

impl Service {
    /// A session can be read from or written to.
    pub(crate) fn serve_session(&mut self, id: u64, now_ns: u64) {
        let log = &mut self.telemetry.log;
        self.clients.sessions.flush(id, &self.poller, log);
        for _ in 0..AT_ONCE_MAX {
            // What is left makes it ready again.
            if self.allowance.is_spent() {
                return;
            }
            let log = &mut self.telemetry.log;
            let message = self.clients.sessions.receive(id, instant(now_ns), log);
            let Some(message) = message else { return };
            self.allowance.take(work_of(&message.body));
            self.serve_message(id, message, now_ns);
        }
    }

    fn serve_message(&mut self, id: u64, message: Message<Request>, now_ns: u64) {
        let Message { request, body } = message;
        let Some(asker) = self.clients.asker(id, &self.processes.rules.accounts) else { return };
        let is_order = work_of(&body) == Work::Order;
        let answer = match self.answer(asker, request, body, now_ns) {
            Ok(answer) => answer,
            Err(error) => Reply::Refused(error.to_wire()).into(),
        };
        // A client that is told that a setting was made may rely on it, whatever happens next.
        if is_order {
            self.processes.keep_orders(&mut self.telemetry);
        }
        let Some(session) = self.clients.sessions.get_mut(id) else { return };
        let connection = session.connection();
        let sent = match answer {
            Answer::Nothing => return,
            Answer::Reply(reply) => connection.send(request, *reply),
            Answer::Page(file) => {
                connection.send_page(request, u32::try_from(SLOTS).unwrap_or(0), file)
            }
            Answer::Snapshot(text) => match connection.send_snapshot(request, text) {
                Ok(()) => Ok(()),
                Err(SnapshotError::CloseReason(offence)) => Err(offence),
                Err(error @ SnapshotError::Busy) => {
                    connection.send(request, refused(RefusalCode::Busy, &error))
                }
                Err(error @ SnapshotError::TooLong) => {
                    connection.send(request, refused(RefusalCode::Limit, &error))
                }
            },
        };
        self.clients.sessions.sent(id, sent, &self.poller, &mut self.telemetry.log);
    }

    fn answer(
        &mut self,
        asker: Asker,
        request: u64,
        body: Request,
        now_ns: u64,
    ) -> Result<Answer, RequestError> {
        let (processes, mut context) = self.processes_and_context();
        match body {
            Request::ListQueues { .. }
            | Request::ReadQueue { .. }
            | Request::SuspendQueues(_)
            | Request::ResumeQueues { .. }
            | Request::SetQueue { .. } => return self.answer_about_queues(asker, body, now_ns),
            Request::Hello { role, program } => {
                let uid = asker.caller.uid();
                let log = &mut self.telemetry.log;
                log.debug(format_args!("{program} of uid {uid} says hello ({role:?})"));
            }
            Request::Ping => {}
            Request::Register { process, change } => {
                processes.register(asker, process, change, &mut context)?;
            }
            Request::Set { process, change } => {
                processes.set(asker, process, change, &mut context)?;
            }
            Request::Suspend { process, lease_ms } => {
                let asked = Asked { session: asker.session, request };
                let lease = (lease_ms.get(), now_ns);
                let pending = processes.suspend(asker, asked, process, lease, &mut context)?;
                if let Some(pending) = pending {
                    self.clients.pending.push(pending);
                    return Ok(Answer::Nothing);
                }
            }
            Request::Resume { process } => {
                let key = processes.resolve(asker, process, &mut context)?.key;
                let was_suspended = processes.resume(key, &mut context);
                self.settle_queue_suspensions(now_ns);
                if !was_suspended {
                    // Its devices may have it stopped all the same; the answer comes later.
                    self.hardware.begin(Asked { session: asker.session, request }, key)?;
                    return Ok(Answer::Nothing);
                }
            }
            Request::ResumeAll => {
                processes.resume_all(asker.caller, &mut context);
                self.settle_queue_suspensions(now_ns);
            }
            Request::Detach { process } => processes.detach(asker, process, &mut context)?,
            Request::PolicyRead => {
                let settings = policy_settings::to_wire(self.devices.scheduler().config());
                return Ok(Reply::Policy(settings).into());
            }
            Request::PolicySet(settings) => return self.set_policy(asker, &settings, now_ns),
            Request::Snapshot => {
                return Ok(Answer::Snapshot(self.snapshot(now_ns).to_json().into()));
            }
            Request::Follow => self.follow(asker, request, None)?,
            Request::Trace { seconds } => {
                let time = Duration::from_millis(1_000).times(u64::from(seconds.get()));
                self.follow(asker, request, Some(time))?;
            }
            Request::OpenPage => {
                let page = self.clients.open_page(asker.session, instant(now_ns))?;
                return Ok(page.map_or(Answer::Nothing, Answer::Page));
            }
            Request::Wake => {
                self.clients.wake_page(asker.session);
                return Ok(Answer::Nothing);
            }
        }
        Ok(Reply::Ok.into())
    }

    /// Answers those requests that name queues.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are answered by the caller")]
    fn answer_about_queues(
        &mut self,
        asker: Asker,
        body: Request,
        now_ns: u64,
    ) -> Result<Answer, RequestError> {
        let (devices, table) = (&mut self.devices, &self.processes.roster);
        match body {
            Request::ListQueues { after } => {
                return Ok(Reply::Queues(devices.list_queues(table, asker, after)).into());
            }
            Request::ReadQueue { queue } => {
                return Ok(Reply::Queues(devices.read_queue(table, asker, queue)?).into());
            }
            Request::SuspendQueues(QueueStop { queues, grace_us, lease_ms, depth }) => {
                let asked = Suspension { queues, grace_us, lease_ms, depth };
                devices.suspend_queues((table, &self.guard), asker, &asked, now_ns)?;
                let (count, uid) = (asked.queues.as_slice().len(), asker.caller.uid());
                let log = &mut self.telemetry.log;
                log.debug(format_args!("uid {uid} suspends {count} queues for {lease_ms} ms"));
                self.settle_queue_suspensions(now_ns);
            }
            Request::ResumeQueues { queues } => {
                devices.resume_queues(table, asker, &queues)?;
                self.settle_queue_suspensions(now_ns);
            }
            Request::SetQueue { queue, priority } => {
                let default_priority = self.processes.rules.default_priority();
                devices.set_queue(table, asker, (queue, priority), default_priority)?;
            }
            _ => {}
        }
        Ok(Reply::Ok.into())
    }

    fn set_policy(
        &mut self,
        asker: Asker,
        settings: &PolicySettings,
        now_ns: u64,
    ) -> Result<Answer, RequestError> {
        asker.caller.check_policy()?;
        let config = self.devices.change_policy(settings)?;
        let uid = asker.caller.uid();
        self.telemetry.log.info(format_args!("uid {uid} changed the policy"));
        self.telemetry.policy_event(now_ns, config.policy);
        Ok(Reply::Policy(policy_settings::to_wire(&config)).into())
    }

    fn follow(
        &mut self,
        asker: Asker,
        request: u64,
        time: Option<Duration>,
    ) -> Result<(), RequestError> {
        self.telemetry.send_pending_events(&mut self.clients.sessions, &self.poller);
        let now = instant(monotonic_ns());
        let follower = Follower { request, until: time.map(|time| now + time) };
        self.clients.follow(asker.session, follower)?;
        // From now on the backends record what passes through them, and names are known.
        self.telemetry.is_followed = true;
        self.devices.backends.is_followed = true;
        drop(self.telemetry.events.update(self.devices.scheduler().queues()));
        Ok(())
    }
}

/// How much a request makes us do.
const fn work_of(request: &Request) -> Work {
    match request {
        Request::Ping | Request::Wake => Work::Word,
        Request::Hello { .. }
        | Request::PolicyRead
        | Request::OpenPage
        | Request::ReadQueue { .. } => Work::Answer,
        Request::Register { .. }
        | Request::Set { .. }
        | Request::Suspend { .. }
        | Request::Resume { .. }
        | Request::ResumeAll
        | Request::Detach { .. } => Work::Order,
        Request::PolicySet(_)
        | Request::Follow
        | Request::Trace { .. }
        | Request::ListQueues { .. }
        | Request::SuspendQueues(_)
        | Request::ResumeQueues { .. }
        | Request::SetQueue { .. } => Work::Process,
        Request::Snapshot => Work::Overview,
    }
}

fn refused(code: RefusalCode, error: &SnapshotError) -> Reply {
    Reply::Refused(Refusal::new(code, &error.to_string()))
}
