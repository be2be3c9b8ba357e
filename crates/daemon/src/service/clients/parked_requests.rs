//! Requests that wait until a thread has read what they need of a process.
//!
//! Such a request has changed nothing yet. It is served again from the beginning when the answer is
//! there, with every check, because anything may have changed meanwhile. Its session is not read
//! until then, so the requests of a session are served in order.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_wire::message::Message;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;

use super::pending_answers::RequestRef;
use super::request_error::RequestError;
use super::{Requester, work_of};
use crate::service::background_reads::READ_TIME_MAX;
use crate::service::processes::inspection::{KnownFacts, Question, Unread};
use crate::service::{Service, instant};

/// Requests of one user that may wait at once.
pub(crate) const PARKED_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct ParkedRequest {
    session: u64,
    uid: u32,
    message: Message<Request>,
    unread: Unread,
    /// The number of its own read, if it has one.
    read_id: Option<u64>,
    until: Instant,
}

impl Service {
    /// Keeps a request until what it needs has been read.
    pub(crate) fn park(
        &mut self,
        requester: Requester,
        message: Message<Request>,
        unread: Unread,
        now_ns: u64,
    ) -> Result<(), RequestError> {
        let (session, uid, now) = (requester.session, requester.caller.uid(), instant(now_ns));
        let own = self.clients.parked.iter().filter(|parked| parked.uid == uid);
        if own.count() >= PARKED_MAX && !self.reads.is_trusted(uid) {
            return Err(RequestError::TooManyParked(uid));
        }
        let read_id = match &unread.0 {
            Question::Rules(key) => {
                let key = *key;
                let (processes, mut context) = self.processes_and_context();
                processes.hurry_inspection(key, uid, now, &mut context);
                None
            }
            question @ (Question::Facts(_) | Question::Claimant(_)) => {
                Some(self.reads.ask(uid, question.clone(), now))
            }
        };
        if let Some(session) = self.clients.sessions.get_mut(session) {
            session.is_waiting = true;
        }
        let until = now + READ_TIME_MAX;
        self.clients.parked.push(ParkedRequest { session, uid, message, unread, read_id, until });
        Ok(())
    }

    /// Serves the requests whose processes have been inspected, or are late.
    pub(crate) fn serve_parked(&mut self) {
        let now = instant(monotonic_ns());
        let processes = &self.processes;
        let is_over = |parked: &mut ParkedRequest| match &parked.unread.0 {
            Question::Rules(key) => !processes.awaits(*key) || parked.until <= now,
            Question::Facts(_) | Question::Claimant(_) => false,
        };
        let over: Vec<ParkedRequest> = self.clients.parked.extract_if(.., is_over).collect();
        for parked in over {
            let Question::Rules(key) = parked.unread.0 else { continue };
            if self.processes.awaits(key) {
                self.refuse(parked);
            } else {
                self.serve_again(parked, KnownFacts::default());
            }
        }
    }

    /// Serves the request for which that was read.
    pub(crate) fn serve_with(&mut self, read_id: u64, facts: KnownFacts) {
        if let Some(parked) = self.take_parked(read_id) {
            self.serve_again(parked, facts);
        }
    }

    /// The read with that number is late.
    pub(crate) fn refuse_parked(&mut self, read_id: u64) {
        if let Some(parked) = self.take_parked(read_id) {
            self.reads.forget(read_id);
            self.refuse(parked);
        }
    }

    fn take_parked(&mut self, read_id: u64) -> Option<ParkedRequest> {
        let parked = &mut self.clients.parked;
        let at = parked.iter().position(|parked| parked.read_id == Some(read_id))?;
        Some(parked.remove(at))
    }

    fn serve_again(&mut self, parked: ParkedRequest, facts: KnownFacts) {
        let ParkedRequest { session, uid, message, .. } = parked;
        let begun_ns = monotonic_ns();
        self.set_waiting(session, false);
        self.budget.take(work_of(&message.body));
        self.facts = facts;
        self.serve_message(session, message, begun_ns);
        self.facts = KnownFacts::default();
        let took = Duration::from_nanos(monotonic_ns().saturating_sub(begun_ns));
        self.clients.sessions.users.charge(uid, took);
        self.clients.sessions.end_wait(session, &self.poller, &mut self.telemetry.log);
    }

    fn refuse(&mut self, parked: ParkedRequest) {
        let ParkedRequest { session, message, unread, .. } = parked;
        self.set_waiting(session, false);
        let refusal = RequestError::NotRead(unread).to_wire();
        self.reply(RequestRef { session, request: message.request }, Reply::Refused(refusal));
        self.clients.sessions.end_wait(session, &self.poller, &mut self.telemetry.log);
    }

    fn set_waiting(&mut self, session: u64, is_waiting: bool) {
        if let Some(session) = self.clients.sessions.get_mut(session) {
            session.is_waiting = is_waiting;
        }
    }
}
