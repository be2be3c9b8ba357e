//! Files that clients pass with their packets. No request has any, so the daemon refuses them.
//!
//! The danger is their close: a TCP socket with unsent bytes and `SO_LINGER` blocks the thread that
//! closes its last descriptor for as long as its owner liked. The kernel closes passed files when
//! their packet is received without room for them, and when the socket that they wait in is
//! closed. So none of this may happen in the daemon's loop:
//!
//! - Where the kernel can (Linux 6.16), it refuses them at the sender: [`refuse_files`].
//! - Elsewhere a packet with files is never received
//!   ([`receive_without_files`](crate::packet_socket::receive_without_files)); its session ends.
//! - A socket in which files may wait is closed by a [`Closer`].
#![expect(unsafe_code, reason = "a socket option that rustix lacks, and a thread's own table")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use rustix::net::{Shutdown, shutdown};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `SOL_SOCKET` and `SO_PASSRIGHTS` of `asm-generic/socket.h`, which x86-64 and arm64 use.
const SOL_SOCKET: c_int = 1;
const SO_PASSRIGHTS: c_int = 83;

unsafe extern "C" {
    fn setsockopt(
        socket: c_int,
        level: c_int,
        option: c_int,
        value: *const c_void,
        length: u32,
    ) -> c_int;
}

/// Makes the kernel refuse files that are sent to this socket, and to those that it accepts.
/// False if the kernel is older than 6.16, which is no error.
pub(super) fn refuse_files(socket: BorrowedFd<'_>) -> bool {
    let off: c_int = 0;
    let length = u32::try_from(size_of::<c_int>()).unwrap_or(0);
    let value = (&raw const off).cast();
    // SAFETY: the descriptor is open, and the value lives until the call returns.
    unsafe { setsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_PASSRIGHTS, value, length) == 0 }
}

/// Closes sockets in which files of other processes may wait, without ever blocking its caller.
///
/// A task that is ending does not linger: the kernel skips the wait. So a thread gets a descriptor
/// table of its own, a copy; the caller closes the sockets in the common table, which are then not
/// the last descriptors; and the thread ends, which closes the last ones.
///
/// Where a thread may not have its own table (some container runtimes forbid `unshare`), it closes
/// the sockets itself and may block; [`Closer::is_full`] then says when too many wait.
#[derive(Debug)]
pub struct Closer {
    /// Whether files may wait in a socket.
    is_needed: bool,
    waiting: Vec<OwnedFd>,
    thread: Option<ClosingThread>,
    /// Threads that close sockets in the common table.
    blocked: Arc<AtomicUsize>,
}

/// A thread that has been started, and the sockets that its table will contain.
#[derive(Debug)]
struct ClosingThread {
    sockets: Vec<OwnedFd>,
    /// Whether the thread has its own table, once it knows.
    has_table: Receiver<bool>,
    /// Sockets that the thread closes itself. When this is dropped, the thread ends.
    to_close: Sender<Vec<OwnedFd>>,
}

impl Closer {
    /// Threads that may block at once.
    const THREADS_MAX: usize = 8;
    /// Sockets that may wait before no more clients are accepted.
    const WAITING_MAX: usize = 256;
    /// The thread calls few functions. Twice the least that the C library permits.
    const STACK_BYTES: usize = 32 << 10;

    /// For the sockets of a listener that does or does not [refuse](super::Listener) files.
    pub fn new(refuses_files: bool) -> Self {
        Self {
            is_needed: !refuses_files,
            waiting: Vec::new(),
            thread: None,
            blocked: Arc::default(),
        }
    }

    /// Ends the connection at once and closes the socket soon.
    pub fn close(&mut self, socket: OwnedFd) {
        if self.is_needed {
            // The peer must not wait for the close. It fails if the peer has closed its end.
            let _ended = shutdown(&socket, Shutdown::Both);
            self.waiting.push(socket);
        }
    }

