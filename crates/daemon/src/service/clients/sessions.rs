//! Sessions: the listening socket and the connections of all clients.
//!
//! A client that breaks the protocol or floods the daemon loses its session, with one line in the
//! log. It must never be able to delay the other clients.

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

use super::hint_pages::HintPage;
use crate::service::poller::{PollSource, Poller};
use crate::service::telemetry::log::Log;

const SESSIONS_MAX: usize = 512;
/// Sessions that only root may use, so that root can always connect.
const FOR_ROOT: usize = 64;
const PER_USER_MAX: usize = 256;
/// Connections accepted, and messages read from each, in one iteration of the loop.
pub(crate) const AT_ONCE_MAX: usize = 32;
/// How long a client may stay connected before its first message.
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

/// A session that receives events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Follower {
    pub(crate) request: u64,
    /// The end of a trace; none for a session that follows without a limit.
    pub(crate) until: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Session {
    connection: Connection,
    /// The client's process, read when it connected.
    pub(crate) process: Option<ProcessKey>,
    pub(crate) follower: Option<Follower>,
    pub(crate) page: Option<HintPage>,
    /// The task whose page announces a request.
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

#[derive(Debug)]
pub(crate) struct Sessions {
    listener: Option<Listener>,
    known: BTreeMap<u64, Session>,
    last: u64,
    /// Tasks whose hints ended with their session.
    orphans: Vec<TaskId>,
    /// Sessions closed since the last [`Self::take_closed`].
    closed: Vec<u64>,
}

impl Sessions {
    /// Listens. Refuses if another daemon does.
    pub(crate) fn listen(path: &Path, poller: &Poller) -> Result<Self, ListenError> {
        let listener = Listener::bind(path)?;
        poller.watch(&listener, PollSource::Clients)?;
        let (orphans, closed) = (Vec::new(), Vec::new());
        Ok(Self { listener: Some(listener), known: BTreeMap::new(), last: 0, orphans, closed })
    }

    /// Listens again if the socket file was removed. Returns whether it was.
    pub(crate) fn keep_listening(
        &mut self,
        path: &Path,
        poller: &Poller,
    ) -> Result<bool, ListenError> {
        if self.listener.as_ref().is_some_and(Listener::is_in_place) {
            return Ok(false);
        }
        // The old listener holds the lock of the path, so it is closed first.
        self.listener = None;
        let listener = Listener::bind(path)?;
        poller.watch(&listener, PollSource::Clients)?;
        self.listener = Some(listener);
        Ok(true)
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        self.known.get_mut(&id)
    }

    pub(crate) fn accept(&mut self, now: Instant, poller: &Poller, log: &mut Log) {
        for _ in 0..AT_ONCE_MAX {
            let Some(listener) = &mut self.listener else { return };
            match listener.accept(Limits::default(), now) {
                Ok(Accepted::Client(connection)) => self.admit(connection, now, poller, log),
                Ok(Accepted::TurnedAway(error)) => log.warn(format_args!(
                    "a client was turned away: {error}; if this repeats, raise LimitNOFILE"
                )),
                Ok(Accepted::NoClient) => return,
                Err(error) => {
                    log.error(format_args!("the socket failed ({error}); listening again"));
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
        let watched = poller.watch(&connection, PollSource::Session(id));
        if is_full || watched.is_err() {
            let mut connection = connection;
            let sentence = "gpreemptd has too many sessions; close some of them";
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

    /// Handles the result of a send: waits for room in the socket, or closes the session.
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

    /// Sends data that waited for room in the socket.
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
            poller.watch_writing(session.connection.as_fd(), PollSource::Session(id), wanted);
        }
    }

    /// Closes a session, with a warning unless the client closed it.
    fn close(&mut self, id: u64, offence: &CloseReason, log: &mut Log) {
        let Some(session) = self.known.remove(&id) else { return };
        let Peer { pid, uid, .. } = session.peer();
        if *offence == CloseReason::Left {
            log.debug(format_args!("process {pid} disconnected"));
        } else {
            let name = ProcessInfo::read(pid).map(|info| info.name);
            let name = name.as_deref().unwrap_or("process");
            log.warn(format_args!("session of {name} ({pid}, uid {uid}) closed: {offence}"));
        }
        self.orphans.extend(session.hinted);
        self.closed.push(id);
        session.connection.close(offence);
    }

    /// Tasks whose hints ended because their session was closed.
    pub(crate) fn take_orphans(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.orphans)
    }

    pub(crate) fn take_closed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.closed)
    }

    /// Closes sessions that never sent Hello, and ends traces whose time is over.
    pub(crate) fn sweep(&mut self, now: Instant, poller: &Poller, log: &mut Log) {
        for id in self.ids(|session| {
            session.connection.role().is_none() && now.since(session.since) > HELLO_MAX
        }) {
            self.close(id, &CloseReason::NoHello { request: 0 }, log);
        }
        for id in self.ids(|session| {
            session.follower.and_then(|follower| follower.until).is_some_and(|until| until <= now)
        }) {
            let Some(session) = self.known.get_mut(&id) else { continue };
            let Some(follower) = session.follower.take() else { continue };
            let dropped = session.connection.take_dropped();
            self.send(id, follower.request, Reply::End { dropped }, poller, log);
        }
    }

    fn ids(&self, is_meant: impl Fn(&Session) -> bool) -> Vec<u64> {
        self.known.iter().filter(|(_, session)| is_meant(session)).map(|(id, _)| *id).collect()
    }

    pub(crate) fn has_followers(&self) -> bool {
        self.known.values().any(|session| session.follower.is_some())
    }

    /// Sends an event to all followers.
    pub(crate) fn tell(&mut self, event: Event, poller: &Poller, log: &mut Log) {
        for id in self.ids(|session| session.follower.is_some()) {
            let Some(session) = self.known.get_mut(&id) else { continue };
            let Some(follower) = session.follower else { continue };
            let result = session.connection.send_event(follower.request, event);
            self.sent(id, result, poller, log);
        }
    }

    pub(crate) fn pages(&mut self) -> impl Iterator<Item = &mut Session> {
        self.known.values_mut().filter(|session| session.page.is_some())
    }

    pub(crate) fn has_polled_page(&self) -> bool {
        let mut pages = self.known.values().filter_map(|session| session.page.as_ref());
        pages.any(HintPage::is_polled)
    }

    /// Notifies all clients that the daemon stops, and closes their sessions.
    pub(crate) fn close_all(&mut self) {
        let refusal = Refusal::new(RefusalCode::Stopping, "gpreemptd is stopping");
        for (_, mut session) in std::mem::take(&mut self.known) {
            let _ = session.connection.send(0, Reply::Refused(refusal));
        }
        self.listener = None;
    }
}
