//! Clients: the socket, their sessions, and the requests they send.
//!
//! A request is checked for permission, carried out by [`processes`](super::processes) or
//! [`devices`](super::devices), and answered here. No request may keep the loop waiting: an answer
//! that depends on a device is sent later, by [`pending_answers`].

pub(crate) mod hint_pages;
pub(crate) mod parked_requests;
pub(crate) mod pending_answers;
pub(crate) mod permission;
pub(crate) mod request_error;
pub(crate) mod sessions;
pub(crate) mod users;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::hint_page::SLOTS;
use gpreempt_wire::message::Message;
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::process::Process;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::Request;
use gpreempt_wire::server::SnapshotError;

use super::devices::policy_settings;
use super::poller::Poller;
use super::work_budget::Work;
use super::{Service, instant};
use crate::accounts::Accounts;
use hint_pages::HintPage;
use parked_requests::ParkedRequest;
use pending_answers::{PENDING_MAX, PendingSuspension, RequestRef};
use permission::{Caller, Operation, Target};
use request_error::RequestError;
use sessions::{Follower, ListenError, Sessions};

#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) sessions: Sessions,
    /// Suspensions whose clients wait for an answer.
    pub(crate) pending: Vec<PendingSuspension>,
    /// Requests that wait until a process has been inspected.
    pub(crate) parked: Vec<ParkedRequest>,
    socket: PathBuf,
    /// The user that runs the daemon.
    own_uid: u32,
}

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

/// The sender of a request: its session, its rights, its process.
#[derive(Clone, Copy)]
pub(crate) struct Requester {
    pub(crate) session: u64,
    pub(crate) caller: Caller,
    pub(crate) process: Option<ProcessKey>,
}

impl Clients {
    /// Listens. Refuses if another daemon does.
    pub(crate) fn listen(socket: PathBuf, poller: &Poller) -> Result<Self, ListenError> {
        let own_uid = rustix::process::geteuid().as_raw();
        let sessions = Sessions::listen(&socket, own_uid, poller)?;
        Ok(Self { sessions, pending: Vec::new(), parked: Vec::new(), socket, own_uid })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Listens again if the socket file was removed. Returns whether it was.
    pub(crate) fn keep_listening(&mut self, poller: &Poller) -> Result<bool, ListenError> {
        self.sessions.keep_listening(&self.socket, poller)
    }

    fn requester(&mut self, session: u64, accounts: &Accounts) -> Option<Requester> {
        let known = self.sessions.get_mut(session)?;
        let caller = Caller::new(known.peer(), self.own_uid, accounts);
        Some(Requester { session, caller, process: known.process() })
    }

    /// Whether a user waits for as many suspensions as it may.
    fn has_all_pending(&self, uid: u32) -> bool {
        let is_own = |session| self.sessions.uid_of(session) == Some(uid);
        let own = self.pending.iter().filter(|pending| is_own(pending.asked.session));
        own.count() >= PENDING_MAX && !self.sessions.users.is_trusted(uid)
    }

    fn follow(&mut self, session: u64, follower: Follower) -> Result<(), RequestError> {
        let Some(known) = self.sessions.get_mut(session) else { return Ok(()) };
        if known.follower.is_some() {
            return Err(RequestError::FollowsAlready);
        }
        let uid = known.peer().uid;
        if self.sessions.has_all_followers(uid) {
            return Err(RequestError::TooManyFollowers(uid));
        }
        if let Some(known) = self.sessions.get_mut(session) {
            known.follower = Some(follower);
        }
        Ok(())
    }

    /// Makes a hint page for a session. `None` if the session has been closed.
    fn open_page(
        &mut self,
        requester: Requester,
        now: Instant,
    ) -> Result<Option<OwnedFd>, RequestError> {
        let Some(session) = self.sessions.get_mut(requester.session) else { return Ok(None) };
        let client = session.client.as_ref().filter(|client| client.lives());
        let client = client.ok_or(RequestError::SenderEnded)?;
        let target = Target::undecided(client.key, client.uid, Priority::MAX);
        requester.caller.check(Operation::Hint, &target)?;
        if session.page.is_some() {
            return Err(RequestError::HasHintPage);
        }
        let (page, file) = HintPage::new(now)?;
        session.page = Some(page);
        Ok(Some(file))
    }

    /// The process of a session wrote into its hint page.
    fn wake_page(&mut self, session: u64) {
        if let Some(session) = self.sessions.get_mut(session)
            && let Some(page) = &mut session.page
        {
            page.wake();
        }
    }
}

impl Service {
    /// Serves ready sessions, each user in turn, until the work budget of the iteration is spent.
    /// Unread messages keep the other sessions ready for the next iteration.
    pub(crate) fn serve_sessions(&mut self, ready: Vec<u64>) {
        let mut order = self.clients.sessions.order(ready, &self.poller);
        while !self.budget.is_spent()
            && let Some((uid, id)) = order.next()
        {
            let begun_ns = monotonic_ns();
            self.clients.sessions.users.note_served(uid, id);
            if self.serve_session(id, begun_ns) {
                order.again(uid, id);
            }
            let took = Duration::from_nanos(monotonic_ns().saturating_sub(begun_ns));
            self.clients.sessions.users.charge(uid, took);
        }
    }

