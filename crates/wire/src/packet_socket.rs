//! Packets and file descriptors on Unix sockets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// A socket, not connected.
fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A socket connected to whoever listens at `path`. Its calls wait; see [`ready`].
pub fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A socket that listens at `path`, in the place of one that nobody listens at any more.
pub fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let listener = socket()?;
    match rustix::net::bind(&listener, &address) {
        Err(Errno::ADDRINUSE) if is_abandoned(path) => {
            rustix::fs::unlink(path)?;
            rustix::net::bind(&listener, &address)?;
        }
        other => other?,
    }
    rustix::net::listen(&listener, BACKLOG)?;
    rustix::io::ioctl_fionbio(&listener, true)?;
    Ok(listener)
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Whether there is a socket that nobody listens at.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = rustix::fs::lstat(path)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket());
    is_socket && connect(path).is_err_and(|errno| errno == Errno::CONNREFUSED)
}

/// Sends a packet, with a file descriptor if there is one. Does not wait.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
    Ok(())
}

/// Sends a packet with up to two file descriptors, and waits for room if there is none.
pub fn send_files(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    let bytes = [IoSlice::new(bytes)];
    let flags = SendFlags::NOSIGNAL;
    loop {
        match rustix::net::sendmsg(socket, &bytes, &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives a packet with up to two file descriptors. Does not wait.
pub fn receive_files(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            files.extend(received);
        }
    }
    Ok((received.bytes, files))
}

/// Receives a packet into `buffer`, and a file descriptor if there is one. Does not wait. A
/// packet of no bytes is the end.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(usize, Option<OwnedFd>), Errno> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags)?;
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            file = files.last();
        }
    }
    Ok((received.bytes, file))
}

/// Receives a packet from somebody who has no files to give: the kernel drops any.
pub fn receive_bytes(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    let (_, bytes) = rustix::net::recv(socket, buffer, RecvFlags::DONTWAIT)?;
    Ok(bytes)
}

/// Waits until something can be received, at most until `until`. False: nothing can.
pub fn ready(socket: impl AsFd, until: gpreempt_core::time::Instant) -> Result<bool, Errno> {
    use rustix::event::{PollFd, PollFlags};
    loop {
        let left = until.since(crate::clock::stopwatch());
        let left = std::time::Duration::from_nanos(left.as_nanos());
        let timeout = rustix::time::Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        let mut files = [PollFd::new(&socket, PollFlags::IN)];
        match rustix::event::poll(&mut files, Some(&timeout)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Whether the other side has closed.
pub fn has_ended(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut files = [PollFd::new(&socket, PollFlags::RDHUP)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(&mut files, Some(&now)).is_ok() && files[0].revents().intersects(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("gpreempt-{name}-{}", std::process::id()))
    }

    #[test]
    fn an_abandoned_socket_is_replaced_and_a_live_one_is_not() {
        let path = path("listen");
        let first = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err(), Errno::ADDRINUSE);
        drop(first);
        drop(listen(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(listen(&path).unwrap_err(), Errno::ADDRINUSE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn packets_keep_their_borders_and_carry_files() {
        let path = path("packets");
        let listener = listen(&path).unwrap();
        let one = connect(&path).unwrap();
        let other = rustix::net::accept(&listener).unwrap();
        std::fs::remove_file(&path).unwrap();
        send(one.as_fd(), b"abc", Some(listener.as_fd())).unwrap();
        send(one.as_fd(), b"de", None).unwrap();
        let mut buffer = [0; 16];
        let (bytes, file) = receive(other.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..bytes], file.is_some()), (&b"abc"[..], true));
        assert_eq!(receive_bytes(other.as_fd(), &mut buffer), Ok(2));
        assert_eq!(receive_bytes(other.as_fd(), &mut buffer), Err(Errno::AGAIN));
        drop(one);
        assert_eq!(receive_bytes(other.as_fd(), &mut buffer), Ok(0));
    }
}
