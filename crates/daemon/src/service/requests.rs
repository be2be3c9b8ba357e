//! What clients ask for, and what they get.

mod change;
mod queues;

pub(super) use change::drives_display;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use gpreempt_core::event::Event;
use gpreempt_core::time::Duration;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::hint_page::SLOTS;
use gpreempt_wire::message::Message;
use gpreempt_wire::process::Process;
use gpreempt_wire::refusal::RefusalCode;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{Offence, SnapshotError};

use super::allowance::Work;
use super::hints::Page;
use super::permission::Caller;
use super::refused::Refused;
use super::sessions::{AT_ONCE_MAX, Follower};
use super::{Service, instant, policy};

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
struct Asker {
    session: u64,
    caller: Caller,
    process: Option<ProcessKey>,
}

impl Service {
    /// A session can be read from or written to.
    pub(super) fn serve_session(&mut self, id: u64, now_ns: u64) {
        self.sessions.flush(id, &self.poller, &mut self.log);
        for _ in 0..AT_ONCE_MAX {
            // What is left makes it ready again.
            if self.allowance.is_spent() {
                return;
            }
            let message = self.sessions.receive(id, instant(now_ns), &mut self.log);
            let Some(message) = message else { return };
            self.allowance.take(work_of(&message.body));
            self.serve_message(id, message, now_ns);
        }
    }

