//! The client's end of the socket: whole packets, and never a wait without end.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, sendmsg, socket_with,
};

use crate::header::PACKET_BYTES_MAX;

/// A socket that is connected to a daemon.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

/// A packet, and the descriptor that came with it.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) packet: Vec<u8>,
    pub(crate) descriptor: Option<OwnedFd>,
}

impl Socket {
    /// Connects. A daemon that is alive and does not accept for that long gives `AGAIN`.
    pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<Self, Errno> {
        let socket = new_socket()?;
        // The kernel bounds connecting to a full queue by the time for sending; 0 is for ever.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout.max(Duration::from_millis(1))))?;
        let address = SocketAddrUnix::new(path)?;
        retry(|| connect(&socket, &address))?;
        Ok(Self(socket))
    }

    /// Sends a packet, waiting for room until the deadline; then `TIMEDOUT`.
    pub(crate) fn send(&self, packet: &[u8], deadline: Instant) -> Result<(), Errno> {
        loop {
            match send_now(&self.0, packet, None) {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, Some(deadline))?,
                other => return other,
            }
        }
    }

    /// Sends a packet if there is room; then `AGAIN`.
    pub(crate) fn try_send(&self, packet: &[u8]) -> Result<(), Errno> {
        send_now(&self.0, packet, None)
    }

    /// The next packet, or `TIMEDOUT`; without a deadline this waits as long as the daemon lives.
    pub(crate) fn receive(&self, deadline: Option<Instant>) -> Result<Received, Errno> {
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
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received =
            retry(|| recvmsg(&self.0, &mut [IoSliceMut::new(&mut packet)], &mut control, flags))?;
        if received.bytes == 0 {
            return Err(Errno::PIPE);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Errno::MSGSIZE);
        }
        packet.truncate(received.bytes);
        let descriptor = control.drain().find_map(|message| {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                descriptors.next()
            } else {
                None
            }
        });
        Ok(Received { packet, descriptor })
    }

    /// Whether the daemon is still at the other end.
    pub(crate) fn is_connected(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _count = retry(|| poll(&mut polled, Some(&now)));
        !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    fn wait(&self, flags: PollFlags, deadline: Option<Instant>) -> Result<(), Errno> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A wait that is too long for the kernel is one without end.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.0, flags)], left.as_ref()) {
                Ok(0) => return Err(Errno::TIMEDOUT),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A socket of the kind that both ends use.
pub(crate) fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends a packet, and a descriptor with it, if there is room; else `AGAIN`.
pub(crate) fn send_now(
    socket: impl AsFd,
    packet: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let descriptors = descriptor.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    retry(|| sendmsg(&socket, &[IoSlice::new(packet)], &mut control, flags)).map(|_| ())
}

/// Does it again when a signal came in between.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
