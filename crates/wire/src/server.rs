//! The daemon's end of the socket: descriptors for its event loop, and limits for its clients.
//!
//! Nothing here blocks or loops. The daemon polls [`Listener`] and every [`Connection`] for
//! reading, and a connection also for writing while [`Connection::wants_write`] is true. Whatever
//! a client does, its session ends with one [`CloseReason`] at worst, which the daemon logs and
//! sends ([`Connection::close`]).

mod listener;
mod send_queue;
mod unwanted_files;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use gpreempt_core::time::Instant;
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_peercred};

pub use listener::{Accepted, BindError, Listener};
use send_queue::SendQueue;
pub use unwanted_files::Closer;

use crate::chunk::SNAPSHOT_BYTES_MAX;
use crate::event::Event;
use crate::message::{DecodeError, Message, PACKET_BYTES_MAX, request_of};
use crate::packet_socket;
use crate::reply::{Refusal, RefusalCode, Reply};
use crate::request::{Request, Role};
use crate::token_bucket::TokenBucket;

/// The limits of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets at once, before the rate applies.
    pub packets_burst: u32,
    /// Packets per second.
    pub packets_per_second: u32,
    /// Replies that wait because the client does not read. One more closes the session.
    pub waiting_max: usize,
    /// How many of those may be events. Further ones are dropped and counted.
    pub waiting_events_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            packets_burst: 1_000,
            packets_per_second: 5_000,
            waiting_max: 64,
            waiting_events_max: 32,
        }
    }
}

/// Why a session ends. Its text is one line for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client closed the session.
    #[error("it closed the session")]
    Left,
    /// A packet that is no message.
    #[error("it sent a bad message: {error}")]
    BadMessage {
        /// The mistake.
        error: DecodeError,
        /// The number of the request; 0 if it cannot be read.
        request: u64,
    },
    /// A packet longer than any message.
    #[error("it sent a packet of {bytes} bytes; the limit is 4096")]
    TooLong {
        /// The length of the packet.
        bytes: usize,
    },
    /// A packet with file descriptors.
    #[error("it sent file descriptors, which no request has")]
    Files,
    /// The session did not begin with `Hello`.
    #[error("its first message was not Hello")]
    NoHello {
        /// The number of the request.
        request: u64,
    },
    /// The client sent `Hello` twice.
    #[error("it sent a second Hello")]
    SecondHello {
        /// The number of the request.
        request: u64,
    },
    /// The number of a request was not greater than that of the one before.
    #[error("it sent request {request} after request {last}; numbers must grow")]
    Replayed {
        /// The number of the request.
        request: u64,
        /// The number of the request before.
        last: u64,
    },
    /// The client exceeded its packet rate.
    #[error("it sends more messages than its limit")]
    Flood,
    /// The client does not read its replies.
    #[error("it does not read its replies")]
    NeverReads,
    /// The socket failed.
    #[error("its connection failed: {0}")]
    Os(Errno),
}

impl CloseReason {
    /// Whether the client or the socket failed, rather than the client having closed the session.
    pub const fn is_fault(&self) -> bool {
        !matches!(self, Self::Left)
    }

    /// The refusal for the client, if it can be sent, and the number of the request.
    pub fn refusal(&self) -> Option<(u64, Refusal)> {
        let (request, code) = match *self {
            Self::Left | Self::NeverReads | Self::Os(_) => return None,
            Self::BadMessage { error: DecodeError::Version { .. }, request } => {
                (request, RefusalCode::Version)
            }
            Self::BadMessage { request, .. }
            | Self::NoHello { request }
            | Self::SecondHello { request }
            | Self::Replayed { request, .. } => (request, RefusalCode::BadMessage),
            Self::TooLong { .. } | Self::Files => (0, RefusalCode::BadMessage),
            Self::Flood => (0, RefusalCode::Limit),
        };
        let sentence = format!("gpreemptd closes this session because {self}");
        Some((request, Refusal::new(code, &sentence)))
    }
}