    fn serve_message(&mut self, id: u64, message: Message<Request>, now_ns: u64) {
        let Message { request, body } = message;
        let Some(session) = self.sessions.get_mut(id) else { return };
        let caller = Caller::new(session.peer(), self.own_uid, &self.accounts);
        let asker = Asker { session: id, caller, process: session.process };
        let is_order = work_of(&body) == Work::Order;
        let answer = match self.answer(asker, request, body, now_ns) {
            Ok(answer) => answer,
            Err(refused) => Reply::Refused(refused.to_wire()).into(),
        };
        // Whoever is told that it is done may rely on that, whatever happens to us next.
        if is_order {
            self.keep_orders();
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        let connection = session.connection();
        let sent = match answer {
            Answer::Nothing => return,
            Answer::Reply(reply) => connection.send(request, *reply),
            Answer::Page(file) => {
                connection.send_page(request, u32::try_from(SLOTS).unwrap_or(0), file)
            }
            Answer::Snapshot(text) => match connection.send_snapshot(request, text) {
                Ok(()) => Ok(()),
                Err(SnapshotError::Offence(offence)) => Err(offence),
                Err(error @ SnapshotError::Busy) => {
                    refuse(connection, request, RefusalCode::Busy, &error.to_string())
                }
                Err(error @ SnapshotError::TooLong) => {
                    refuse(connection, request, RefusalCode::Limit, &error.to_string())
                }
            },
        };
        self.sessions.sent(id, sent, &self.poller, &mut self.log);
    }

    fn answer(
        &mut self,
        asker: Asker,
        request: u64,
        body: Request,
        now_ns: u64,
    ) -> Result<Answer, Refused> {
        let caller = asker.caller;
        match body {
            Request::ListQueues { .. }
            | Request::ReadQueue { .. }
            | Request::SuspendQueues { .. }
            | Request::ResumeQueues { .. }
            | Request::SetQueue { .. } => return self.answer_about_queues(asker, body, now_ns),
            Request::Hello { role, program } => {
                let uid = caller.uid();
                self.log.debug(format_args!("{program} of uid {uid} says hello ({role:?})"));
            }
            Request::Ping => {}
            Request::Register { process, change } => self.register(asker, process, change)?,
            Request::Set { process, change } => self.set(asker, process, change)?,
            Request::Suspend { process, lease_ms } => {
                self.suspend(asker, process, lease_ms.get(), now_ns)?;
            }
            Request::Resume { process } => self.resume(asker, process, now_ns)?,
            Request::ResumeAll => self.resume_everything(caller, now_ns),
            Request::Detach { process } => self.detach(asker, process)?,
            Request::PolicyRead => {
                let settings = policy::to_wire(self.driver.scheduler().config());
                return Ok(Reply::Policy(settings).into());
            }
            Request::PolicySet(settings) => {
                caller.check_policy()?;
                let bad = |sentence: String| Refused::new(RefusalCode::BadSetting, sentence);
                let scheduler = self.driver.scheduler();
                let config = policy::changed(scheduler.config(), &settings).map_err(bad)?;
                let now = self.driver.now();
                let set = self.driver.scheduler_mut().set_config(now, config);
                set.map_err(|error| bad(error.to_string()))?;
                self.log.info(format_args!("uid {} changed the policy", caller.uid()));
                self.tell_of_policy(now_ns);
                return Ok(Reply::Policy(policy::to_wire(&config)).into());
            }
            Request::Snapshot => {
                return Ok(Answer::Snapshot(self.snapshot(now_ns).to_json().into()));
            }
            Request::Follow => self.follow(asker, request, None)?,
            Request::Trace { seconds } => {
                self.follow(
                    asker,
                    request,
                    Some(Duration::from_millis(1_000).times(u64::from(seconds.get()))),
                )?;
            }
            Request::HintBegin { process, deadline_us } => {
                let task = self.hint(asker, process, EventKind::HintBegin, deadline_us)?;
                let deadline = Some(Duration::from_micros(deadline_us));
                let deadline = deadline.filter(|deadline| !deadline.is_zero());
                self.backends.say(Event::HintBegin { task, deadline });
            }
            Request::HintEnd { process } => {
                let task = self.hint(asker, process, EventKind::HintEnd, 0)?;
                self.backends.say(Event::HintEnd { task });
            }
            Request::OpenPage => return self.open_page(asker, now_ns),
            Request::Wake => {
                if let Some(session) = self.sessions.get_mut(asker.session)
                    && let Some(page) = &mut session.page
                {
                    page.wake();
                }
                return Ok(Answer::Nothing);
            }
        }
        Ok(Reply::Ok.into())
    }

    /// The process that is meant, if it lives and the caller may touch it.
    fn resolve(&mut self, asker: Asker, process: Process) -> Result<ProcessInfo, Refused> {
        let gone = |sentence: String| Refused::new(RefusalCode::NoSuchProcess, sentence);
        let (pid, start_ticks) = if process == Process::SENDER {
            let sender = asker.process.ok_or_else(|| gone("the sender has ended".to_owned()))?;
            (sender.pid, sender.start_ticks)
        } else {
            (process.pid(), process.start_ticks())
        };
        let info = ProcessInfo::read(pid).map_err(|error| gone(error.to_string()))?;
        if info.zombie || (start_ticks != 0 && info.key.start_ticks != start_ticks) {
            return Err(gone(format!("process {pid} is not the one it was, or has ended")));
        }
        asker.caller.check_touch(pid, info.uid)?;
        self.look_into_now(info.key);
        Ok(info)
    }

    fn follow(
        &mut self,
        asker: Asker,
        request: u64,
        time: Option<Duration>,
    ) -> Result<(), Refused> {
        self.tell_the_untold();
        let now = instant(monotonic_ns());
        let Some(session) = self.sessions.get_mut(asker.session) else { return Ok(()) };
        if session.follower.is_some() {
            let sentence = "this session follows already; open another one";
            return Err(Refused::new(RefusalCode::Busy, sentence));
        }
        session.follower = Some(Follower { request, until: time.map(|time| now + time) });
        // From now on what passes through is kept, and names are known.
        self.backends.is_followed = true;
        drop(self.chronicle.look(self.driver.scheduler().queues()));
        Ok(())
    }

    fn hint(
        &mut self,
        asker: Asker,
        process: Process,
        kind: EventKind,
        deadline_us: u64,
    ) -> Result<gpreempt_core::id::TaskId, Refused> {
        let key = self.resolve(asker, process)?.key;
        let in_force = self.roster.get(key).and_then(|member| member.in_force);
        let Some(in_force) = in_force else {
            let sentence = format!("process {key} is not scheduled, so its hints mean nothing");
            return Err(Refused::new(RefusalCode::NotControlled, sentence));
        };
        self.tell_of(key, kind, deadline_us.saturating_mul(1_000));
        Ok(in_force.task)
    }

    fn open_page(&mut self, asker: Asker, now_ns: u64) -> Result<Answer, Refused> {
        let Some(session) = self.sessions.get_mut(asker.session) else {
            return Ok(Answer::Nothing);
        };
        if session.page.is_some() {
            let sentence = "this session has a page already";
            return Err(Refused::new(RefusalCode::Busy, sentence));
        }
        let (page, file) = Page::new(instant(now_ns))
            .map_err(|error| Refused::new(RefusalCode::Limit, error.to_string()))?;
        session.page = Some(page);
        Ok(Answer::Page(file))
    }
}

/// How much a request makes us do.
const fn work_of(request: &Request) -> Work {
    match request {
        Request::Ping | Request::Wake => Work::Word,
        Request::Hello { .. }
        | Request::PolicyRead
        | Request::HintBegin { .. }
        | Request::HintEnd { .. }
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
        | Request::SuspendQueues { .. }
        | Request::ResumeQueues { .. }
        | Request::SetQueue { .. } => Work::Process,
        Request::Snapshot => Work::Overview,
    }
}

fn refuse(
    connection: &mut gpreempt_wire::server::Connection,
    request: u64,
    code: RefusalCode,
    sentence: &str,
) -> Result<(), Offence> {
    connection.send(request, Reply::Refused(Refused::new(code, sentence).to_wire()))
}
