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
use gpreempt_device::client_process::ClientProcess;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_wire::event::Event;
use gpreempt_wire::message::Message;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{
    Accepted, BindError, CloseReason, Closer, Connection, Limits, Listener, Peer,
};
use gpreempt_wire::socket_path::root_path;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::hint_pages::HintPage;
use super::users::{ServingOrder, Users};
use crate::service::poller::{PollSource, Poller};
use crate::service::telemetry::log::Log;

/// How long connections are accepted in one iteration of the loop. Those of a user that opens too
/// many are refused, which costs little, so others do not wait long behind them.
const ACCEPT_TIME: Duration = Duration::from_millis(1);
/// The pause after that: a flood of connections costs a sixth of a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);
/// Bytes that wait for one user's clients to read them. A session that would exceed it is closed,
/// unless it is the only one that does not read.
const UNREAD_BYTES_MAX: usize = 4 << 20;
/// How long a client may leave answers unread. Events for followers are dropped instead.
const UNREAD_MAX: Duration = Duration::from_millis(30_000);
/// Sessions of one user that receive events: each costs the loop a packet for every event.
pub(crate) const FOLLOWERS_MAX: usize = 8;
/// The interval of the steps in which sockets are closed.
const CLOSE_STEP: Duration = Duration::from_millis(1);
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
    /// The client's process; `None` if it had ended when the connection was accepted.
    pub(crate) client: Option<ClientProcess>,
    pub(crate) follower: Option<Follower>,
    pub(crate) page: Option<HintPage>,
    /// The task whose page announces a request.
    pub(crate) hinted: Option<TaskId>,
    since: Instant,
    is_watched_for_writing: bool,
    /// False while its user is paused, or it waits, and a message is there.
    is_watched: bool,
    /// It is not read until its last request has been answered.
    pub(crate) is_waiting: bool,
    /// How many packets the client had been sent, and when that last changed.
    progress: (u64, Instant),
}

impl Session {
    pub(crate) const fn peer(&self) -> Peer {
        self.connection.peer()
    }

    pub(crate) fn process(&self) -> Option<ProcessKey> {
        self.client.as_ref().map(|client| client.key)
    }

    /// Whether the process that connected has not ended. Another one may have its pid, or its end
    /// of the connection.
    pub(crate) fn is_of_living_process(&self) -> bool {
        self.client.as_ref().is_some_and(ClientProcess::lives)
    }

    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

#[derive(Debug)]
pub(crate) struct Sessions {
    listener: Option<Listener>,
    /// The socket that only root can connect to, where root runs the daemon.
    root_listener: Option<Listener>,
    /// When clients are accepted again, after many of them at once.
    accepts_again: Option<Instant>,
    closer: Closer,
    known: BTreeMap<u64, Session>,
    pub(crate) users: Users,
    last: u64,
    /// Tasks whose hints ended with their session.
    orphans: Vec<TaskId>,
    /// Sessions closed since the last [`Self::take_closed`].
    closed: Vec<u64>,
}

/// Listens and watches the socket; for root, the one that only root can connect to as well.
fn listen(path: &Path, poller: &Poller) -> Result<(Listener, Option<Listener>), ListenError> {
    let listener = Listener::bind(path)?;
    let root_path = root_path(path);
    // A longer path leaves no room for the second name, and clients then use the first.
    let has_root_path =
        rustix::process::geteuid().is_root() && SocketAddrUnix::new(&root_path).is_ok();
    let for_root = has_root_path.then(|| Listener::bind_for_owner(&root_path)).transpose()?;
    poller.watch(&listener, PollSource::Clients)?;
    if let Some(for_root) = &for_root {
        poller.watch(for_root, PollSource::RootClients)?;
    }
    Ok((listener, for_root))
}

impl Sessions {
    /// Listens. Refuses if another daemon does.
    pub(crate) fn listen(path: &Path, own_uid: u32, poller: &Poller) -> Result<Self, ListenError> {
        let (listener, root_listener) = listen(path, poller)?;
        Ok(Self {
            closer: Closer::new(listener.refuses_files()),
            listener: Some(listener),
            root_listener,
            accepts_again: None,
            known: BTreeMap::new(),
            users: Users::new(own_uid),
            last: 0,
            orphans: Vec::new(),
            closed: Vec::new(),
        })
    }

    /// Listens again if a socket file was removed. Returns whether one was.
    pub(crate) fn keep_listening(
        &mut self,
        path: &Path,
        poller: &Poller,
    ) -> Result<bool, ListenError> {
        let is_in_place = self.listener.as_ref().is_some_and(Listener::is_in_place)
            && self.root_listener.as_ref().is_none_or(Listener::is_in_place);
        if is_in_place {
            return Ok(false);
        }
        // The old listeners hold the locks of the paths, so they are closed first.
        self.stop_listening();
        let (listener, root_listener) = listen(path, poller)?;
        (self.listener, self.root_listener) = (Some(listener), root_listener);
        Ok(true)
    }

