//! A program that asks the daemon for something: the command line, the agent, Python.

mod client_error;
mod follow;
mod hint_writer;
mod pace;
mod socket;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use client_error::ClientError;
pub use follow::Follow;
pub use hint_writer::HintWriter;
use pace::Pace;
use socket::Socket;

use crate::hint_page::Mapping;
use crate::message::Message;
use crate::policy::PolicySettings;
use crate::queue::{QueueList, QueueRecord};
use crate::reply::Reply;
use crate::request::Request;
use crate::role::Role;
use crate::snapshot::Assembly;
use crate::socket_path::Surroundings;
use crate::text::Text;

/// Where and how to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where to look for a daemon, in this order.
    pub paths: Vec<PathBuf>,
    /// What this program is.
    pub role: Role,
    /// What it is called, for the daemon's log.
    pub program: Text<32>,
    /// How long to wait for an answer.
    pub timeout: Duration,
}

impl ClientOptions {
    /// The usual places and five seconds of patience.
    pub fn new(role: Role, program: &str) -> Self {
        Self {
            paths: Surroundings::current().connect_paths(),
            role,
            program: Text::new(program),
            timeout: Duration::from_secs(5),
        }
    }
}

/// A session with the daemon. One question at a time; every wait ends.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    last_request: u64,
    timeout: Duration,
    pace: Pace,
}

