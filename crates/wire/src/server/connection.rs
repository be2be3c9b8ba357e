//! One client.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use gpreempt_core::time::Instant;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;

use super::offence::Offence;
use super::outgoing::Outgoing;
use super::{Limits, listener};
use crate::event::Event;
use crate::header::{PACKET_BYTES_MAX, request_of};
use crate::message::Message;
use crate::packet_socket;
use crate::reply::Reply;
use crate::request::Request;
use crate::role::Role;
use crate::snapshot::SNAPSHOT_BYTES_MAX;
use crate::token_bucket::TokenBucket;

/// Who connected, as the kernel vouches. What other groups that user is in, and whether the process
/// still lives, is for the daemon to find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that connected.
    pub pid: u32,
    /// Its effective user then.
    pub uid: u32,
    /// Its effective group then.
    pub gid: u32,
}

/// Why a snapshot is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// One is on its way.
    #[error("a snapshot is on its way already; read it first")]
    Busy,
    /// It is longer than the protocol allows.
    #[error("the snapshot is too long; the limit is 8 MiB")]
    TooLong,
    /// The session is over.
    #[error(transparent)]
    Offence(#[from] Offence),
}

/// One client: what it says, and what it is told. It never blocks.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    peer: Peer,
    limits: Limits,
    bucket: TokenBucket,
    role: Option<Role>,
    last_request: u64,
    outgoing: Outgoing,
    dropped: u64,
}

impl Connection {
    /// A client that just connected.
    ///
    /// # Errors
    /// If the kernel does not say who it is: a process that this one cannot see.
    pub fn new(socket: OwnedFd, limits: Limits, now: Instant) -> Result<Self, Errno> {
        let credentials = socket_peercred(&socket)?;
        let pid = u32::try_from(credentials.pid.as_raw_pid()).map_err(|_| Errno::SRCH)?;
        if pid == 0 {
            return Err(Errno::SRCH);
        }
        let peer = Peer { pid, uid: credentials.uid.as_raw(), gid: credentials.gid.as_raw() };
        Ok(Self {
            socket,
            peer,
            limits,
            bucket: TokenBucket::new(limits.packets_burst, limits.packets_per_second, now),
            role: None,
            last_request: 0,
            outgoing: Outgoing::default(),
            dropped: 0,
        })
    }

    /// Who it is.
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// What it is, once it has said hello.
    pub const fn role(&self) -> Option<Role> {
        self.role
    }

    /// The next request, if there is one. Its sender has said hello, and its number has not been
    /// used before.
    ///
    /// # Errors
    /// If the session is over; see [`Connection::close`].
    pub fn recv(&mut self, now: Instant) -> Result<Option<Message<Request>>, Offence> {
        let mut buffer = [0; PACKET_BYTES_MAX];
        let bytes = match packet_socket::receive_bytes(&self.socket, &mut buffer) {
            // An empty packet looks the same as the end, and says as much.
            Ok(0) | Err(Errno::CONNRESET) => return Err(Offence::Left),
            Ok(bytes) => bytes,
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(Offence::Os(error)),
        };
        if !self.bucket.take(now) {
            return Err(Offence::Flood);
        }
        let packet = buffer.get(..bytes).ok_or(Offence::TooLong { bytes })?;
        let message = Message::<Request>::decode(packet)
            .map_err(|error| Offence::BadMessage { error, request: request_of(packet) })?;
        self.check(&message)?;
        Ok(Some(message))
    }

    /// Queues a reply and sends what there is room for.
    ///
    /// # Errors
    /// If the client does not read, or is gone.
    pub fn send(&mut self, request: u64, reply: Reply) -> Result<(), Offence> {
        self.send_with(Message { request, body: reply }, None)
    }

    /// Queues [`Reply::Page`] with the descriptor of the page.
    ///
    /// # Errors
    /// As [`Connection::send`].
    pub fn send_page(&mut self, request: u64, slots: u32, page: OwnedFd) -> Result<(), Offence> {
        self.send_with(Message { request, body: Reply::Page { slots } }, Some(page))
    }

    /// Queues a snapshot, which goes out in pieces as the client reads them.
    ///
    /// # Errors
    /// If one is on its way, if it is too long, or if the session is over.
    pub fn send_snapshot(&mut self, request: u64, text: Arc<str>) -> Result<(), SnapshotError> {
        if self.outgoing.has_snapshot() {
            return Err(SnapshotError::Busy);
        }
        if text.len() > SNAPSHOT_BYTES_MAX {
            return Err(SnapshotError::TooLong);
        }
        self.outgoing.push_snapshot(request, text);
        Ok(self.flush()?)
    }

    /// Queues an event if the reader keeps up; else leaves it out, and tells how many with the next
    /// one.
    ///
    /// # Errors
    /// If the client is gone.
    pub fn send_event(&mut self, request: u64, event: Event) -> Result<(), Offence> {
        if self.outgoing.len() >= self.limits.waiting_events_max {
            self.flush()?;
        }
        if self.outgoing.len() >= self.limits.waiting_events_max {
            self.dropped = self.dropped.saturating_add(1);
            return Ok(());
        }
        let event = Event { dropped: self.take_dropped(), ..event };
        self.send(request, Reply::Event(event))
    }

    /// How many events were left out that nobody was told of: for [`Reply::End`].
    pub const fn take_dropped(&mut self) -> u64 {
        std::mem::replace(&mut self.dropped, 0)
    }

    /// Sends what there is room for: call it when the socket can be written to.
    ///
    /// # Errors
    /// If the client is gone.
    pub fn flush(&mut self) -> Result<(), Offence> {
        let socket = &self.socket;
        let flushed = self
            .outgoing
            .flush(|bytes, descriptor| packet_socket::send(socket, bytes, descriptor.as_slice()));
        flushed.map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => Offence::Left,
            other => Offence::Os(other),
        })
    }

    /// Whether something waits until the socket can be written to.
    pub fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Ends the session. The offender is told why, if it listens.
    pub fn close(self, offence: &Offence) {
        if let Some((request, refusal)) = offence.refusal() {
            listener::turn_away(&self.socket, request, refusal);
        }
    }

    fn send_with(
        &mut self,
        message: Message<Reply>,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), Offence> {
        self.outgoing.push(&message, descriptor);
        self.flush()?;
        let is_full = self.outgoing.len() > self.limits.waiting_max;
        if is_full { Err(Offence::NeverReads) } else { Ok(()) }
    }

    fn check(&mut self, message: &Message<Request>) -> Result<(), Offence> {
        let request = message.request;
        match (&message.body, self.role) {
            (Request::Hello { role, .. }, None) => self.role = Some(*role),
            (Request::Hello { .. }, Some(_)) => return Err(Offence::SecondHello { request }),
            (_, None) => return Err(Offence::NoHello { request }),
            (_, Some(_)) => {}
        }
        // Any thread may wake the daemon, in any order, so those have no numbers.
        if message.body == Request::Wake && request == 0 {
            return Ok(());
        }
        let last = std::mem::replace(&mut self.last_request, request);
        if request > last { Ok(()) } else { Err(Offence::Replayed { request, last }) }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