    fn stop_listening(&mut self) {
        self.accepts_again = None;
        for listener in [self.listener.take(), self.root_listener.take()].into_iter().flatten() {
            self.closer.close(listener.close());
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        self.known.get_mut(&id)
    }

    pub(crate) fn uid_of(&self, id: u64) -> Option<u32> {
        Some(self.known.get(&id)?.peer().uid)
    }

    /// Accepts clients of the socket for all users, or of the one for root.
    pub(crate) fn accept(
        &mut self,
        source: PollSource,
        now: Instant,
        poller: &Poller,
        log: &mut Log,
    ) {
        let is_for_root = source == PollSource::RootClients;
        let until_ns = monotonic_ns().saturating_add(ACCEPT_TIME.as_nanos());
        while monotonic_ns() < until_ns && (is_for_root || !self.closer.is_full()) {
            let listener = if is_for_root { &mut self.root_listener } else { &mut self.listener };
            let Some(listener) = listener else { return };
            match listener.accept(Limits::default(), now) {
                Ok(Accepted::Client(connection)) => {
                    let (uid, begun_ns) = (connection.peer().uid, monotonic_ns());
                    self.admit(connection, now, poller, log);
                    let took_ns = monotonic_ns().saturating_sub(begun_ns);
                    self.users.charge(uid, Duration::from_nanos(took_ns));
                }
                Ok(Accepted::TurnedAway(error, socket)) => {
                    socket.into_iter().for_each(|socket| self.closer.close(socket));
                    log.warn(format_args!(
                        "a client was turned away: {error}; if this repeats, raise LimitNOFILE"
                    ));
                }
                Ok(Accepted::NoClient) => return,
                Err(error) => {
                    log.error(format_args!("the socket failed ({error}); listening again"));
                    self.stop_listening();
                }
            }
        }
        if !is_for_root {
            self.pause_accepting(now, poller);
        }
    }

    fn pause_accepting(&mut self, now: Instant, poller: &Poller) {
        if let Some(listener) = &self.listener {
            poller.forget(listener);
            self.accepts_again = Some(now + ACCEPT_PAUSE);
        }
    }

    fn admit(&mut self, connection: Connection, now: Instant, poller: &Poller, log: &mut Log) {
        let peer = connection.peer();
        let id = self.last + 1;
        let admitted = self.users.admit(peer.uid, now).map_err(|error| error.to_string());
        let watched = admitted.and_then(|()| {
            poller.watch(&connection, PollSource::Session(id)).map_err(|error| {
                self.users.release(peer.uid);
                format!("the kernel cannot watch another session: {error}; try again later")
            })
        });
        if let Err(sentence) = watched {
            log.warn(format_args!("process {} was turned away: {sentence}", peer.pid));
            let refusal = Refusal::new(RefusalCode::Limit, &sentence);
            self.closer.close(connection.refuse(0, refusal));
            return;
        }
        self.last = id;
        let client = ClientProcess::of(&connection, peer.pid, peer.uid);
        let session = Session {
            connection,
            client,
            follower: None,
            page: None,
            hinted: None,
            since: now,
            is_watched_for_writing: false,
            is_watched: true,
            is_waiting: false,
            progress: (0, now),
        };
        self.known.insert(id, session);
    }

    /// The order in which ready sessions are served. Those of paused users are not watched until
    /// the pause is over.
    pub(crate) fn order(&mut self, ready: Vec<u64>, poller: &Poller) -> ServingOrder {
        let mut served = Vec::new();
        for id in ready {
            let Some(session) = self.known.get_mut(&id) else { continue };
            let uid = session.peer().uid;
            if session.is_waiting || self.users.is_paused(uid) {
                session.is_watched = false;
                poller.forget(&session.connection);
            } else {
                served.push((uid, id));
            }
        }
        self.users.order(served.into_iter())
    }

    /// Ends pauses whose time has come, and closes sockets that wait for it.
    pub(crate) fn end_pauses(&mut self, now: Instant, poller: &Poller, log: &mut Log) {
        self.closer.step();
        if self.accepts_again.is_some_and(|at| at <= now) && !self.closer.is_full() {
            self.accepts_again = None;
            let listener = self.listener.as_ref();
            if listener.is_some_and(|socket| poller.watch(socket, PollSource::Clients).is_err()) {
                self.stop_listening();
            }
        }
        if self.users.resume(now) {
            let users = &self.users;
            let is_resumed = |session: &Session| {
                !session.is_watched && !session.is_waiting && !users.is_paused(session.peer().uid)
            };
            for id in self.ids(is_resumed) {
                self.watch_again(id, poller, log);
            }
        }
    }

    /// Whether a session is read: its requests are served in order, so not while one waits.
    pub(crate) fn is_waiting(&self, id: u64) -> bool {
        self.known.get(&id).is_some_and(|session| session.is_waiting)
    }

    /// The request of a session that waited has been answered.
    pub(crate) fn end_wait(&mut self, id: u64, poller: &Poller, log: &mut Log) {
        let is_ready = self.known.get(&id).is_some_and(|session| {
            !session.is_waiting && !session.is_watched && !self.users.is_paused(session.peer().uid)
        });
        if is_ready {
            self.watch_again(id, poller, log);
        }
    }

    fn watch_again(&mut self, id: u64, poller: &Poller, log: &mut Log) {
        let Some(session) = self.known.get_mut(&id) else { return };
        session.is_watched = true;
        session.is_watched_for_writing = false;
        match poller.watch(&session.connection, PollSource::Session(id)) {
            Ok(()) => self.watch_writing(id, poller),
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
                self.close(id, &CloseReason::Os(errno), poller, log);
            }
        }
    }

