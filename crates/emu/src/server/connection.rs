//! Connections of clients and controllers: accepting, sending, closing. When a client disconnects,
//! its queues are closed; what a controller changed stays.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_sim::external_gpu::{Call, CallId, MemoryId};
use gpreempt_wire::emulator::{Reply, Request};
use gpreempt_wire::message::Body;
use gpreempt_wire::packet_socket::{self, connect, new_socket};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use super::Server;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) socket: OwnedFd,
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) side: Side,
    /// Messages that did not fit into the socket.
    outbox: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// Requests of a client whose process is locked or checkpointed, with their numbers.
    pub(super) waiting: VecDeque<(u64, Request)>,
    /// It does not read, or has disconnected: to be closed.
    pub(super) is_lost: bool,
}

#[derive(Debug)]
pub(super) enum Side {
    /// It has not sent `Hello`.
    Silent,
    Client(ClientSide),
    Control(ControlSide),
    Checkpointer,
}

#[derive(Debug)]
pub(super) struct ClientSide {
    pub(super) memory: MemoryId,
    pub(super) memory_bytes: usize,
    pub(super) bell: OwnedFd,
    pub(super) queues: BTreeSet<QueueId>,
    /// How many it has.
    pub(super) allocations: usize,
}

#[derive(Debug, Default)]
pub(super) struct ControlSide {
    pub(super) watches: bool,
    /// Whether its changes are reverted when it disconnects.
    pub(super) releases: bool,
    /// Queues that it stopped or whose slice it set.
    pub(super) touched: BTreeSet<QueueId>,
    /// Queues for which it permitted a hold.
    pub(super) held: BTreeSet<QueueId>,
    /// Calls without an answer.
    pub(super) calls: usize,
}

/// A client sends a request before it gets a message.
const CLIENT_OUTBOX_MAX: usize = 64;
/// At least one message per queue.
const CONTROL_OUTBOX_MAX: usize = 16 * 1024;

impl Connection {
    pub(super) fn new(number: u64, socket: OwnedFd, pid: u32, uid: u32) -> Self {
        let (outbox, waiting) = (VecDeque::new(), VecDeque::new());
        Self { number, socket, pid, uid, side: Side::Silent, outbox, waiting, is_lost: false }
    }

    /// Sends a message now, or when the peer reads.
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
            Side::Silent | Side::Client(_) | Side::Checkpointer => CLIENT_OUTBOX_MAX,
            Side::Control(_) => CONTROL_OUTBOX_MAX,
        };
        self.is_lost = self.outbox.len() >= outbox_max;
        self.outbox.push_back((bytes, file));
    }

    /// Sends queued messages after the peer has read some.
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

    /// Watches for input and, with `output`, for room in the socket.
    fn watch(&self, epoll: &OwnedFd, output: bool) -> Result<(), Errno> {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, output);
        epoll::modify(epoll, &self.socket, self.socket_data(), flags)
    }

    pub(super) fn socket_data(&self) -> epoll::EventData {
        epoll::EventData::new_u64(super::FIRST_CONNECTION + 2 * self.number)
    }

    pub(super) fn bell_data(&self) -> epoll::EventData {
        epoll::EventData::new_u64(super::FIRST_CONNECTION + 2 * self.number + 1)
    }

    pub(super) fn client(&self) -> Option<&ClientSide> {
        match &self.side {
            Side::Client(side) => Some(side),
            Side::Silent | Side::Control(_) | Side::Checkpointer => None,
        }
    }

    pub(super) fn client_mut(&mut self) -> Option<&mut ClientSide> {
        match &mut self.side {
            Side::Client(side) => Some(side),
            Side::Silent | Side::Control(_) | Side::Checkpointer => None,
        }
    }

    pub(super) fn control_mut(&mut self) -> Option<&mut ControlSide> {
        match &mut self.side {
            Side::Control(side) => Some(side),
            Side::Silent | Side::Client(_) | Side::Checkpointer => None,
        }
    }

    pub(super) fn watches(&self) -> bool {
        matches!(&self.side, Side::Control(side) if side.watches)
    }
}

