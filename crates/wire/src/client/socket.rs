//! The client's end of the socket: whole packets, and never a wait without end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, connect};

use crate::header::PACKET_BYTES_MAX;
use crate::packet_socket::{self, new_socket, retry};

/// A socket that is connected to a daemon.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

/// A packet, and the descriptor that came with it.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) packet: Vec<u8>,
    pub(super) descriptor: Option<OwnedFd>,
}

impl Socket {
    /// Connects. A daemon that is alive and does not accept for that long gives `AGAIN`.
    pub(super) fn connect(path: &Path, timeout: Duration) -> Result<Self, Errno> {
        let socket = new_socket()?;
        // The kernel bounds connecting to a full queue by the time for sending; 0 is for ever.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(Duration::from_millis(1))))?;
        let address = SocketAddrUnix::new(path)?;
        retry(|| connect(&socket, &address))?;
        Ok(Self(socket))
    }

    /// Sends a packet, waiting for room until the deadline; then `TIMEDOUT`.
    pub(super) fn send(&self, packet: &[u8], deadline: Instant) -> Result<(), Errno> {
        loop {
            match self.try_send(packet) {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, Some(deadline))?,
                other => return other,
            }
        }
    }

    /// Sends a packet if there is room; else `AGAIN`.
    pub(super) fn try_send(&self, packet: &[u8]) -> Result<(), Errno> {
        packet_socket::send(&self.0, packet, &[])
    }

    /// The next packet, or `TIMEDOUT`; without a deadline this waits as long as the daemon lives.
    pub(super) fn receive(&self, deadline: Option<Instant>) -> Result<Received, Errno> {
        let mut was_reset = false;
        loop {
            match self.receive_now() {
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, deadline)?,
                // The daemon left with some of our packets unread, but maybe not without a word:
                // the error comes once, before what it sent last.
                Err(Errno::CONNRESET) if !was_reset => was_reset = true,
                other => return other,
            }
        }
    }

    fn receive_now(&self) -> Result<Received, Errno> {
        let mut packet = vec![0; PACKET_BYTES_MAX];
        let received = packet_socket::receive(&self.0, &mut packet)?;
        if received.bytes == 0 {
            return Err(Errno::PIPE);
        }
        // No reply has more than one.
        if received.is_cut || received.files.len() > 1 {
            return Err(Errno::MSGSIZE);
        }
        packet.truncate(received.bytes);
        Ok(Received { packet, descriptor: received.files.into_iter().next() })
    }

    /// Whether the daemon is still at the other end.
    pub(super) fn is_connected(&self) -> bool {
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
