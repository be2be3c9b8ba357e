//! A client that knows no rules, and a daemon that is stepped by hand.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use gpreempt_core::time::Instant;
use gpreempt_stage::Stage;
use gpreempt_wire::message::Message;
use gpreempt_wire::reply::Reply;
use gpreempt_wire::request::Request;
use gpreempt_wire::role::Role;
use gpreempt_wire::server::{Accepted, Connection, Limits, Listener};
use gpreempt_wire::text::Text;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketType, connect, recvmsg, sendmsg, socket,
};

pub(crate) struct Raw(pub(crate) OwnedFd);

impl Raw {
    pub(crate) fn connect(path: &Path) -> Self {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self(socket)
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut SendAncillaryBuffer::default(), flags)
    }

    pub(crate) fn ask(&self, request: u64, body: Request) {
        self.send(&Message { request, body }.encode()).unwrap();
    }

    /// The next reply; nothing if the daemon has closed the session.
    pub(crate) fn reply(&self) -> Option<Message<Reply>> {
        let mut packet = [0; 5000];
        loop {
            let mut control = RecvAncillaryBuffer::default();
            let mut parts = [IoSliceMut::new(&mut packet)];
            match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::DONTWAIT) {
                Ok(received) if received.bytes == 0 => return None,
                Ok(received) => return Some(Message::decode(&packet[..received.bytes]).unwrap()),
                // Said once, before what is left to read.
                Err(Errno::CONNRESET) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

pub(crate) fn hello() -> Request {
    Request::Hello { role: Role::Command, program: Text::new("raw") }
}

/// A client, and the daemon's end of its session.
pub(crate) fn pair(limits: Limits) -> (Stage, Listener, Raw, Connection) {
    let folder = Stage::new("wire").unwrap();
    let mut listener = Listener::bind(&folder.socket()).unwrap();
    let client = Raw::connect(&folder.socket());
    let connection = accept(&mut listener, limits);
    (folder, listener, client, connection)
}

pub(crate) fn accept(listener: &mut Listener, limits: Limits) -> Connection {
    let accepted = listener.accept(limits, Instant::ZERO).unwrap();
    let Accepted::Client(connection) = accepted else { panic!("{accepted:?}") };
    connection
}

/// Waits until there is something to read. The limit is far more than any test needs.
pub(crate) fn wait(on: impl AsFd) {
    let patience = Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut polled = [PollFd::new(&on, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&patience)), Ok(1), "nothing came");
}
