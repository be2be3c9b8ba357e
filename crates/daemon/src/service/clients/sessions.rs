//! Who is connected.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use gpreempt_core::id::TaskId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_wire::event::Event;
use gpreempt_wire::message::Message;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{Accepted, BindError, CloseReason, Connection, Limits, Listener, Peer};

use crate::service::clients::hint_page::Page;
use crate::service::poller::{Poller, Source};
use crate::service::telemetry::log::Log;

/// How many may be connected.
const SESSIONS_MAX: usize = 512;
/// How many of those are kept free for root, who may have to look after the others.
const FOR_ROOT: usize = 64;
/// How many of one user.
const PER_USER_MAX: usize = 256;
/// How many are let in, and how many messages of each are taken, in one turn of the loop.
pub(crate) const AT_ONCE_MAX: usize = 32;
/// How long somebody may be connected without saying hello.
const HELLO_MAX: Duration = Duration::from_millis(5_000);

/// Why the daemon does not listen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The socket cannot be added to the epoll set.
    #[error(transparent)]
    Watch(#[from] io::Error),
}

/// Somebody who wants to be told what happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follower {
    pub(crate) request: u64,
    /// When a trace is over; none for who follows without end.
    pub(crate) until: Option<Instant>,
}

/// One client.
#[derive(Debug)]
pub(crate) struct Session {
    connection: Connection,
    /// The process at the other end, as it was when it connected.
    pub(crate) process: Option<ProcessKey>,
    pub(crate) follower: Option<Follower>,
    pub(crate) page: Option<Page>,
    /// The task whose page says that a request is on its way.
    pub(crate) hinted: Option<TaskId>,
    since: Instant,
    is_watched_for_writing: bool,
}

impl Session {
    pub(crate) const fn peer(&self) -> Peer {
        self.connection.peer()
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

/// The socket, and everybody who is connected.
#[derive(Debug)]
pub(crate) struct Sessions {
    listener: Option<Listener>,
    known: BTreeMap<u64, Session>,
    last: u64,
    /// Tasks whose hints ended with their session.
    orphans: Vec<TaskId>,
    /// Sessions that were closed.
    left: Vec<u64>,
}

impl Sessions {
    /// Listens. Refuses if another daemon does.
    pub(crate) fn listen(path: &Path, poller: &Poller) -> Result<Self, ListenError> {
        let listener = Listener::bind(path)?;
        poller.watch(&listener, Source::Clients)?;
        let known = BTreeMap::new();
        Ok(Self { listener: Some(listener), known, last: 0, orphans: Vec::new(), left: Vec::new() })
    }

    /// Listens again if somebody removed the socket. True if that was so.
    pub(crate) fn keep_listening(
        &mut self,
        path: &Path,
        poller: &Poller,
    ) -> Result<bool, ListenError> {
        if self.listener.as_ref().is_some_and(Listener::is_in_place) {
            return Ok(false);
        }
        // It has the lock, so it goes before another comes.
        self.listener = None;
        let listener = Listener::bind(path)?;
        poller.watch(&listener, Source::Clients)?;
        self.listener = Some(listener);
        Ok(true)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        self.known.get_mut(&id)
    }

    /// Lets in who waits at the door.
    pub(crate) fn accept(&mut self, now: Instant, poller: &Poller, log: &mut Log) {
        for _ in 0..AT_ONCE_MAX {
            let Some(listener) = &mut self.listener else { return };
            match listener.accept(Limits::default(), now) {
                Ok(Accepted::Client(connection)) => self.admit(connection, now, poller, log),
                Ok(Accepted::TurnedAway(error)) => log.warn(format_args!(
                    "a client was turned away: {error}; if this goes on, raise LimitNOFILE"
                )),
                Ok(Accepted::NoClient) => return,
                Err(error) => {
                    log.error(format_args!("the socket is broken ({error}); it is made again"));
                    self.listener = None;
                }
            }
        }
    }

    fn admit(&mut self, connection: Connection, now: Instant, poller: &Poller, log: &mut Log) {
        let peer = connection.peer();
        let own = self.known.values().filter(|session| session.peer().uid == peer.uid).count();
        let places = if peer.uid == 0 { SESSIONS_MAX } else { SESSIONS_MAX - FOR_ROOT };
        let is_full = self.known.len() >= places || (own >= PER_USER_MAX && peer.uid != 0);
        let id = self.last + 1;
        let watched = poller.watch(&connection, Source::Session(id));
        if is_full || watched.is_err() {
            let mut connection = connection;
            let sentence = "gpreemptd has too many sessions; end some of them";
            let refusal = Refusal::new(RefusalCode::Limit, sentence);
            let _ = connection.send(0, Reply::Refused(refusal));
            log.warn(format_args!("process {} was turned away: too many sessions", peer.pid));
            return;
        }
        self.last = id;
        let session = Session {
            connection,
            process: ProcessInfo::read(peer.pid).ok().map(|info| info.key),
            follower: None,
            page: None,
            hinted: None,
            since: now,
            is_watched_for_writing: false,
        };
        self.known.insert(id, session);
    }

    /// The next message of a session, if there is one.
    pub(crate) fn receive(
        &mut self,
        id: u64,
        now: Instant,
        log: &mut Log,
    ) -> Option<Message<Request>> {
        match self.known.get_mut(&id)?.connection.recv(now) {
            Ok(message) => message,
            Err(offence) => {
                self.close(id, &offence, log);
                None
            }
        }
    }

    /// Takes note of what became of something that was sent.
    pub(crate) fn sent(
        &mut self,
        id: u64,
        result: Result<(), CloseReason>,
        poller: &Poller,
        log: &mut Log,
    ) {
        match result {
            Ok(()) => self.watch_writing(id, poller),
            Err(offence) => self.close(id, &offence, log),
        }
    }

    pub(crate) fn send(
        &mut self,
        id: u64,
        request: u64,
        reply: Reply,
        poller: &Poller,
        log: &mut Log,
    ) {
        if let Some(session) = self.known.get_mut(&id) {
            let result = session.connection.send(request, reply);
            self.sent(id, result, poller, log);
        }
    }

    /// Sends what waited for room.
    pub(crate) fn flush(&mut self, id: u64, poller: &Poller, log: &mut Log) {
        if let Some(session) = self.known.get_mut(&id)
            && session.connection.wants_write()
        {
            let result = session.connection.flush();
            self.sent(id, result, poller, log);
        }
    }

    fn watch_writing(&mut self, id: u64, poller: &Poller) {
        let Some(session) = self.known.get_mut(&id) else { return };
        let wanted = session.connection.wants_write();
        if wanted != session.is_watched_for_writing {
            session.is_watched_for_writing = wanted;
            poller.watch_writing(session.connection.as_fd(), Source::Session(id), wanted);
        }
    }

    /// Ends a session, with one line in the log if it was not the client's own wish.
    fn close(&mut self, id: u64, offence: &CloseReason, log: &mut Log) {
        let Some(session) = self.known.remove(&id) else { return };
        let Peer { pid, uid, .. } = session.peer();
        if *offence == CloseReason::Left {
            log.debug(format_args!("process {pid} left"));
        } else {
            log.warn(format_args!("session of process {pid} (uid {uid}) closed: {offence}"));
        }
        self.orphans.extend(session.hinted);
        self.left.push(id);
        session.connection.close(offence);
    }

    /// Tasks whose hints ended with their session since the last call.
    pub(crate) fn take_orphans(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.orphans)
    }

    /// Sessions that were closed since the last call.
    pub(crate) fn take_left(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.left)
    }

