//! The client's end of a session with the daemon: for commands, the agent and Python.
//!
//! One request at a time, and every wait has a limit. A client sends no faster than the daemon
//! allows: it waits instead of being disconnected for a flood.

mod error;
mod event_stream;
mod hint_writer;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpreempt_core::time::Instant as CoreInstant;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

pub use error::ClientError;
pub use event_stream::EventStream;
pub use hint_writer::HintWriter;

use crate::chunk::Assembly;
use crate::hint_page::Mapping;
use crate::message::{Message, PACKET_BYTES_MAX};
use crate::packet_socket::{self, new_socket, retry};
use crate::policy::PolicySettings;
use crate::queue::{QueueList, QueueRecord};
use crate::reply::Reply;
use crate::request::{Request, Role};
use crate::server::Limits;
use crate::socket_path::{SocketEnv, root_path};
use crate::text::Text;
use crate::token_bucket::TokenBucket;

/// Where and how to connect.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Paths of sockets; the first one with a daemon is used.
    pub paths: Vec<PathBuf>,
    /// The kind of this program.
    pub role: Role,
    /// The name of this program, for the daemon's log.
    pub program: Text<32>,
    /// How long to wait for an answer.
    pub timeout: Duration,
}

impl ClientOptions {
    /// The default paths, and a timeout of five seconds.
    pub fn new(role: Role, program: &str) -> Self {
        Self {
            paths: SocketEnv::current().connect_paths(),
            role,
            program: Text::new(program),
            timeout: Duration::from_secs(5),
        }
    }
}

/// A session with the daemon.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    last_request: u64,
    timeout: Duration,
    rate_limit: RateLimit,
}