    /// Whether sockets wait to be closed: call [`Closer::step`] soon.
    pub const fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.thread.is_some()
    }

    /// Whether so many sockets wait for threads that block that no more clients can be accepted.
    pub const fn is_full(&self) -> bool {
        self.waiting.len() >= Self::WAITING_MAX
    }

    /// Closes what can be closed now.
    pub fn step(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.finish(thread);
        }
        // ORDERING: a limit; the number may be out of date.
        let is_blocked = self.blocked.load(Ordering::Relaxed) >= Self::THREADS_MAX;
        if self.thread.is_none() && !self.waiting.is_empty() && !is_blocked {
            self.start();
        }
    }

    fn finish(&mut self, thread: ClosingThread) {
        match thread.has_table.try_recv() {
            Err(TryRecvError::Empty) => self.thread = Some(thread),
            // The thread has the last descriptors of these sockets.
            Ok(true) => drop(thread.sockets),
            Ok(false) | Err(TryRecvError::Disconnected) => {
                let unsent = thread.to_close.send(thread.sockets);
                // The thread has failed; the next one closes them.
                self.waiting.extend(unsent.err().map(|unsent| unsent.0).unwrap_or_default());
            }
        }
    }

    fn start(&mut self) {
        let (table_sender, has_table) = channel();
        let (to_close, to_close_receiver) = channel::<Vec<OwnedFd>>();
        let blocked = Arc::clone(&self.blocked);
        let run = move || {
            // SAFETY: the thread uses no descriptor from here on, unless this call fails.
            let has_table = unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_ok();
            let _sent = table_sender.send(has_table);
            if let Ok(sockets) = to_close_receiver.recv() {
                // ORDERING: as above.
                blocked.fetch_add(1, Ordering::Relaxed);
                drop(sockets);
                blocked.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let builder = thread::Builder::new().name("closer".to_owned());
        // Without a thread the sockets wait for the next step.
        if builder.stack_size(Self::STACK_BYTES).spawn(run).is_ok() {
            let sockets = std::mem::take(&mut self.waiting);
            self.thread = Some(ClosingThread { sockets, has_table, to_close });
        }
    }
}

impl Drop for Closer {
    /// The process is about to end, and the kernel does not linger for it.
    fn drop(&mut self) {
        let thread = self.thread.take();
        let rest = thread.into_iter().flat_map(|thread| thread.sockets);
        rest.chain(std::mem::take(&mut self.waiting)).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use rustix::net::sockopt::set_socket_linger;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use crate::packet_socket;

    /// Longer than this test may take.
    const LINGER: Duration = Duration::from_secs(60);

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    /// A socket whose last close blocks, and its other end.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65_536]).is_ok() {}
        set_socket_linger(&near, Some(LINGER)).unwrap();
        (near.into(), far)
    }

    fn is_open(socket: &TcpStream) -> bool {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let port = format!(":{:04X} ", socket.peer_addr().unwrap().port());
        // The state of a socket that belongs to a process is 01, established.
        table.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace();
            let local = fields.nth(1).map(|local| format!("{local} "));
            local.is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("01")
        })
    }

    #[test]
    fn a_socket_with_files_whose_close_lingers_is_closed_without_waiting() {
        let (ours, theirs) = pair();
        let (file, far) = lingering();
        packet_socket::send(&theirs, b"x", &[file.as_fd()]).unwrap();
        drop((file, theirs));
        assert!(is_open(&far));
        let begun = Instant::now();
        let mut closer = Closer::new(false);
        closer.close(ours);
        while closer.is_busy() {
            closer.step();
            thread::yield_now();
        }
        while is_open(&far) {
            assert!(begun.elapsed() < LINGER / 2, "the socket in the packet stays open");
            thread::yield_now();
        }
    }

    #[test]
    fn the_peer_is_disconnected_at_once() {
        let (ours, theirs) = pair();
        let mut closer = Closer::new(false);
        closer.close(ours);
        assert_eq!(packet_socket::receive_bytes(&theirs, &mut [0; 4]), Ok(0));
        assert!(closer.is_busy() && !closer.is_full());
    }

    #[test]
    fn too_many_waiting_sockets_are_noticed() {
        let mut closer = Closer::new(false);
        for _ in 0..Closer::WAITING_MAX / 2 {
            let (one, other) = pair();
            assert!(!closer.is_full());
            closer.close(one);
            closer.close(other);
        }
        assert!(closer.is_full());
        closer.step();
        assert!(!closer.is_full());
    }

    #[test]
    fn a_kernel_that_refuses_files_does_so_at_the_sender() {
        let (ours, theirs) = pair();
        if refuse_files(ours.as_fd()) {
            let sent = packet_socket::send(&theirs, b"x", &[theirs.as_fd()]);
            assert_eq!(sent, Err(rustix::io::Errno::PERM));
        }
        packet_socket::send(&theirs, b"x", &[]).unwrap();
    }
}
