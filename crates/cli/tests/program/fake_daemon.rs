//! A daemon whose answers a test decides.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use gpreempt_core::time::Instant;
use gpreempt_wire::event::Event;
use gpreempt_wire::message::Message;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{Accepted, CloseReason, Connection, Limits, Listener, Peer};
use gpreempt_wire::statistics::Snapshot;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The reaction of the daemon to a request.
pub(crate) enum Answer {
    /// Answers `Ok`.
    Ok,
    /// Answers this.
    Reply(Box<Reply>),
    /// Answers with a snapshot.
    Snapshot(Box<Snapshot>),
    /// Answers `Ok`, sends these events, and their end if that is true.
    Events(Vec<Event>, bool),
    /// Answers in another version of the protocol.
    OtherVersion,
    /// Does not answer.
    Silence,
    /// Closes the session.
    HangUp,
}

impl Answer {
    pub(crate) fn refuse(code: RefusalCode, sentence: &str) -> Self {
        Self::Reply(Box::new(Reply::Refused(Refusal::new(code, sentence))))
    }
}

type Received = Arc<Mutex<Vec<(Peer, Request)>>>;

/// Answers until it is dropped.
pub(crate) struct FakeDaemon {
    stop: Arc<AtomicBool>,
    heard: Received,
    thread: Option<JoinHandle<()>>,
}

impl FakeDaemon {
    /// Listens in a folder. Every `Hello` gets `Ok`; `answer` decides the rest.
    pub(crate) fn start(
        folder: &Path,
        mut answer: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> Self {
        Self::start_without_hello(folder, move |request| {
            if matches!(request, Request::Hello { .. }) { Answer::Ok } else { answer(request) }
        })
    }

    /// The same, but `answer` decides about `Hello`, too.
    pub(crate) fn start_without_hello(
        folder: &Path,
        mut answer: impl FnMut(&Request) -> Answer + Send + 'static,
    ) -> Self {
        let listener = Listener::bind(&folder.join("gpreemptd.sock")).unwrap();
        let (stop, heard) = (Arc::new(AtomicBool::new(false)), Received::default());
        let (is_over, hears) = (Arc::clone(&stop), Arc::clone(&heard));
        let thread = Some(spawn(move || serve(listener, &is_over, &hears, &mut answer)));
        Self { stop, heard, thread }
    }

    /// The requests so far, without `Hello`.
    pub(crate) fn heard(&self) -> Vec<Request> {
        self.heard_from().into_iter().map(|(_, request)| request).collect()
    }

    /// The same, with the client.
    pub(crate) fn heard_from(&self) -> Vec<(Peer, Request)> {
        let heard = self.heard.lock().unwrap().clone();
        let is_question = |request: &Request| !matches!(request, Request::Hello { .. });
        heard.into_iter().filter(|(_, request)| is_question(request)).collect()
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut listener: Listener,
    stop: &AtomicBool,
    heard: &Received,
    answer: &mut dyn FnMut(&Request) -> Answer,
) {
    let mut connections: Vec<Connection> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        wait(&listener, &connections);
        let accepted = listener.accept(Limits::default(), Instant::ZERO).unwrap();
        if let Accepted::Client(connection) = accepted {
            connections.push(connection);
        }
        connections.retain_mut(|connection| step(connection, heard, answer).is_ok());
    }
}

fn wait(listener: &Listener, connections: &[Connection]) {
    let mut polled = vec![PollFd::new(listener, PollFlags::IN)];
    polled.extend(connections.iter().map(|connection| {
        let write = if connection.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
        PollFd::new(connection, PollFlags::IN | write)
    }));
    // A limit, because no event wakes the thread when it is to stop.
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
}

fn step(
    connection: &mut Connection,
    heard: &Received,
    answer: &mut dyn FnMut(&Request) -> Answer,
) -> Result<(), CloseReason> {
    connection.flush()?;
    while let Some(Message { request, body }) = connection.recv(Instant::ZERO)? {
        heard.lock().unwrap().push((connection.peer(), body.clone()));
        match answer(&body) {
            Answer::Ok => connection.send(request, Reply::Ok)?,
            Answer::Reply(reply) => connection.send(request, *reply)?,
            Answer::Snapshot(snapshot) => {
                connection.send_snapshot(request, snapshot.to_json().into()).unwrap();
            }
            Answer::Events(events, has_end) => {
                connection.send(request, Reply::Ok)?;
                for event in events {
                    connection.send_event(request, event)?;
                }
                if has_end {
                    let dropped = connection.take_dropped();
                    connection.send(request, Reply::End { dropped })?;
                }
            }
            Answer::OtherVersion => {
                let mut packet = Message { request, body: Reply::Ok }.encode();
                packet[4] = 7;
                rustix::net::send(&connection, &packet, rustix::net::SendFlags::empty()).unwrap();
            }
            Answer::Silence => {}
            Answer::HangUp => return Err(CloseReason::Left),
        }
    }
    Ok(())
}
