//! Requests and replies over a connection, for both kinds of peers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gpreempt_core::time::Duration;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::{REPLY_BYTES_MAX, Refusal, Reply, Request};
use crate::message::{Body, DecodeError};
use crate::packet_socket::{self, Received};

/// A reply with its number, and the file that came with it.
pub(crate) type Message = (u64, Reply, Option<OwnedFd>);

/// Why a call of the emulator failed.
#[derive(Debug, thiserror::Error)]
pub enum EmuError {
    /// No emulator listens at the socket.
    #[error("no emulated GPU at {path}: {error}; start one with `gpreempt-emu --socket {path}`")]
    Connect {
        /// The path of the socket.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// The emulator refused the request.
    #[error("the emulated GPU refused: {0}")]
    Refused(Refusal),
    /// The emulator has ended, and with it all queues and memory.
    #[error("the emulated GPU has ended")]
    Gone,
    /// A queue was closed because of what its client wrote into its ring.
    #[error("the emulated GPU closed a queue: a packet or an index in its ring was wrong")]
    Faulted,
    /// The ring is full: wait for the device to fetch something.
    #[error("the ring is full")]
    Full,
    /// No answer in time.
    #[error("the emulated GPU did not answer in time")]
    TimedOut,
    /// The emulator sent something that is no message.
    #[error("the answer of the emulated GPU cannot be decoded: {0}")]
    Wire(#[from] DecodeError),
    /// The emulator sent a reply that does not answer the request.
    #[error("the emulated GPU sent an unexpected reply")]
    UnexpectedReply,
    /// The kernel reports an error.
    #[error("{0}")]
    System(#[from] io::Error),
}

impl From<Errno> for EmuError {
    fn from(errno: Errno) -> Self {
        Self::System(errno.into())
    }
}

/// One side of a connection to the emulator.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    last_request: u64,
    buffer: Vec<u8>,
    /// Replies that arrived while another one was expected.
    pub(crate) pending: VecDeque<Message>,
}

/// When a timeout that begins now ends.
///
/// The clock is the standard library's. [`monotonic`](crate::monotonic) finds the kernel's clock
/// page by itself, which crashes a process that runs under a memory checker, and the clients of
/// the emulator run in user programs.
pub(super) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    let timeout = std::time::Duration::from_nanos(timeout.as_nanos());
    // A timeout beyond the range of the clock is limited to a day.
    now.checked_add(timeout).unwrap_or(now + std::time::Duration::from_secs(86_400))
}

impl Connection {
    pub(crate) fn connect(path: &Path) -> Result<Self, EmuError> {
        let socket = packet_socket::connect(path)
            .map_err(|errno| EmuError::Connect { path: path.to_owned(), error: errno.into() })?;
        let buffer = vec![0; REPLY_BYTES_MAX];
        Ok(Self { socket, last_request: 0, buffer, pending: VecDeque::new() })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends a request and returns its number.
    pub(crate) fn send(&mut self, request: &Request, until: Instant) -> Result<u64, EmuError> {
        self.last_request += 1;
        let packet = request.encode(self.last_request);
        loop {
            match packet_socket::send(&self.socket, &packet, &[]) {
                Ok(()) => return Ok(self.last_request),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(EmuError::Gone),
                Err(Errno::AGAIN) => {
                    if !packet_socket::wait(&self.socket, PollFlags::OUT, Some(until))? {
                        return Err(EmuError::TimedOut);
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next reply, if there is one.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, EmuError> {
        match packet_socket::receive(&self.socket, &mut self.buffer) {
            Ok(Received { bytes: 0, .. }) | Err(Errno::CONNRESET | Errno::PIPE) => {
                Err(EmuError::Gone)
            }
            Ok(Received { bytes, files, .. }) => {
                let (request, reply) = Reply::decode(&self.buffer[..bytes])?;
                Ok(Some((request, reply, files.into_iter().next())))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The next reply to that request. Others are kept.
    pub(crate) fn answer(
        &mut self,
        request: u64,
        until: Instant,
    ) -> Result<(Reply, Option<OwnedFd>), EmuError> {
        loop {
            match self.receive()? {
                Some((answered, Reply::Refused(refusal), _)) if answered == request => {
                    return Err(EmuError::Refused(refusal));
                }
                Some((answered, reply, file)) if answered == request => return Ok((reply, file)),
                Some(other) => self.pending.push_back(other),
                None if !packet_socket::wait(&self.socket, PollFlags::IN, Some(until))? => {
                    return Err(EmuError::TimedOut);
                }
                None => {}
            }
        }
    }

    /// Sends a request and waits for the reply.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        timeout: Duration,
    ) -> Result<(Reply, Option<OwnedFd>), EmuError> {
        let until = deadline(timeout);
        let number = self.send(request, until)?;
        self.answer(number, until)
    }

    /// Sends a request that is answered with `Done`.
    pub(crate) fn expect_done(
        &mut self,
        request: &Request,
        timeout: Duration,
    ) -> Result<(), EmuError> {
        match self.ask(request, timeout)? {
            (Reply::Done, _) => Ok(()),
            _ => Err(EmuError::UnexpectedReply),
        }
    }

    /// The replies to a request whose last reply is `Done`.
    pub(crate) fn list(
        &mut self,
        request: &Request,
        timeout: Duration,
    ) -> Result<Vec<Reply>, EmuError> {
        let until = deadline(timeout);
        let number = self.send(request, until)?;
        let mut replies = Vec::new();
        loop {
            match self.answer(number, until)? {
                (Reply::Done, _) => return Ok(replies),
                (reply, _) => replies.push(reply),
            }
        }
    }
}
