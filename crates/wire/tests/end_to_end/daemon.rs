//! A daemon that does nothing but answer, in a thread of its own.

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
use gpreempt_wire::refusal::{Refusal, RefusalCode};
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::role::Role;
use gpreempt_wire::server::{Accepted, Connection, Limits, Listener, Offence};
use gpreempt_wire::text::Text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Answers until it is dropped.
pub(crate) struct Daemon {
    folder: Stage,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Offence>>>,
}

/// How long the snapshot of the daemon is.
pub(crate) const SNAPSHOT_BYTES: usize = 300_000;
/// How many events the daemon has for whoever follows, all at once.
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

    /// Stops it, and tells what its clients did.
    pub(crate) fn stop(mut self) -> Vec<Offence> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What a client in a test needs to find the daemon of that folder.
pub(crate) fn options(folder: &Stage) -> ClientOptions {
    ClientOptions {
        paths: vec![folder.socket()],
        timeout: Duration::from_secs(20),
        ..ClientOptions::new(Role::Command, "test")
    }
}

fn serve(mut listener: Listener, stop: &AtomicBool) -> Vec<Offence> {
    let mut connections: Vec<Connection> = Vec::new();
    let mut offences = Vec::new();
    let now = Instant::ZERO;
    while !stop.load(Ordering::Relaxed) {
        wait(&listener, &connections);
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

fn wait(listener: &Listener, connections: &[Connection]) {
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(connections.iter().map(|connection| {
        let write = if connection.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(connection, PollFlags::IN | write)
    }));
    // Only so long, because nothing tells a sleeping thread that it is to stop.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
}

fn step(connection: &mut Connection, now: Instant) -> Result<(), Offence> {
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

/// A queue of which only the number matters.
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
