//! Both ends of a real socket: a client and a small daemon, and clients that break the rules.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken expectation fails the test")]

mod answers;
mod examples;
mod hints;
mod misbehaviour;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Instant;
use gpreempt_stage::Stage;
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::message::Message;
use gpreempt_wire::queue::{DeviceKind, QueueList, QueueRecord};
use gpreempt_wire::reply::{Refusal, RefusalCode, Reply};
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::server::{Accepted, CloseReason, Connection, Limits, Listener};
use gpreempt_wire::text::Text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketType, connect, recvmsg, sendmsg, socket,
};

/// A daemon that only answers, in a thread of its own; it stops when it is dropped.
pub(crate) struct Daemon {
    folder: Stage,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<CloseReason>>>,
}

/// How long the snapshot of the daemon is.
pub(crate) const SNAPSHOT_BYTES: usize = 300_000;
/// How many events the daemon sends to a follower at once.
pub(crate) const EVENTS: u64 = 5_000;

impl Daemon {
    pub(crate) fn start() -> Self {
        let folder = Stage::new("wire").unwrap();
        let listener = Listener::bind(&folder.socket()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&stop);
        let thread = Some(spawn(move || serve(listener, &is_over)));
        Self { folder, stop, thread }
    }

    pub(crate) fn options(&self) -> ClientOptions {
        options(&self.folder)
    }

    pub(crate) fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.options())
    }

    /// Stops it, and returns why its sessions ended.
    pub(crate) fn stop(mut self) -> Vec<CloseReason> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The options of a client of the daemon in that folder.
pub(crate) fn options(folder: &Stage) -> ClientOptions {
    ClientOptions {
        paths: vec![folder.socket()],
        timeout: Duration::from_secs(20),
        ..ClientOptions::new(Role::Command, "test")
    }
}

fn serve(mut listener: Listener, stop: &AtomicBool) -> Vec<CloseReason> {
    let mut connections: Vec<Connection> = Vec::new();
    let mut offences = Vec::new();
    let now = Instant::ZERO;
    while !stop.load(Ordering::Relaxed) {
        poll_all(&listener, &connections);
        if let Accepted::Client(connection) = listener.accept(Limits::default(), now).unwrap() {
            connections.push(connection);
        }
        let mut rest = Vec::new();
        for mut connection in connections {
            match step(&mut connection, now) {
                Ok(()) => rest.push(connection),
                Err(offence) => {
                    connection.close(&offence);
                    offences.push(offence);
                }
            }
        }
        connections = rest;
    }
    offences
}

fn poll_all(listener: &Listener, connections: &[Connection]) {
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(connections.iter().map(|connection| {
        let write = if connection.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(connection, PollFlags::IN | write)
    }));
    // A limit, because no event wakes the thread when it is to stop.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
}

fn step(connection: &mut Connection, now: Instant) -> Result<(), CloseReason> {
    connection.flush()?;
    while let Some(Message { request, body }) = connection.recv(now)? {
        match body {
            Request::Set { .. } => {
                let refusal = Refusal::new(RefusalCode::NotPermitted, "not yours; ask its owner");
                connection.send(request, Reply::Refused(refusal))?;
            }
            Request::PolicySet(settings) => connection.send(request, Reply::Policy(settings))?,
            Request::Snapshot => {
                let text: Arc<str> = "j".repeat(SNAPSHOT_BYTES).into();
                connection.send_snapshot(request, text).unwrap();
            }
            Request::Trace { .. } => {
                connection.send(request, Reply::Ok)?;
                for at_ns in 0..EVENTS {
                    connection.send_event(request, Event::new(at_ns, EventKind::Active))?;
                }
                let dropped = connection.take_dropped();
                connection.send(request, Reply::End { dropped })?;
            }
            Request::Hello { .. }
            | Request::Ping
            | Request::Register { .. }
            | Request::Suspend { .. }
            | Request::Resume { .. }
            | Request::ResumeAll
            | Request::Detach { .. }
            | Request::PolicyRead
            | Request::Follow
            | Request::OpenPage
            | Request::SuspendQueues(_)
            | Request::ResumeQueues { .. }
            | Request::SetQueue { .. }
            | Request::Evict { .. }
            | Request::Restore { .. }
            | Request::MakeRoom { .. }
            | Request::Wake => connection.send(request, Reply::Ok)?,
            Request::ListQueues { after } => {
                let rest = (after + 1..=120).map(queue);
                connection.send(request, Reply::Queues(QueueList::new(rest)))?;
            }
            Request::ReadQueue { queue: id } => {
                connection.send(request, Reply::Queues(QueueList::new([queue(id)])))?;
            }
        }
    }
    Ok(())
}

/// A queue of which only the id matters.
fn queue(id: u64) -> QueueRecord {
    QueueRecord {
        id,
        native: 0,
        start_ticks: 0,
        pending: 0,
        ran_us: 0,
        preempts: 0,
        pid: 1,
        uid: 0,
        device: 0,
        priority: Priority::DEFAULT,
        level: 3,
        kind: DeviceKind::Other,
        is_on: true,
        is_active: false,
        is_suspended: false,
        has_own_priority: false,
        is_suspended_by_asker: false,
        name: Text::EMPTY,
    }
}

/// A client that may break every rule.
pub(crate) struct Raw(pub(crate) OwnedFd);

impl Raw {
    pub(crate) fn connect(path: &Path) -> Self {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(socket)
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut SendAncillaryBuffer::default(), flags)
    }

    pub(crate) fn ask(&self, request: u64, body: Request) {
        self.send(&Message { request, body }.encode()).unwrap();
    }

    /// The next reply; nothing if the daemon has closed the session.
    pub(crate) fn reply(&self) -> Option<Message<Reply>> {
        let mut packet = [0; 5000];
        loop {
            let mut control = RecvAncillaryBuffer::default();
            let mut parts = [IoSliceMut::new(&mut packet)];
            match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::DONTWAIT) {
                Ok(received) if received.bytes == 0 => return None,
                Ok(received) => return Some(Message::decode(&packet[..received.bytes]).unwrap()),
                // Reported once, before the packets that are left to read.
                Err(Errno::CONNRESET) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub(crate) fn hello() -> Request {
    Request::Hello { role: Role::Command, program: Text::new("raw") }
}

/// A client, and the daemon's end of its session.
pub(crate) fn pair(limits: Limits) -> (Stage, Listener, Raw, Connection) {
    let folder = Stage::new("wire").unwrap();
    let mut listener = Listener::bind(&folder.socket()).unwrap();
    let client = Raw::connect(&folder.socket());
    let connection = accept(&mut listener, limits);
    (folder, listener, client, connection)
}

pub(crate) fn accept(listener: &mut Listener, limits: Limits) -> Connection {
    let accepted = listener.accept(limits, Instant::ZERO).unwrap();
    let Accepted::Client(connection) = accepted else { panic!("{accepted:?}") };
    connection
}

/// Waits until there is something to read. The limit is far more than any test needs.
pub(crate) fn wait(on: impl AsFd) {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut polled = [PollFd::new(&on, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&limit)), Ok(1), "nothing came");
}