    /// Sends what a session waits for, and serves one message. False if there was none.
    fn serve_session(&mut self, id: u64, now_ns: u64) -> bool {
        if self.clients.sessions.is_waiting(id) {
            return false;
        }
        let (log, poller) = (&mut self.telemetry.log, &self.poller);
        self.clients.sessions.flush(id, poller, log);
        let message = self.clients.sessions.receive(id, instant(now_ns), poller, log);
        let Some(message) = message else { return false };
        self.budget.take(work_of(&message.body));
        self.serve_message(id, message, now_ns);
        true
    }

    pub(crate) fn serve_message(&mut self, id: u64, message: Message<Request>, now_ns: u64) {
        let Message { request, body } = message;
        let accounts = &self.processes.rules.accounts;
        let Some(requester) = self.clients.requester(id, accounts) else { return };
        let is_change = work_of(&body) == Work::Change;
        let answer = match self.answer_or_park(requester, request, body, now_ns) {
            Ok(answer) => answer,
            Err(error) => Reply::Refused(error.to_wire()).into(),
        };
        // Saved before the answer: a setting that was confirmed survives a crash of the daemon.
        if is_change {
            self.processes.save_settings(&mut self.telemetry);
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

    fn answer_or_park(
        &mut self,
        requester: Requester,
        request: u64,
        body: Request,
        now_ns: u64,
    ) -> Result<Answer, RequestError> {
        match self.answer(requester, request, body.clone(), now_ns) {
            Err(RequestError::NotRead(unread)) => {
                self.park(requester, Message { request, body }, unread, now_ns)?;
                Ok(Answer::Nothing)
            }
            result => result,
        }
    }

    fn answer(
        &mut self,
        requester: Requester,
        request: u64,
        body: Request,
        now_ns: u64,
    ) -> Result<Answer, RequestError> {
        let request_ref = RequestRef { session: requester.session, request };
        let uid = requester.caller.uid();
        if matches!(body, Request::Suspend { .. }) && self.clients.has_all_pending(uid) {
            return Err(RequestError::TooManyPending(uid));
        }
        let (processes, mut context) = self.processes_and_context();
        match body {
            Request::ListQueues { .. }
            | Request::ReadQueue { .. }
            | Request::SuspendQueues(_)
            | Request::ResumeQueues { .. }
            | Request::SetQueue { .. } => return self.answer_about_queues(requester, body, now_ns),
            Request::Hello { role, program } => {
                let log = &mut self.telemetry.log;
                log.debug(format_args!("{program} of uid {uid} connected ({role:?})"));
            }
            Request::Ping => {}
            Request::Register { process, change } => {
                processes.register(requester, process, change, &mut context)?;
            }
            Request::Set { process, change } => {
                processes.set(requester, process, change, &mut context)?;
            }
            Request::Suspend { process, lease_ms } => {
                let (by, lease) = ((requester, request_ref), (lease_ms.get(), now_ns));
                if let Some(pending) = processes.suspend(by, process, lease, &mut context)? {
                    self.clients.pending.push(pending);
                    return Ok(Answer::Nothing);
                }
            }
            Request::Resume { process } => {
                let is_late = self.resume((requester, request_ref), process, now_ns)?;
                return Ok(ok_unless(is_late));
            }
            Request::ResumeAll => {
                processes.resume_all(requester.caller, &mut context);
                self.memory.end_asked(requester.caller, &self.processes);
                self.settle_queue_suspensions(now_ns);
            }
            Request::Detach { .. }
            | Request::Evict { .. }
            | Request::Restore { .. }
            | Request::MakeRoom { .. } => {
                let by = (requester, request_ref);
                return Ok(ok_unless(self.answer_about_memory(by, &body, now_ns)?));
            }
            Request::PolicyRead => {
                let settings = policy_settings::to_wire(self.devices.scheduler().config());
                return Ok(Reply::Policy(settings).into());
            }
            Request::PolicySet(settings) => return self.set_policy(requester, &settings, now_ns),
            Request::Snapshot => {
                return Ok(Answer::Snapshot(self.snapshot(now_ns).to_json().into()));
            }
            Request::Follow => self.follow(request_ref, None)?,
            Request::Trace { seconds } => {
                let time = Duration::from_millis(1_000).times(u64::from(seconds.get()));
                self.follow(request_ref, Some(time))?;
            }
            Request::OpenPage => {
                let page = self.clients.open_page(requester, instant(now_ns))?;
                return Ok(page.map_or(Answer::Nothing, Answer::Page));
            }
            Request::Wake => {
                self.clients.wake_page(requester.session);
                return Ok(Answer::Nothing);
            }
        }
        Ok(Reply::Ok.into())
    }

    /// Returns whether the client is answered later.
    fn resume(
        &mut self,
        (requester, asked): (Requester, RequestRef),
        process: Process,
        now_ns: u64,
    ) -> Result<bool, RequestError> {
        let (processes, mut context) = self.processes_and_context();
        let (key, was_suspended) = processes.resume(requester, process, &mut context)?;
        self.settle_queue_suspensions(now_ns);
        if !was_suspended {
            // A device may have stopped it nevertheless; the answer is sent later.
            let uid = requester.caller.uid();
            self.hardware.begin(asked, (uid, self.reads.is_trusted(uid)), key)?;
        }
        Ok(!was_suspended)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the caller answers the other requests")]
    fn answer_about_queues(
        &mut self,
        requester: Requester,
        body: Request,
        now_ns: u64,
    ) -> Result<Answer, RequestError> {
        let (devices, table) = (&mut self.devices, &self.processes.table);
        match body {
            Request::ListQueues { after } => {
                return Ok(Reply::Queues(devices.list_queues(table, requester, after)).into());
            }
            Request::ReadQueue { queue } => {
                return Ok(Reply::Queues(devices.read_queue(table, requester, queue)?).into());
            }
            Request::SuspendQueues(stop) => {
                let known = (table, &self.recovery, &self.facts);
                devices.suspend_queues(known, requester, &stop, now_ns)?;
                let (count, uid) = (stop.queues.as_slice().len(), requester.caller.uid());
                let (log, lease_ms) = (&mut self.telemetry.log, stop.lease_ms);
                log.debug(format_args!("uid {uid} suspends {count} queues for {lease_ms} ms"));
                self.settle_queue_suspensions(now_ns);
            }
            Request::ResumeQueues { queues } => {
                devices.resume_queues(table, requester, &queues)?;
                self.settle_queue_suspensions(now_ns);
            }
            Request::SetQueue { queue, priority } => {
                let default_priority = self.processes.rules.default_priority();
                devices.set_queue(table, requester, (queue, priority), default_priority)?;
            }
            _ => {}
        }
        Ok(Reply::Ok.into())
    }

    fn set_policy(
        &mut self,
        requester: Requester,
        settings: &PolicySettings,
        now_ns: u64,
    ) -> Result<Answer, RequestError> {
        requester.caller.check_policy()?;
        let config = self.devices.change_policy(settings)?;
        let uid = requester.caller.uid();
        self.telemetry.log.info(format_args!("uid {uid} changed the policy"));
        self.telemetry.policy_event(now_ns, config.policy);
        Ok(Reply::Policy(policy_settings::to_wire(&config)).into())
    }

    fn follow(&mut self, asked: RequestRef, time: Option<Duration>) -> Result<(), RequestError> {
        self.telemetry.send_pending_events(&mut self.clients.sessions, &self.poller);
        let now = instant(monotonic_ns());
        let follower = Follower { request: asked.request, until: time.map(|time| now + time) };
        self.clients.follow(asked.session, follower)?;
        // From here on the backends record events, and the names of queues are kept for them.
        self.telemetry.is_followed = true;
        self.devices.backends.is_followed = true;
        drop(self.telemetry.events.update(self.devices.scheduler().queues()));
        Ok(())
    }
}

/// The answer to a request that was carried out, unless it is sent later.
fn ok_unless(is_late: bool) -> Answer {
    if is_late { Answer::Nothing } else { Reply::Ok.into() }
}

/// What a request costs in the work budget of an iteration.
pub(crate) const fn work_of(request: &Request) -> Work {
    match request {
        Request::Ping | Request::Wake => Work::Message,
        Request::Hello { .. }
        | Request::PolicyRead
        | Request::OpenPage
        | Request::ReadQueue { .. } => Work::Answer,
        Request::Register { .. }
        | Request::Set { .. }
        | Request::Suspend { .. }
        | Request::Resume { .. }
        | Request::ResumeAll
        | Request::Detach { .. }
        | Request::Evict { .. }
        | Request::Restore { .. }
        | Request::MakeRoom { .. } => Work::Change,
        Request::PolicySet(_)
        | Request::Follow
        | Request::Trace { .. }
        | Request::ListQueues { .. }
        | Request::SuspendQueues(_)
        | Request::ResumeQueues { .. }
        | Request::SetQueue { .. } => Work::Process,
        Request::Snapshot => Work::Snapshot,
    }
}

fn refused(code: RefusalCode, error: &SnapshotError) -> Reply {
    Reply::Refused(Refusal::new(code, &error.to_string()))
}