/// Bytes that the kernel keeps for a client that does not read. The kernel doubles it and counts
/// its own structures, so this is about seven packets of a snapshot, or 80 events.
const SEND_BUFFER_BYTES: usize = 32 << 10;

/// The process at the other end, as the kernel reports it. The daemon finds out which other groups
/// the user is in, and whether the process still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process that connected.
    pub pid: u32,
    /// Its effective user at that moment.
    pub uid: u32,
    /// Its effective group at that moment.
    pub gid: u32,
}

/// Why a snapshot is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// Another one is being sent.
    #[error("a snapshot is being sent already; read it first")]
    Busy,
    /// It is longer than the protocol allows.
    #[error("the snapshot is too long; the limit is 8 MiB")]
    TooLong,
    /// The session has ended.
    #[error(transparent)]
    CloseReason(#[from] CloseReason),
}

/// The session of one client. It never blocks.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    peer: Peer,
    limits: Limits,
    bucket: TokenBucket,
    role: Option<Role>,
    last_request: u64,
    queue: SendQueue,
    dropped: u64,
    sent: u64,
}

impl Connection {
    /// The session of a client that just connected; an error, with the socket, if the kernel does
    /// not report its process, which may be invisible in this pid namespace.
    fn new(socket: OwnedFd, limits: Limits, now: Instant) -> Result<Self, (Errno, OwnedFd)> {
        let peer = match peer_of(&socket) {
            Ok(peer) => peer,
            Err(error) => return Err((error, socket)),
        };
        // Without the limit a client that never reads costs more memory, nothing else.
        let _limited = set_socket_send_buffer_size(&socket, SEND_BUFFER_BYTES);
        Ok(Self {
            socket,
            peer,
            limits,
            bucket: TokenBucket::new(limits.packets_burst, limits.packets_per_second, now),
            role: None,
            last_request: 0,
            queue: SendQueue::default(),
            dropped: 0,
            sent: 0,
        })
    }

    /// The process at the other end.
    pub const fn peer(&self) -> Peer {
        self.peer
    }

    /// The kind of program, once it has sent `Hello`.
    pub const fn role(&self) -> Option<Role> {
        self.role
    }

    /// The next request, if there is one. Its session has begun with `Hello`, and its number has
    /// not been used before. After an error, call [`Connection::close`].
    pub fn recv(&mut self, now: Instant) -> Result<Option<Message<Request>>, CloseReason> {
        let mut buffer = [0; PACKET_BYTES_MAX];
        let bytes = match packet_socket::receive_without_files(&self.socket, &mut buffer) {
            // An empty packet looks the same as the end of the connection.
            Ok(Some(0)) | Err(Errno::CONNRESET) => return Err(CloseReason::Left),
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(CloseReason::Files),
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(CloseReason::Os(error)),
        };
        if !self.bucket.take(now) {
            return Err(CloseReason::Flood);
        }
        let packet = buffer.get(..bytes).ok_or(CloseReason::TooLong { bytes })?;
        let message = Message::<Request>::decode(packet)
            .map_err(|error| CloseReason::BadMessage { error, request: request_of(packet) })?;
        self.check(&message)?;
        Ok(Some(message))
    }

    /// Queues a reply and sends what the socket has room for.
    pub fn send(&mut self, request: u64, reply: Reply) -> Result<(), CloseReason> {
        self.send_with(Message { request, body: reply }, None)
    }

    /// Queues [`Reply::Page`] with the descriptor of the page.
    pub fn send_page(
        &mut self,
        request: u64,
        slots: u32,
        page: OwnedFd,
    ) -> Result<(), CloseReason> {
        self.send_with(Message { request, body: Reply::Page { slots } }, Some(page))
    }

    /// Queues a snapshot, which is sent in pieces as the client reads them.
    pub fn send_snapshot(&mut self, request: u64, text: Arc<str>) -> Result<(), SnapshotError> {
        if self.queue.has_snapshot() {
            return Err(SnapshotError::Busy);
        }
        if text.len() > SNAPSHOT_BYTES_MAX {
            return Err(SnapshotError::TooLong);
        }
        self.queue.push_snapshot(request, text);
        Ok(self.flush()?)
    }