impl Client {
    /// Connects and sends `Hello`.
    ///
    /// # Errors
    /// If no daemon runs, or it refuses this program. The error says what to do.
    pub fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        let mut error = ClientError::NoDaemon { path: PathBuf::new() };
        for path in &options.paths {
            match Socket::connect(path, options.timeout) {
                Ok(socket) => {
                    let (timeout, rate_limit) = (options.timeout, RateLimit::new());
                    let mut client = Self { socket, last_request: 0, timeout, rate_limit };
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

    /// Sends a request and waits for the first reply.
    ///
    /// # Errors
    /// If the request is refused, or no reply comes in time.
    pub fn call(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.call_with_descriptor(request).map(|(reply, _)| reply)
    }

    /// Sends a request that is answered with `Ok`, and waits for that long instead of the usual
    /// time: for requests that are answered when memory has moved.
    pub fn expect_ok_within(
        &mut self,
        request: &Request,
        timeout: Duration,
    ) -> Result<(), ClientError> {
        let usual = std::mem::replace(&mut self.timeout, timeout);
        let result = self.expect_ok(request);
        self.timeout = usual;
        result
    }

    /// Sends a request that is answered with `Ok`.
    pub fn expect_ok(&mut self, request: &Request) -> Result<(), ClientError> {
        let reply = self.call(request)?;
        if reply == Reply::Ok { Ok(()) } else { Err(unexpected(request, &reply)) }
    }

    /// The JSON of a snapshot.
    pub fn snapshot(&mut self) -> Result<String, ClientError> {
        let request = Request::Snapshot;
        let deadline = self.deadline();
        self.send(&request, deadline)?;
        let mut assembly = Assembly::default();
        loop {
            let (reply, _) = self.receive(Some(deadline))?;
            let Reply::Snapshot(chunk) = reply else { return Err(unexpected(&request, &reply)) };
            if let Some(text) = assembly.push(&chunk).map_err(ClientError::Garbled)? {
                return Ok(text);
            }
        }
    }

    /// Changes the policy, if a change is given, and returns the policy in force.
    pub fn policy(
        &mut self,
        change: Option<PolicySettings>,
    ) -> Result<PolicySettings, ClientError> {
        let request = change.map_or(Request::PolicyRead, Request::PolicySet);
        let reply = self.call(&request)?;
        let Reply::Policy(settings) = reply else { return Err(unexpected(&request, &reply)) };
        Ok(settings)
    }

    /// Every queue that the daemon controls, in the order of their ids.
    pub fn queues(&mut self) -> Result<Vec<QueueRecord>, ClientError> {
        let mut records: Vec<QueueRecord> = Vec::new();
        loop {
            let after = records.last().map_or(0, |last| last.id);
            let list = self.queue_list(&Request::ListQueues { after })?;
            // A list whose ids do not grow would never end.
            let grows = list.records().iter().all(|record| record.id > after);
            records.extend_from_slice(list.records());
            if !list.has_more() || !grows || list.records().is_empty() {
                return Ok(records);
            }
        }
    }

    /// One queue. The daemon refuses an id that it does not know.
    pub fn queue(&mut self, queue: u64) -> Result<QueueRecord, ClientError> {
        let request = Request::ReadQueue { queue };
        let list = self.queue_list(&request)?;
        let record = list.records().first().copied();
        record.ok_or_else(|| unexpected(&request, &Reply::Queues(list)))
    }

    /// Whether the daemon has not closed the session.
    pub fn is_connected(&self) -> bool {
        self.socket.is_connected()
    }

    fn queue_list(&mut self, request: &Request) -> Result<QueueList, ClientError> {
        let reply = self.call(request)?;
        let Reply::Queues(list) = reply else { return Err(unexpected(request, &reply)) };
        Ok(list)
    }

    /// Subscribes to events with [`Request::Follow`] or [`Request::Trace`]. The session carries
    /// nothing else from then on.
    pub fn follow(mut self, request: &Request) -> Result<EventStream, ClientError> {
        self.expect_ok(request)?;
        Ok(EventStream::new(self))
    }

    /// Opens and maps a hint page. The hints end with the session.
    pub fn open_page(mut self) -> Result<HintWriter, ClientError> {
        let request = Request::OpenPage;
        match self.call_with_descriptor(&request)? {
            (Reply::Page { .. }, Some(descriptor)) => {
                Ok(HintWriter::new(Mapping::open(descriptor)?, self.socket))
            }
            (other, _) => Err(unexpected(&request, &other)),
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
        // A timeout beyond the range of the clock is limited to a day.
        now.checked_add(self.timeout).unwrap_or(now + Duration::from_secs(86_400))
    }

    fn send(&mut self, request: &Request, deadline: Instant) -> Result<(), ClientError> {
        self.rate_limit.wait();
        self.last_request += 1;
        let message = Message { request: self.last_request, body: request.clone() };
        match self.socket.send(&message.encode(), deadline) {
            // The daemon may have sent a reason before it closed the session; that says more than
            // a broken pipe.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(error) => Err(ClientError::of_exchange(error, self.timeout)),
        }
    }

    /// The next reply to the last request. Late replies to earlier requests, whose wait was given
    /// up, are ignored.
    fn receive(&self, deadline: Option<Instant>) -> Result<(Reply, Option<OwnedFd>), ClientError> {
        loop {
            let received = self.socket.receive(deadline);
            let (packet, descriptor) =
                received.map_err(|error| ClientError::of_exchange(error, self.timeout))?;
            let message = Message::<Reply>::decode(&packet).map_err(ClientError::of_decode)?;
            let is_answer = message.request == self.last_request;
            if let Reply::Refused(refusal) = message.body {
                // Number 0: the daemon could not read the number of the request.
                if is_answer || message.request == 0 {
                    return Err(ClientError::Refused(Box::new(refusal)));
                }
            } else if is_answer {
                return Ok((message.body, descriptor));
            }
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const fn unexpected(request: &Request, reply: &Reply) -> ClientError {
    ClientError::UnexpectedReply { request: request.name(), reply: reply.name() }
}

/// A socket that is connected to a daemon: whole packets, and every wait has a limit.
#[derive(Debug)]
struct Socket(OwnedFd);

impl Socket {
    /// Connects; root by its own socket, if there is one. `AGAIN` if the daemon does not accept for
    /// that long.
    fn connect(path: &Path, timeout: Duration) -> Result<Self, Errno> {
        if rustix::process::geteuid().is_root()
            && let Ok(socket) = Self::connect_to(&root_path(path), timeout)
        {
            return Ok(socket);
        }
        Self::connect_to(path, timeout)
    }

    fn connect_to(path: &Path, timeout: Duration) -> Result<Self, Errno> {
        let socket = new_socket()?;
        // The kernel limits the wait for a full backlog by the send timeout; 0 is no limit.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(Duration::from_millis(1))))?;
        let address = SocketAddrUnix::new(path)?;
        retry(|| rustix::net::connect(&socket, &address))?;
        Ok(Self(socket))
    }

    /// Sends a packet, and waits for room until the deadline; then `TIMEDOUT`.
    fn send(&self, packet: &[u8], deadline: Instant) -> Result<(), Errno> {
        loop {
            match self.try_send(packet) {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, Some(deadline))?,
                other => return other,
            }
        }
    }

    /// Sends a packet; `AGAIN` if there is no room.
    fn try_send(&self, packet: &[u8]) -> Result<(), Errno> {
        packet_socket::send(&self.0, packet, &[])
    }

    /// The next packet with its descriptor, or `TIMEDOUT`. Without a deadline this waits until the
    /// daemon ends.
    fn receive(&self, deadline: Option<Instant>) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
        let mut was_reset = false;
        loop {
            match self.receive_now() {
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                // The daemon closed the session with unread packets of this client. The kernel
                // reports that once, before the last packets of the daemon.
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                other => return other,
            }
        }
    }

    fn receive_now(&self) -> Result<(Vec<u8>, Option<OwnedFd>), Errno> {
        let mut packet = vec![0; PACKET_BYTES_MAX];
        let received = packet_socket::receive(&self.0, &mut packet)?;
        if received.bytes == 0 {
            return Err(Errno::PIPE);
        }
        // No reply has more than one descriptor.
        if received.is_cut || received.files.len() > 1 {
            return Err(Errno::MSGSIZE);
        }
        packet.truncate(received.bytes);
        Ok((packet, received.files.into_iter().next()))
    }

    fn is_connected(&self) -> bool {
        !packet_socket::has_ended(&self.0)
    }

    fn wait(&self, flags: PollFlags, deadline: Option<Instant>) -> Result<(), Errno> {
        let is_ready = packet_socket::wait(&self.0, flags, deadline)?;
        if is_ready { Ok(()) } else { Err(Errno::TIMEDOUT) }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How often a client that waits tries again: less than the time in which a token is added.
const RETRY: Duration = Duration::from_micros(200);

/// The packets that a session may still send.
#[derive(Debug)]
struct RateLimit {
    begun: Instant,
    bucket: TokenBucket,
}

impl RateLimit {
    /// The limit of a new session. The daemon's bucket is larger, so that packets that arrive there
    /// all at once still fit.
    fn new() -> Self {
        let Limits { packets_burst, packets_per_second, .. } = Limits::default();
        let [burst, rate] = [packets_burst, packets_per_second].map(|limit| limit / 5 * 4);
        Self { begun: Instant::now(), bucket: TokenBucket::new(burst, rate, CoreInstant::ZERO) }
    }

    /// Returns when one more packet may be sent.
    fn wait(&mut self) {
        while !self.bucket.take(self.elapsed()) {
            std::thread::sleep(RETRY);
        }
    }

    fn elapsed(&self) -> CoreInstant {
        let elapsed = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        CoreInstant::from_nanos(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_waits_is_never_disconnected_for_a_flood() {
        let limits = Limits::default();
        let mut daemon =
            TokenBucket::new(limits.packets_burst, limits.packets_per_second, CoreInstant::ZERO);
        let mut rate_limit = RateLimit::new();
        for packet in 0..limits.packets_burst * 2 {
            rate_limit.wait();
            assert!(daemon.take(rate_limit.elapsed()), "packet {packet}");
        }
    }
}