    /// Ends sessions that never say hello, and traces whose time is over.
    pub(crate) fn sweep(&mut self, now: Instant, poller: &Poller, log: &mut Log) {
        let silent = |session: &Session| {
            session.connection.role().is_none() && now.since(session.since) > HELLO_MAX
        };
        let late: Vec<u64> =
            self.known.iter().filter(|(_, session)| silent(session)).map(|(id, _)| *id).collect();
        for id in late {
            self.close(id, &CloseReason::NoHello { request: 0 }, log);
        }
        let is_over = |session: &Session| {
            session.follower.and_then(|follower| follower.until).is_some_and(|until| until <= now)
        };
        let over: Vec<u64> =
            self.known.iter().filter(|(_, session)| is_over(session)).map(|(id, _)| *id).collect();
        for id in over {
            let Some(session) = self.known.get_mut(&id) else { continue };
            let Some(follower) = session.follower.take() else { continue };
            let dropped = session.connection.take_dropped();
            self.send(id, follower.request, Reply::End { dropped }, poller, log);
        }
    }

    /// Whether anybody wants to be told what happens.
    pub(crate) fn has_followers(&self) -> bool {
        self.known.values().any(|session| session.follower.is_some())
    }

    /// Tells everybody who wants to know.
    pub(crate) fn tell(&mut self, event: Event, poller: &Poller, log: &mut Log) {
        let followers: Vec<(u64, u64)> = self
            .known
            .iter()
            .filter_map(|(id, session)| Some((*id, session.follower?.request)))
            .collect();
        for (id, request) in followers {
            if let Some(session) = self.known.get_mut(&id) {
                let result = session.connection.send_event(request, event);
                self.sent(id, result, poller, log);
            }
        }
    }

    /// Sessions that have a page.
    pub(crate) fn pages(&mut self) -> impl Iterator<Item = &mut Session> {
        self.known.values_mut().filter(|session| session.page.is_some())
    }

    /// Whether a page must be looked at without being woken.
    pub(crate) fn has_restless_page(&self) -> bool {
        let mut pages = self.known.values().filter_map(|session| session.page.as_ref());
        pages.any(Page::is_restless)
    }

    /// Tells everybody that we end, and ends every session.
    pub(crate) fn close_all(&mut self) {
        let sentence = "gpreemptd is about to end";
        let refusal = Refusal::new(RefusalCode::Stopping, sentence);
        for (_, mut session) in std::mem::take(&mut self.known) {
            let _ = session.connection.send(0, Reply::Refused(refusal));
        }
        self.listener = None;
    }
}