    /// Queues an event if the client reads fast enough. Else the event is dropped, and the next one
    /// says how many were.
    pub fn send_event(&mut self, request: u64, event: Event) -> Result<(), CloseReason> {
        if self.queue.len() >= self.limits.waiting_events_max {
            self.flush()?;
        }
        if self.queue.len() >= self.limits.waiting_events_max {
            self.dropped = self.dropped.saturating_add(1);
            return Ok(());
        }
        let event = Event { dropped: self.take_dropped(), ..event };
        self.send(request, Reply::Event(event))
    }

    /// How many events were dropped since the last one that was sent: for [`Reply::End`].
    pub const fn take_dropped(&mut self) -> u64 {
        std::mem::replace(&mut self.dropped, 0)
    }

    /// Sends what the socket has room for: call it when the socket is writable.
    pub fn flush(&mut self) -> Result<(), CloseReason> {
        let (socket, sent) = (&self.socket, &mut self.sent);
        let flushed = self.queue.flush(|bytes, descriptor| {
            packet_socket::send(socket, bytes, descriptor.as_slice())?;
            *sent += 1;
            Ok(())
        });
        flushed.map_err(|error| match error {
            Errno::PIPE | Errno::CONNRESET => CloseReason::Left,
            other => CloseReason::Os(other),
        })
    }

    /// Whether packets wait until the socket is writable.
    pub fn wants_write(&self) -> bool {
        !self.queue.is_empty()
    }

    /// How many packets the socket has taken: unchanged while the client does not read.
    pub const fn sent_packets(&self) -> u64 {
        self.sent
    }

    /// Bytes that wait because the client does not read; of a snapshot, the whole text.
    pub fn unread_bytes(&self) -> usize {
        self.queue.bytes()
    }

    /// Ends the session, and sends the client the reason if there is room. Returns the socket, in
    /// which files of other processes may wait: a [`Closer`] closes it.
    pub fn close(self, reason: &CloseReason) -> OwnedFd {
        match reason.refusal() {
            Some((request, refusal)) => self.refuse(request, refusal),
            None => self.socket,
        }
    }

    /// Ends the session with a refusal, which is sent if there is room. Returns the socket as
    /// [`Connection::close`] does.
    pub fn refuse(self, request: u64, refusal: Refusal) -> OwnedFd {
        listener::refuse(&self.socket, request, refusal);
        self.socket
    }

    fn send_with(
        &mut self,
        message: Message<Reply>,
        descriptor: Option<OwnedFd>,
    ) -> Result<(), CloseReason> {
        self.queue.push(&message, descriptor);
        self.flush()?;
        let is_full = self.queue.len() > self.limits.waiting_max;
        if is_full { Err(CloseReason::NeverReads) } else { Ok(()) }
    }

    fn check(&mut self, message: &Message<Request>) -> Result<(), CloseReason> {
        let request = message.request;
        match (&message.body, self.role) {
            (Request::Hello { role, .. }, None) => self.role = Some(*role),
            (Request::Hello { .. }, Some(_)) => return Err(CloseReason::SecondHello { request }),
            (_, None) => return Err(CloseReason::NoHello { request }),
            (_, Some(_)) => {}
        }
        // Any thread may send `Wake`, in any order, so these have no numbers.
        if message.body == Request::Wake && request == 0 {
            return Ok(());
        }
        let last = std::mem::replace(&mut self.last_request, request);
        if request > last { Ok(()) } else { Err(CloseReason::Replayed { request, last }) }
    }
}

/// The process at the other end of a socket.
fn peer_of(socket: &OwnedFd) -> Result<Peer, Errno> {
    let credentials = socket_peercred(socket)?;
    let pid = u32::try_from(credentials.pid.as_raw_pid()).map_err(|_| Errno::SRCH)?;
    if pid == 0 {
        return Err(Errno::SRCH);
    }
    Ok(Peer { pid, uid: credentials.uid.as_raw(), gid: credentials.gid.as_raw() })
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
