//! Questions and answers over a connection, for both kinds of peers.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use gpreempt_core::time::Duration;
use rustix::event::PollFlags;
use rustix::io::Errno;

use super::{EmuError, REPLY_BYTES_MAX, Reply, Request};
use crate::message::Body;
use crate::packet_socket::{self, Received};

/// A message from the emulator, and the file that came with it.
pub(crate) type Message = (u64, Reply, Option<OwnedFd>);

/// One side of a connection to the emulator.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    last_request: u64,
    buffer: Vec<u8>,
    /// Messages that came while something else was waited for.
    pub(crate) pending: VecDeque<Message>,
}

/// When a timeout that begins now is over.
///
/// The clock is the standard library's. [`monotonic`](crate::clock::monotonic) finds the kernel's
/// clock page by itself, which crashes a process that runs under a memory checker, and the clients
/// of the emulator live in user programs.
pub(super) fn deadline(timeout: Duration) -> Instant {
    let now = Instant::now();
    let timeout = std::time::Duration::from_nanos(timeout.as_nanos());
    // A timeout beyond the end of the clock is a day.
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

    /// The next message if there is one.
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

    /// The next message that answers that request. Others are kept.
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

    /// Asks and waits for the answer.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        timeout: Duration,
    ) -> Result<(Reply, Option<OwnedFd>), EmuError> {
        let until = deadline(timeout);
        let number = self.send(request, until)?;
        self.answer(number, until)
    }

    /// Asks for something whose only good answer is that it is done.
    pub(crate) fn do_it(&mut self, request: &Request, timeout: Duration) -> Result<(), EmuError> {
        match self.ask(request, timeout)? {
            (Reply::Done, _) => Ok(()),
            _ => Err(EmuError::Confused),
        }
    }

    /// Asks for a list: everything up to the end of it.
    pub(crate) fn list(&mut self, timeout: Duration) -> Result<Vec<Reply>, EmuError> {
        let until = deadline(timeout);
        let number = self.send(&Request::List, until)?;
        let mut replies = Vec::new();
        loop {
            match self.answer(number, until)? {
                (Reply::Done, _) => return Ok(replies),
                (reply, _) => replies.push(reply),
            }
        }
    }
}
