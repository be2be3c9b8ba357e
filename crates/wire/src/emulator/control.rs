//! The connection of a scheduler's backend: lists tasks and queues, stops and resumes them.
//!
//! A [`Control`] can be used in two ways, and it is best to have one connection for each: calls
//! that wait for their reply, for worker threads; and, with [`Options::watches`], events as they
//! arrive, for a loop that waits for the socket to be readable. Stopped queues stay stopped when
//! the connection ends, unless [`Options::releases`] is set: another program has to undo it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use super::connection::{Connection, deadline};
use super::ring_page::QueuePage;
use super::{
    DeviceInfo, DeviceMemory, EmuError, ProcessMemory, QueueInfo, Refusal, Reply, Request, Role,
    TaskInfo, UsageInfo,
};
use crate::shared_memory::Access;

/// The properties of a controlling connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether it receives an event for each task and queue that appears or vanishes.
    pub watches: bool,
    /// Whether the emulator undoes everything that it stopped or slowed when it ends.
    pub releases: bool,
    /// How long to wait for a reply.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { watches: false, releases: false, timeout: Duration::from_millis(5_000) }
    }
}

/// A controlling connection.
#[derive(Debug)]
pub struct Control {
    connection: Connection,
    timeout: Duration,
    instance: u64,
}

/// All devices, tasks and queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The devices.
    pub devices: Vec<DeviceInfo>,
    /// The tasks.
    pub tasks: Vec<TaskInfo>,
    /// The queues.
    pub queues: Vec<QueueInfo>,
}

/// How the memory of all devices is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The devices.
    pub devices: Vec<DeviceMemory>,
    /// Processes that have memory.
    pub processes: Vec<ProcessMemory>,
}

/// An event of a controlling connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A task appeared.
    TaskAppeared(TaskInfo),
    /// A task vanished; its queues did so before.
    TaskVanished(TaskId),
    /// A queue appeared.
    QueueAppeared(QueueInfo),
    /// A queue vanished.
    QueueVanished {
        /// The queue.
        queue: QueueId,
        /// Whether the device closed it because of an error in its ring.
        is_faulted: bool,
    },
    /// A request that was begun with [`Control::begin`] has ended.
    Completed {
        /// The number of the request.
        request: u64,
        /// Whether it was carried out.
        result: Result<(), Refusal>,
    },
}

