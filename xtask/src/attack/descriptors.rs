//! The attack with passed descriptors: sockets whose last close blocks, sent so that the daemon has
//! to close them.
//!
//! They arrive with a request, wait behind one, wait in a connection that was not accepted yet,
//! fill a packet (253, the most that the kernel passes), or are inside of another socket that is
//! passed.
//! [`on_older_kernel`] starts the daemon where the kernel cannot refuse them.
#![expect(unsafe_code, reason = "a filter for system calls, which rustix cannot install")]

use std::ffi::{c_int, c_ulong};
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use gpreempt_wire::message::Message;
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::text::Text;
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

use super::attackers::{daemon_socket, sleep};

/// How long the close of a socket with unsent bytes waits: longer than the attack.
const LINGER: Duration = Duration::from_secs(60);
/// The most files that the kernel passes with one packet.
const FILES_MAX: usize = 253;
/// Sockets of each process at most, and the pause between two.
const SOCKETS_MAX: usize = 400;
const PAUSE: Duration = Duration::from_millis(10);

/// Sockets whose last close blocks: they linger, and their other ends never read.
struct Sockets {
    listener: TcpListener,
    far_ends: Vec<TcpStream>,
}

impl Sockets {
    fn new() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        // Accepted sockets inherit it: the attack shall not use up the memory of the kernel.
        set_socket_recv_buffer_size(&listener, 4096)?;
        Ok(Self { listener, far_ends: Vec::new() })
    }

    fn make(&mut self) -> anyhow::Result<OwnedFd> {
        let mut near = TcpStream::connect(self.listener.local_addr()?)?;
        self.far_ends.push(self.listener.accept()?.0);
        set_socket_send_buffer_size(&near, 4096)?;
        near.set_nonblocking(true)?;
        while near.write(&[0; 4096]).is_ok_and(|bytes| bytes > 0) {}
        set_socket_linger(&near, Some(LINGER))?;
        Ok(near.into())
    }

    /// A socket that has another one in its queue.
    fn make_nested(&mut self) -> anyhow::Result<OwnedFd> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        send(&other, b"x", &[self.make()?.as_fd()])?;
        Ok(one)
    }
}

fn send(socket: &OwnedFd, packet: &[u8], files: &[BorrowedFd<'_>]) -> anyhow::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    anyhow::ensure!(control.push(SendAncillaryMessage::ScmRights(files)), "too many files");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags)?;
    Ok(())
}

/// Sends sockets in every way and closes its own copies, so that the daemon has the last ones.
pub(super) fn attack(end: Instant) -> anyhow::Result<()> {
    let mut sockets = Sockets::new()?;
    for round in 0.. {
        if Instant::now() >= end || sockets.far_ends.len() >= SOCKETS_MAX {
            break;
        }
        std::thread::sleep(PAUSE);
        // The daemon refuses a session that follows too soon, a newer kernel refuses the files, and
        // every kernel does so while too many of this user wait to be received. The attack goes on:
        // if it ended, so would the wait of a daemon that closes such a socket.
        let _refused = send_in_one_way(&mut sockets, round);
    }
    sleep(end)
}

fn send_in_one_way(sockets: &mut Sockets, round: u32) -> anyhow::Result<()> {
    let hello = Request::Hello { role: Role::Command, program: Text::new("attacker") };
    let hello = Message { request: 1, body: hello }.encode();
    let ping = |request| Message { request, body: Request::Ping }.encode();
    let session = gpreempt_wire::packet_socket::connect(&daemon_socket()?)?;
    if round.is_multiple_of(4) {
        // The daemon may not have accepted the connection, which ends here.
        return send(&session, &hello, &[sockets.make()?.as_fd()]);
    }
    gpreempt_wire::packet_socket::send(&session, &hello, &[])?;
    match round % 4 {
        1 => {
            send(&session, &ping(2), &[sockets.make()?.as_fd()])?;
            send(&session, &ping(3), &[sockets.make()?.as_fd()])
        }
        2 => send(&session, &ping(2), &[sockets.make()?.as_fd(); FILES_MAX]),
        _ => send(&session, &ping(2), &[sockets.make_nested()?.as_fd()]),
    }
}

/// One instruction of a filter: `struct sock_filter` of `linux/filter.h`.
#[repr(C)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// `struct sock_fprog` of `linux/filter.h`.
#[repr(C)]
struct Filter {
    length: u16,
    instructions: *const Instruction,
}

unsafe extern "C" {
    fn prctl(option: c_int, ...) -> c_int;
}

/// Runs a program as on a kernel without `SO_PASSRIGHTS` (before 6.16): setting it fails. With the
/// filter of a container, `unshare` fails too.
pub(super) fn on_older_kernel(program: &[String], has_filter: bool) -> anyhow::Result<()> {
    const PR_SET_SECCOMP: c_int = 22;
    const SECCOMP_MODE_FILTER: c_ulong = 2;
    const LOAD: u16 = 0x20;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    const FAIL_WITH_ENOPROTOOPT: u32 = 0x0005_0000 | 92;
    /// Offsets in `struct seccomp_data`: the number of the call, and its third argument.
    const NUMBER: u32 = 0;
    const OPTION: u32 = 32;
    const FAIL_WITH_EPERM: u32 = 0x0005_0000 | 1;
    #[cfg(target_arch = "x86_64")]
    const SETSOCKOPT: u32 = 54;
    #[cfg(not(target_arch = "x86_64"))]
    const SETSOCKOPT: u32 = 208;
    #[cfg(target_arch = "x86_64")]
    const UNSHARE: u32 = 272;
    #[cfg(not(target_arch = "x86_64"))]
    const UNSHARE: u32 = 97;
    const SO_PASSRIGHTS: u32 = 83;
    let step = |code, if_false, operand| Instruction { code, if_true: 0, if_false, operand };
    let of_unshare = if has_filter { FAIL_WITH_EPERM } else { ALLOW };
    let instructions = [
        step(LOAD, 0, NUMBER),
        step(JUMP_IF_EQUAL, 1, UNSHARE),
        step(RETURN, 0, of_unshare),
        step(JUMP_IF_EQUAL, 3, SETSOCKOPT),
        step(LOAD, 0, OPTION),
        step(JUMP_IF_EQUAL, 1, SO_PASSRIGHTS),
        step(RETURN, 0, FAIL_WITH_ENOPROTOOPT),
        step(RETURN, 0, ALLOW),
    ];
    let length = u16::try_from(instructions.len())?;
    let filter = Filter { length, instructions: instructions.as_ptr() };
    // SAFETY: the filter and its instructions live until the call returns.
    let result = unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const filter) };
    anyhow::ensure!(result == 0, "the filter: {}", std::io::Error::last_os_error());
    let (program, arguments) = program.split_first().context("the program is missing")?;
    Err(Command::new(program).args(arguments).exec().into())
}