const CONNECTIONS_MAX: usize = 2_048;
/// The limit of connections that have not sent `Hello`.
const SILENT_MAX: usize = 64;

/// A descriptor to close when the process has no other left.
pub(super) fn spare() -> Option<OwnedFd> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).ok()
}

impl Server {
    pub(super) fn accept(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.socket.fd, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::MFILE | Errno::NFILE) => {
                    // A connection that cannot be accepted would wake the loop for ever, so it is
                    // refused.
                    drop(self.spare.take());
                    let refused = rustix::net::accept_with(&self.socket.fd, flags);
                    let is_over = refused.is_err();
                    drop(refused);
                    self.spare = spare();
                    if is_over {
                        return;
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) {
        if self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        let silent = |connection: &&Connection| matches!(connection.side, Side::Silent);
        if self.connections.values().filter(silent).count() >= SILENT_MAX {
            let longest = self.connections.values().find(silent).map(|silent| silent.number);
            if let Some(number) = longest {
                self.close(number);
            }
        }
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let Ok(pid) = u32::try_from(peer.pid.as_raw_pid()) else { return };
        self.last_connection += 1;
        let connection = Connection::new(self.last_connection, socket, pid, peer.uid.as_raw());
        let data = connection.socket_data();
        if epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN).is_ok() {
            self.connections.insert(connection.number, connection);
        }
    }
}

impl Server {
    pub(super) fn close(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        match connection.side {
            // Steps that it began complete; their ends find no connection.
            Side::Silent | Side::Checkpointer => {}
            Side::Client(client) => self.end_client(number, client),
            Side::Control(control) => self.end_control(number, &control),
        }
    }

    fn end_client(&mut self, number: u64, client: ClientSide) {
        for queue in client.queues {
            self.close_queue(queue);
        }
        self.gpu.close_memory(client.memory);
        self.memory_bytes -= client.memory_bytes;
        self.announce(&Reply::TaskGone(TaskId(number)));
    }

    fn end_control(&mut self, number: u64, control: &ControlSide) {
        let asked =
            |(&call, &(owner, _)): (&CallId, &(u64, u64))| (owner == number).then_some(call);
        let calls: Vec<CallId> = self.calls.iter().filter_map(asked).collect();
        for call in calls {
            self.calls.remove(&call);
            self.gpu.forget_call(call);
        }
        // A hold belongs to the controller that permitted it.
        for &queue in &control.held {
            self.gpu.forbid_hold(queue);
        }
        if control.releases {
            for &queue in &control.touched {
                self.release(queue);
            }
        }
    }

    /// Reverts all changes to a queue, without a reply.
    fn release(&mut self, queue: QueueId) {
        for call in [Call::SetSlice(None), Call::Unpark, Call::Resume] {
            let id = self.next_call();
            self.gpu.call(id, queue, call);
        }
    }

    pub(super) fn next_call(&mut self) -> CallId {
        self.last_call += 1;
        CallId(self.last_call)
    }
}

const BACKLOG: i32 = 128;

/// Listens at `path`, replacing a socket that an emulator left behind.
pub(super) fn listen(path: &Path) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new(path)?;
    let listener = new_socket()?;
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

/// Whether no program listens at a socket.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = rustix::fs::lstat(path)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_socket());
    is_socket && connect(path).is_err_and(|errno| errno == Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_socket_is_replaced_and_a_used_one_is_not() {
        let folder = gpreempt_stage::WorkFolder::new("listen").unwrap();
        let path = folder.path("socket");
        let first = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err(), Errno::ADDRINUSE);
        drop(first);
        drop(listen(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        assert_eq!(listen(&path).unwrap_err(), Errno::ADDRINUSE);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