impl Client {
    /// Connects and says hello. If there are several places to look, the first daemon that is
    /// running counts.
    ///
    /// # Errors
    /// If there is none, or it does not want to talk to this program. The error says what to do.
    pub fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        let mut error = ClientError::NoDaemon { path: PathBuf::new() };
        for path in &options.paths {
            match Socket::connect(path, options.timeout) {
                Ok(socket) => {
                    let (timeout, pace) = (options.timeout, Pace::new());
                    let mut client = Self { socket, last_request: 0, timeout, pace };
                    let hello = Request::Hello { role: options.role, program: options.program };
                    client.expect_ok(&hello)?;
                    return Ok(client);
                }
                Err(errno) => {
                    error = ClientError::of_connect(errno, path.clone(), options.timeout);
                    if !error.is_no_daemon() {
                        return Err(error);
                    }
                }
            }
        }
        Err(error)
    }

    /// Asks, and waits for the first answer. A refusal is an error.
    ///
    /// # Errors
    /// If the request is refused, or no answer comes in time.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.call_with_descriptor(request).map(|(reply, _)| reply)
    }

    /// Asks for something that is answered with `Ok`.
    ///
    /// # Errors
    /// If the request is refused, or no answer comes in time.
    pub fn expect_ok(&mut self, request: &Request) -> Result<(), ClientError> {
        let reply = self.call(request)?;
        if reply == Reply::Ok { Ok(()) } else { Err(off_topic(request, &reply)) }
    }

    /// Everything there is to know, as JSON.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn snapshot(&mut self) -> Result<String, ClientError> {
        let request = Request::Snapshot;
        let deadline = self.deadline();
        self.send(&request, deadline)?;
        let mut assembly = Assembly::default();
        loop {
            let (reply, _) = self.receive(Some(deadline))?;
            let Reply::Snapshot(chunk) = reply else { return Err(off_topic(&request, &reply)) };
            if let Some(text) = assembly.push(&chunk).map_err(ClientError::Garbled)? {
                return Ok(text);
            }
        }
    }

    /// The policy in force, after the changes, if there are any.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn policy(
        &mut self,
        change: Option<PolicySettings>,
    ) -> Result<PolicySettings, ClientError> {
        let request = change.map_or(Request::PolicyRead, Request::PolicySet);
        let reply = self.call(&request)?;
        if let Reply::Policy(settings) = reply {
            Ok(settings)
        } else {
            Err(off_topic(&request, &reply))
        }
    }

    /// Every queue that the daemon controls, in the order of their numbers.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn queues(&mut self) -> Result<Vec<QueueRecord>, ClientError> {
        let mut records: Vec<QueueRecord> = Vec::new();
        loop {
            let after = records.last().map_or(0, |last| last.id);
            let list = self.queue_list(&Request::ListQueues { after })?;
            // A list that does not get on would never end.
            let gets_on = list.records().iter().all(|record| record.id > after);
            records.extend_from_slice(list.records());
            if !list.has_more() || !gets_on || list.records().is_empty() {
                return Ok(records);
            }
        }
    }

    /// One queue.
    ///
    /// # Errors
    /// As [`Self::call`]. There may be no such queue.
    pub fn queue(&mut self, queue: u64) -> Result<QueueRecord, ClientError> {
        let request = Request::ReadQueue { queue };
        let list = self.queue_list(&request)?;
        let record = list.records().first().copied();
        record.ok_or_else(|| off_topic(&request, &Reply::Queues(list)))
    }

    /// Whether the daemon is still there.
    pub fn is_connected(&self) -> bool {
        self.socket.is_connected()
    }

    fn queue_list(&mut self, request: &Request) -> Result<QueueList, ClientError> {
        let reply = self.call(request)?;
        if let Reply::Queues(list) = reply { Ok(list) } else { Err(off_topic(request, &reply)) }
    }

    /// Events from now on, if the request is [`Request::Follow`] or [`Request::Trace`]. The
    /// session is for nothing else from then on.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn follow(mut self, request: &Request) -> Result<Follow, ClientError> {
        self.expect_ok(request)?;
        Ok(Follow::new(self))
    }

    /// A page to give hints with. The hints end with the session.
    ///
    /// # Errors
    /// As [`Self::call`], and if the page cannot be mapped.
    pub fn open_page(mut self) -> Result<HintWriter, ClientError> {
        let request = Request::OpenPage;
        match self.call_with_descriptor(&request)? {
            (Reply::Page { .. }, Some(descriptor)) => {
                Ok(HintWriter::new(Mapping::open(descriptor)?, self.socket))
            }
            (other, _) => Err(off_topic(&request, &other)),
        }
    }

    fn call_with_descriptor(
        &mut self,
        request: &Request,
    ) -> Result<(Reply, Option<OwnedFd>), ClientError> {
        let deadline = self.deadline();
        self.send(request, deadline)?;
        self.receive(Some(deadline))
    }

    fn deadline(&self) -> Instant {
        let now = Instant::now();
        // A timeout beyond the end of the clock is a day; nobody waits longer for an answer.
        now.checked_add(self.timeout).unwrap_or(now + Duration::from_secs(86_400))
    }

    fn send(&mut self, request: &Request, deadline: Instant) -> Result<(), ClientError> {
        self.pace.wait();
        self.last_request += 1;
        let message = Message { request: self.last_request, body: request.clone() };
        match self.socket.send(&message.encode(), deadline) {
            // It may have said why before it left; that is worth more than a broken pipe.
            Ok(()) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(error) => Err(ClientError::of_exchange(error, self.timeout)),
        }
    }

    /// The next answer to the last request. Answers to those before it, which nobody waits for any
    /// more, are left out.
    fn receive(&self, deadline: Option<Instant>) -> Result<(Reply, Option<OwnedFd>), ClientError> {
        loop {
            let received = self.socket.receive(deadline);
            let received =
                received.map_err(|error| ClientError::of_exchange(error, self.timeout))?;
            let message =
                Message::<Reply>::decode(&received.packet).map_err(ClientError::of_decode)?;
            let is_answer = message.request == self.last_request;
            if let Reply::Refused(refusal) = message.body {
                // Number 0: about something that the daemon could not read.
                if is_answer || message.request == 0 {
                    return Err(ClientError::Refused(Box::new(refusal)));
                }
            } else if is_answer {
                return Ok((message.body, received.descriptor));
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const fn off_topic(request: &Request, reply: &Reply) -> ClientError {
    ClientError::OffTopic { request: request.name(), reply: reply.name() }
}