/// Methods that send one request, and return when the emulator has carried it out.
macro_rules! calls {
    ($($(#[$doc:meta])+ $name:ident($($argument:ident: $type:ty),+) => $request:expr;)+) => {
        $(
            $(#[$doc])+
            pub fn $name(&mut self, $($argument: $type),+) -> Result<(), EmuError> {
                self.connection.expect_done(&$request, self.timeout)
            }
        )+
    };
}

impl Control {
    /// Connects. Only root and the emulator's own user may.
    pub fn connect(path: &Path, options: Options) -> Result<Self, EmuError> {
        let Options { watches, releases, timeout } = options;
        let mut connection = Connection::connect(path)?;
        let hello = Request::Hello(Role::Control { watches, releases });
        let (Reply::Welcome { instance, .. }, _) = connection.ask(&hello, timeout)? else {
            return Err(EmuError::UnexpectedReply);
        };
        Ok(Self { connection, timeout, instance })
    }

    /// Differs between emulators: ids of another emulator are invalid.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// All devices, tasks and queues. Events that arrived before are older than this, so a queue
    /// may be in both.
    pub fn list(&mut self) -> Result<Listing, EmuError> {
        let mut listing = Listing::default();
        for reply in self.connection.list(&Request::List, self.timeout)? {
            match reply {
                Reply::Device(device) => listing.devices.push(device),
                Reply::Task(task) => listing.tasks.push(task),
                Reply::Queue(queue) => listing.queues.push(queue),
                Reply::Welcome { .. }
                | Reply::Done
                | Reply::Refused(_)
                | Reply::Opened { .. }
                | Reply::Data { .. }
                | Reply::TaskGone(_)
                | Reply::QueueGone { .. }
                | Reply::Page { .. }
                | Reply::Usage(_)
                | Reply::DeviceUsage { .. }
                | Reply::Allocated { .. }
                | Reply::DeviceMemory(_)
                | Reply::ProcessMemory(_)
                | Reply::CheckpointState(_) => return Err(EmuError::UnexpectedReply),
            }
        }
        Ok(listing)
    }

    calls! {
        /// Takes a queue off its device, in the middle of a kernel, and returns when it is off.
        /// After a timeout it may still happen.
        stop(queue: QueueId) => Request::Stop(queue);
        /// Lets a queue run again.
        resume(queue: QueueId) => Request::Resume(queue);
        /// Stops fetching from a queue's ring; fetched kernels finish, which its page shows.
        park(queue: QueueId) => Request::Park(queue);
        /// Fetches from a queue's ring again.
        unpark(queue: QueueId) => Request::Unpark(queue);
        /// Sets the slice of a queue; none is the one that it began with.
        set_slice(queue: QueueId, slice: Option<Duration>) => Request::SetSlice { queue, slice };
        /// Permits holds on the device for this queue alone, as long as this connection lasts.
        permit_hold(queue: QueueId) => Request::PermitHold(queue);
        /// Forbids holds for this queue.
        forbid_hold(queue: QueueId) => Request::ForbidHold(queue);
        /// Sets the hardware priority of a queue.
        set_priority(queue: QueueId, priority: Priority) =>
            Request::SetPriority { queue, priority };
    }

    /// The page of a queue, which can be read at any time without a request.
    pub fn page(&mut self, queue: QueueId) -> Result<QueuePage, EmuError> {
        let answer = self.connection.ask(&Request::Page(queue), self.timeout)?;
        let (Reply::Page { capacity, .. }, Some(file)) = answer else {
            return Err(EmuError::UnexpectedReply);
        };
        Ok(QueuePage::open(file.as_fd(), capacity, Access::ReadOnly)?)
    }

    /// The settings of a queue, and how much it ran.
    pub fn usage(&mut self, queue: QueueId) -> Result<UsageInfo, EmuError> {
        match self.connection.ask(&Request::Usage(queue), self.timeout)? {
            (Reply::Usage(usage), _) => Ok(usage),
            _ => Err(EmuError::UnexpectedReply),
        }
    }

    /// How long at least one queue of a device has had waves on compute units.
    pub fn device_busy(&mut self, device: DeviceId) -> Result<Duration, EmuError> {
        match self.connection.ask(&Request::DeviceUsage { device }, self.timeout)? {
            (Reply::DeviceUsage { busy, .. }, _) => Ok(busy),
            _ => Err(EmuError::UnexpectedReply),
        }
    }

    /// How the memory of all devices is used.
    pub fn memory(&mut self) -> Result<MemoryUsage, EmuError> {
        let mut usage = MemoryUsage::default();
        for reply in self.connection.list(&Request::Memory, self.timeout)? {
            if let Reply::DeviceMemory(memory) = reply {
                usage.devices.push(memory);
            } else if let Reply::ProcessMemory(memory) = reply {
                usage.processes.push(memory);
            } else {
                return Err(EmuError::UnexpectedReply);
            }
        }
        Ok(usage)
    }

    /// Sends a request that is answered with `Done` without waiting; its end is an event. (The late
    /// reply to a call that timed out is an event of the same kind, with a number that was never
    /// begun.)
    pub fn begin(&mut self, request: &Request) -> Result<u64, EmuError> {
        self.connection.send(request, deadline(self.timeout))
    }

    /// The next event, if one has arrived. Does not wait. After a call that waited there may be
    /// events although the socket is not readable.
    pub fn poll_event(&mut self) -> Result<Option<ControlEvent>, EmuError> {
        loop {
            let message = match self.connection.pending.pop_front() {
                Some(message) => Some(message),
                None => self.connection.receive()?,
            };
            let Some((request, reply, _)) = message else { return Ok(None) };
            let completed = |result| ControlEvent::Completed { request, result };
            return Ok(Some(match reply {
                Reply::Task(task) => ControlEvent::TaskAppeared(task),
                Reply::TaskGone(task) => ControlEvent::TaskVanished(task),
                Reply::Queue(queue) => ControlEvent::QueueAppeared(queue),
                Reply::QueueGone { queue, is_faulted } => {
                    ControlEvent::QueueVanished { queue, is_faulted }
                }
                Reply::Done => completed(Ok(())),
                Reply::Refused(refusal) => completed(Err(refusal)),
                Reply::Welcome { .. }
                | Reply::Opened { .. }
                | Reply::Data { .. }
                | Reply::Device(_)
                | Reply::Page { .. }
                | Reply::Usage(_)
                | Reply::DeviceUsage { .. }
                | Reply::Allocated { .. }
                | Reply::DeviceMemory(_)
                | Reply::ProcessMemory(_)
                | Reply::CheckpointState(_) => continue,
            }));
        }
    }
}

impl AsFd for Control {
    /// The socket: readable when there are events.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.socket().as_fd()
    }
}
