//! Packets and file descriptors on Unix sockets, which carry all three protocols.
//!
//! The sockets are of type `SOCK_SEQPACKET`, so one packet is sent and received as a whole.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, sendmsg, socket_with,
};

/// A socket that is not connected yet.
pub fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// A socket that is connected to the listener at `path`.
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = new_socket()?;
    let address = SocketAddrUnix::new(path)?;
    retry(|| rustix::net::connect(&socket, &address))?;
    Ok(socket)
}

/// Sends a packet with up to two files; `AGAIN` if there is no room.
pub fn send(socket: impl AsFd, packet: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send_with(socket, packet, files, SendFlags::DONTWAIT)
}

/// Sends a packet with up to two files, and waits for room.
pub fn send_blocking(
    socket: impl AsFd,
    packet: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    send_with(socket, packet, files, SendFlags::empty())
}

fn send_with(
    socket: impl AsFd,
    packet: &[u8],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::NOBUFS);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    retry(|| sendmsg(&socket, &[IoSlice::new(packet)], &mut control, flags)).map(|_| ())
}

/// A packet that was received.
#[derive(Debug)]
pub struct Received {
    /// The length of the packet in the buffer. 0 is the end of the connection.
    pub bytes: usize,
    /// The files that came with it.
    pub files: Vec<OwnedFd>,
    /// Whether the packet was longer than the buffer, or had more than two files.
    pub is_cut: bool,
}

/// Receives a packet with up to two files; `AGAIN` if there is none.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry(|| recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut control, flags))?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, files, is_cut })
}

/// Receives a packet; `AGAIN` if there is none. The kernel closes files that come with it. Returns
/// the length of the packet, which may exceed the buffer. 0 is the end of the connection.
pub fn receive_bytes(socket: impl AsFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    retry(|| rustix::net::recv(&socket, &mut *buffer, flags)).map(|(_, bytes)| bytes)
}

/// Receives a packet without files; `AGAIN` if there is none. Returns the length of the packet,
/// which may exceed the buffer; 0 is the end of the connection. None if the packet has files: it
/// stays in the socket, and its files are neither taken nor closed.
pub fn receive_without_files(socket: impl AsFd, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let mut no_files = RecvAncillaryBuffer::default();
    let peeked = retry(|| {
        let buffers = &mut [IoSliceMut::new(buffer)];
        recvmsg(&socket, buffers, &mut no_files, flags | RecvFlags::PEEK)
    })?;
    if peeked.flags.contains(ReturnFlags::CTRUNC) {
        return Ok(None);
    }
    // The packet is in the buffer; this removes it from the socket.
    retry(|| rustix::net::recv(&socket, &mut [0; 0][..], flags))?;
    Ok(Some(peeked.bytes))
}

/// Waits until the socket can be read or written. False if the deadline came first.
pub(crate) fn wait(
    socket: impl AsFd,
    flags: PollFlags,
    deadline: Option<Instant>,
) -> Result<bool, Errno> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A wait that is too long for the kernel has no end.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&socket, flags)], left.as_ref()) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether the other side has closed the connection.
pub(crate) fn has_ended(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    retry(|| poll(&mut polled, Some(&now))).is_ok() && polled[0].revents().intersects(ends)
}

/// Calls again when a signal interrupted the call.
pub(crate) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_received_whole_and_carry_files() {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let (one, other) = pair;
        let null = std::fs::File::open("/dev/null").unwrap();
        send(&one, b"abc", &[null.as_fd(), one.as_fd()]).unwrap();
        send_blocking(&one, b"de", &[]).unwrap();
        send(&one, b"too long", &[]).unwrap();
        let mut buffer = [0; 4];
        let Received { bytes, files, is_cut } = receive(&other, &mut buffer).unwrap();
        assert_eq!((&buffer[..bytes], files.len(), is_cut), (&b"abc"[..], 2, false));
        drop(files);
        assert_eq!(receive_bytes(&other, &mut buffer), Ok(2));
        assert!(receive(&other, &mut buffer).unwrap().is_cut);
        assert_eq!(receive_bytes(&other, &mut buffer), Err(Errno::AGAIN));
        assert_eq!(wait(&other, PollFlags::IN, Some(Instant::now())), Ok(false));
        assert!(!has_ended(&other));
        send(&one, b"too long", &[]).unwrap();
        send(&one, b"abc", &[]).unwrap();
        send(&one, b"f", &[null.as_fd()]).unwrap();
        let mut without_files = || receive_without_files(&other, &mut buffer);
        assert_eq!(without_files(), Ok(Some(8)));
        assert_eq!([0; 2].map(|_| without_files()), [Ok(Some(3)), Ok(None)]);
        assert_eq!(without_files(), Ok(None), "a packet with files stays where it is");
        assert_eq!(receive(&other, &mut buffer).unwrap().files.len(), 1);
        send(&one, b"too long", &[]).unwrap();
        drop(one);
        assert!(has_ended(&other));
        assert_eq!(receive_bytes(&other, &mut buffer), Ok(8));
        assert_eq!(receive_bytes(&other, &mut buffer), Ok(0));
    }
}
