//! One peer: who it is, what it has, and what it has not been told yet.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use gpreempt_core::id::QueueId;
use gpreempt_sim::external_gpu::MemoryId;
use rustix::event::epoll;
use rustix::io::Errno;

use gpreempt_wire::emulator::Reply;
use gpreempt_wire::message::Body;
use gpreempt_wire::packet_socket;

/// A connected peer.
#[derive(Debug)]
pub(super) struct Connection {
    /// Its name among the connections.
    pub(super) number: u64,
    pub(super) socket: OwnedFd,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) side: Side,
    /// Messages that did not fit into the socket.
    outbox: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// It does not read, or is gone: to be closed.
    pub(super) is_lost: bool,
}

/// What a peer is here for.
#[derive(Debug)]
pub(super) enum Side {
    /// It has not said.
    Silent,
    Client(ClientSide),
    Control(ControlSide),
}

/// What a client has.
#[derive(Debug)]
pub(super) struct ClientSide {
    pub(super) memory: MemoryId,
    pub(super) memory_bytes: usize,
    pub(super) bell: OwnedFd,
    pub(super) queues: BTreeSet<QueueId>,
}

/// What a controlling peer wants and did.
#[derive(Debug, Default)]
pub(super) struct ControlSide {
    pub(super) watches: bool,
    /// Whether what it did is undone when it is gone.
    pub(super) releases: bool,
    /// Queues it stopped or gave a slice.
    pub(super) touched: BTreeSet<QueueId>,
    /// Queues it lets be held.
    pub(super) held: BTreeSet<QueueId>,
    /// Calls that are not answered.
    pub(super) calls: usize,
}

/// Messages kept for a client: it asks before it is told.
const CLIENT_OUTBOX_MAX: usize = 64;
/// Messages kept for control: every queue there is, and some.
const CONTROL_OUTBOX_MAX: usize = 16 * 1024;

impl Connection {
    pub(super) fn new(number: u64, socket: OwnedFd, pid: u32, uid: u32) -> Self {
        let outbox = VecDeque::new();
        Self { number, socket, pid, uid, side: Side::Silent, outbox, is_lost: false }
    }

    /// Sends a message, now or as soon as the peer reads.
    pub(super) fn send(
        &mut self,
        epoll: &OwnedFd,
        request: u64,
        reply: &Reply,
        file: Option<OwnedFd>,
    ) {
        if self.is_lost {
            return;
        }
        let bytes = reply.encode(request);
        if self.outbox.is_empty() {
            match self.send_now(&bytes, file.as_ref()) {
                Ok(()) => return,
                Err(Errno::AGAIN) if self.watch(epoll, true).is_ok() => {}
                Err(_) => {
                    self.is_lost = true;
                    return;
                }
            }
        }
        let outbox_max = match self.side {
            Side::Silent | Side::Client(_) => CLIENT_OUTBOX_MAX,
            Side::Control(_) => CONTROL_OUTBOX_MAX,
        };
        self.is_lost = self.outbox.len() >= outbox_max;
        self.outbox.push_back((bytes, file));
    }

    /// The peer has read something: sends what is left.
    pub(super) fn flush(&mut self, epoll: &OwnedFd) -> Result<(), Errno> {
        while let Some((bytes, file)) = self.outbox.front() {
            match self.send_now(bytes, file.as_ref()) {
                Ok(()) => self.outbox.pop_front(),
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            };
        }
        self.watch(epoll, false)
    }

    fn send_now(&self, bytes: &[u8], file: Option<&OwnedFd>) -> Result<(), Errno> {
        packet_socket::send(&self.socket, bytes, file.map(AsFd::as_fd).as_slice())
    }

    /// Asks to be told when the peer says something, and whether it can be told more.
    fn watch(&self, epoll: &OwnedFd, output: bool) -> Result<(), Errno> {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, output);
        epoll::modify(epoll, &self.socket, self.socket_data(), flags)
    }

    /// What the system says when the socket is ready.
    pub(super) fn socket_data(&self) -> epoll::EventData {
        epoll::EventData::new_u64(super::FIRST_CONNECTION + 2 * self.number)
    }

    /// What the system says when the doorbell was rung.
    pub(super) fn bell_data(&self) -> epoll::EventData {
        epoll::EventData::new_u64(super::FIRST_CONNECTION + 2 * self.number + 1)
    }

    pub(super) fn client(&self) -> Option<&ClientSide> {
        match &self.side {
            Side::Client(side) => Some(side),
            Side::Silent | Side::Control(_) => None,
        }
    }

    pub(super) fn client_mut(&mut self) -> Option<&mut ClientSide> {
        match &mut self.side {
            Side::Client(side) => Some(side),
            Side::Silent | Side::Control(_) => None,
        }
    }

    pub(super) fn control_mut(&mut self) -> Option<&mut ControlSide> {
        match &mut self.side {
            Side::Control(side) => Some(side),
            Side::Silent | Side::Client(_) => None,
        }
    }

    pub(super) fn watches(&self) -> bool {
        matches!(&self.side, Side::Control(side) if side.watches)
    }
}