    /// The time at which [`Self::end_pauses`] has something to do.
    pub(crate) fn next_pause_end(&self, now: Instant) -> Option<Instant> {
        let closing = self.closer.is_busy().then_some(now + CLOSE_STEP);
        [self.accepts_again, self.users.next_resume(), closing].into_iter().flatten().min()
    }

    pub(crate) fn receive(
        &mut self,
        id: u64,
        now: Instant,
        poller: &Poller,
        log: &mut Log,
    ) -> Option<Message<Request>> {
        match self.known.get_mut(&id)?.connection.recv(now) {
            Ok(message) => message,
            Err(offence) => {
                self.close(id, &offence, poller, log);
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
            Ok(()) if self.exceeds_unread_bytes(id) => {
                self.close(id, &CloseReason::NeverReads, poller, log);
            }
            Ok(()) => self.watch_writing(id, poller),
            Err(offence) => self.close(id, &offence, poller, log),
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

    /// Whether answers wait in this session although those in others of its user are too many.
    fn exceeds_unread_bytes(&self, id: u64) -> bool {
        let Some(session) = self.known.get(&id) else { return false };
        if !session.connection.wants_write() {
            return false;
        }
        let uid = session.peer().uid;
        let others = self.known.iter().filter(|(other, session)| {
            **other != id && session.peer().uid == uid && session.connection.wants_write()
        });
        let bytes: usize = others.map(|(_, session)| session.connection.unread_bytes()).sum();
        bytes > UNREAD_BYTES_MAX
    }

    fn watch_writing(&mut self, id: u64, poller: &Poller) {
        let Some(session) = self.known.get_mut(&id) else { return };
        let wanted = session.connection.wants_write();
        if wanted != session.is_watched_for_writing && session.is_watched {
            session.is_watched_for_writing = wanted;
            poller.watch_writing(session.connection.as_fd(), PollSource::Session(id), wanted);
        }
    }

    /// Closes a session, with a warning unless the client closed it.
    fn close(&mut self, id: u64, offence: &CloseReason, poller: &Poller, log: &mut Log) {
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
        self.users.release(uid);
        // Another thread may close the socket, which stays in the epoll set until then.
        poller.forget(&session.connection);
        self.closer.close(session.connection.close(offence));
    }

    /// Tasks whose hints ended because their session was closed.
    pub(crate) fn take_orphans(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.orphans)
    }

    pub(crate) fn take_closed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.closed)
    }

    /// Closes sessions that never sent Hello or never read, and ends traces whose time is over.
    pub(crate) fn sweep(&mut self, now: Instant, poller: &Poller, log: &mut Log) {
        self.users.sweep(now);
        for session in self.known.values_mut() {
            let sent = session.connection.sent_packets();
            if sent != session.progress.0 || !session.connection.wants_write() {
                session.progress = (sent, now);
            }
        }
        for id in self
            .ids(|session| session.follower.is_none() && now.since(session.progress.1) > UNREAD_MAX)
        {
            self.close(id, &CloseReason::NeverReads, poller, log);
        }
        for id in self.ids(|session| {
            session.connection.role().is_none() && now.since(session.since) > HELLO_MAX
        }) {
            self.close(id, &CloseReason::NoHello { request: 0 }, poller, log);
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

    /// Whether a user has as many sessions that receive events as it may have.
    pub(crate) fn has_all_followers(&self, uid: u32) -> bool {
        let followers = self.ids(|session| session.follower.is_some() && session.peer().uid == uid);
        followers.len() >= FOLLOWERS_MAX && !self.users.is_trusted(uid)
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

    /// The sessions with a hint page. A page is polled while the messages that announce its hints
    /// are not read.
    pub(crate) fn pages(&mut self) -> impl Iterator<Item = &mut Session> {
        for session in self.known.values_mut().filter(|session| !session.is_watched) {
            session.page.iter_mut().for_each(HintPage::wake);
        }
        self.known.values_mut().filter(|session| session.page.is_some())
    }

    pub(crate) fn has_polled_page(&self) -> bool {
        let is_polled =
            |page: &HintPage, session: &Session| page.is_polled() || !session.is_watched;
        self.known
            .values()
            .any(|session| session.page.as_ref().is_some_and(|page| is_polled(page, session)))
    }

    /// Notifies all clients that the daemon stops, and closes their sessions.
    pub(crate) fn close_all(&mut self) {
        let refusal = Refusal::new(RefusalCode::Stopping, "gpreemptd is stopping");
        for (_, session) in std::mem::take(&mut self.known) {
            self.closer.close(session.connection.refuse(0, refusal));
        }
        self.stop_listening();
    }
}
