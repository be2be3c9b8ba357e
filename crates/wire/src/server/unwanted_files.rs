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

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `SOL_SOCKET` and `SO_PASSRIGHTS` of `asm-generic/socket.h`, which x86-64 and arm64 use.
const SOL_SOCKET: c_int = 1;
const SO_PASSRIGHTS: c_int = 83;
/// Of `linux/prctl.h` and `asm-generic/signal.h`.
const PR_SET_PDEATHSIG: c_int = 1;
const SIGKILL: c_ulong = 9;

unsafe extern "C" {
    fn setsockopt(
        socket: c_int,
        level: c_int,
        option: c_int,
        value: *const c_void,
        length: u32,
    ) -> c_int;
    fn fork() -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    safe fn getppid() -> c_int;
    safe fn pause() -> c_int;
    safe fn _exit(status: c_int) -> !;
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
/// Where a thread may not have its own table (the filters of container runtimes forbid `unshare`),
/// the thread forks, and the child has the copy. It calls no other code and is killed.
#[derive(Debug)]
pub struct Closer {
    /// Whether files may wait in a socket.
    is_needed: bool,
    waiting: Vec<OwnedFd>,
    thread: Option<ClosingThread>,
    /// Threads may not have their own tables.
    needs_process: bool,
}

/// A thread that has been started, and the sockets that its table will contain.
#[derive(Debug)]
struct ClosingThread {
    sockets: Vec<OwnedFd>,
    /// What has a copy of the table, once there is one.
    copy: Receiver<Copied>,
    /// When this is dropped, the thread ends, and with it the copy.
    _end: Sender<()>,
}

/// What has a copy of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    Thread,
    Process,
    /// There are too many processes; it is tried again.
    Nothing,
}

impl Closer {
    /// Sockets that may wait before no more clients are accepted.
    const WAITING_MAX: usize = 256;
    /// The thread calls few functions. Twice the least that the C library permits.
    const STACK_BYTES: usize = 32 << 10;

    /// For the sockets of a listener that does or does not [refuse](super::Listener) files.
    pub const fn new(refuses_files: bool) -> Self {
        let is_needed = !refuses_files;
        Self { is_needed, waiting: Vec::new(), thread: None, needs_process: false }
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

    /// Whether so many sockets wait that no more clients can be accepted: this process may start
    /// neither threads nor processes now.
    pub const fn is_full(&self) -> bool {
        self.waiting.len() >= Self::WAITING_MAX
    }

    /// Closes what can be closed now.
    pub fn step(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.finish(thread);
        }
        if self.thread.is_none() && !self.waiting.is_empty() {
            self.start();
        }
    }

    fn finish(&mut self, thread: ClosingThread) {
        match thread.copy.try_recv() {
            Err(TryRecvError::Empty) => self.thread = Some(thread),
            Ok(copied @ (Copied::Thread | Copied::Process)) => {
                self.needs_process = copied == Copied::Process;
                // The copy has the last descriptors of these sockets.
                drop(thread.sockets);
            }
            Ok(Copied::Nothing) | Err(TryRecvError::Disconnected) => {
                self.waiting.extend(thread.sockets);
            }
        }
    }

    fn start(&mut self) {
        let (copy_sender, copy) = channel();
        let (end, is_over) = channel();
        let needs_process = self.needs_process;
        let run = move || {
            if !needs_process {
                // SAFETY: the thread uses no descriptor from here on, unless this call fails.
                if unsafe { unshare_unsafe(UnshareFlags::FILES) }.is_ok() {
                    let _sent = copy_sender.send(Copied::Thread);
                    let _ended = is_over.recv();
                    return;
                }
            }
            let child = fork_with_files();
            let copied = if child.is_some() { Copied::Process } else { Copied::Nothing };
            let _sent = copy_sender.send(copied);
            let _ended = is_over.recv();
            if let Some(child) = child {
                // It ends at once, and only this thread waits for it.
                let _killed = kill_process(child, Signal::KILL);
                while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
            }
        };
        let builder = thread::Builder::new().name("closer".to_owned());
        // Without a thread the sockets wait for the next step.
        if builder.stack_size(Self::STACK_BYTES).spawn(run).is_ok() {
            let sockets = std::mem::take(&mut self.waiting);
            self.thread = Some(ClosingThread { sockets, copy, _end: end });
        }
    }
}

/// A child that has copies of all descriptors and does nothing. It is killed when the thread that
/// called this ends. None if there are too many processes.
fn fork_with_files() -> Option<Pid> {
    let parent = std::process::id().cast_signed();
    // SAFETY: the child calls only functions that may be called after the fork of a program with
    // threads, and never returns from here.
    let child = unsafe { fork() };
    if child == 0 {
        // SAFETY: this option has a signal as its argument.
        unsafe { prctl(PR_SET_PDEATHSIG, SIGKILL) };
        // The parent may have ended before.
        while getppid() == parent {
            pause();
        }
        _exit(0)
    }
    if child > 0 { Pid::from_raw(child) } else { None }
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
        close_one_that_lingers(Closer::new(false));
    }

    #[test]
    fn a_process_closes_it_where_a_thread_may_not_have_its_own_files() {
        let mut closer = Closer::new(false);
        closer.needs_process = true;
        let closer = close_one_that_lingers(closer);
        assert!(closer.needs_process);
    }

    fn close_one_that_lingers(mut closer: Closer) -> Closer {
        let (ours, theirs) = pair();
        let (file, far) = lingering();
        packet_socket::send(&theirs, b"x", &[file.as_fd()]).unwrap();
        drop((file, theirs));
        assert!(is_open(&far));
        let begun = Instant::now();
        closer.close(ours);
        while closer.is_busy() {
            closer.step();
            thread::yield_now();
        }
        while is_open(&far) {
            assert!(begun.elapsed() < LINGER / 2, "the socket in the packet stays open");
            thread::yield_now();
        }
        closer
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
            assert_eq!(sent, Err(Errno::PERM));
        }
        packet_socket::send(&theirs, b"x", &[]).unwrap();
    }
}
