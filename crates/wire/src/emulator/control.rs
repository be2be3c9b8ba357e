//! For a scheduler's backend: who is there, stop this, let that go on.
//!
//! A [`Control`] can be used in two ways, and it is best to have one connection for each: calls
//! that wait for their answer, for worker threads; and, with [`Options::watches`], events as they
//! come, for a loop that waits for the socket to be readable. What is stopped stays stopped when
//! the connection ends, unless [`Options::releases`] says otherwise: somebody else has to undo it.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use crate::emulator::EmuError;
use crate::emulator::connection::{Connection, deadline};
use crate::emulator::ring_page::QueuePage;
use crate::emulator::{DeviceInfo, QueueInfo, Refusal, Reply, Request, Role, TaskInfo, UsageInfo};
use crate::shared_memory::Access;

/// What a controlling connection is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether it is told of tasks and queues that appear and vanish.
    pub watches: bool,
    /// Whether everything it stopped or slowed is undone when it ends.
    pub releases: bool,
    /// How long the emulator may take to answer.
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

/// Everything there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Devices.
    pub devices: Vec<DeviceInfo>,
    /// Tasks.
    pub tasks: Vec<TaskInfo>,
    /// Queues.
    pub queues: Vec<QueueInfo>,
}

/// Something that happened.
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
        /// Which one.
        queue: QueueId,
        /// Whether the device gave it up because of what was in its ring.
        is_faulted: bool,
    },
    /// A request that was begun with [`Control::begin`] is through.
    Completed {
        /// Its number.
        request: u64,
        /// How it went.
        result: Result<(), Refusal>,
    },
}

impl Control {
    /// Connects.
    ///
    /// # Errors
    /// There is no emulator, or this user may not control it.
    pub fn connect(path: &Path, options: Options) -> Result<Self, EmuError> {
        let Options { watches, releases, timeout } = options;
        let mut connection = Connection::connect(path)?;
        let hello = Request::Hello(Role::Control { watches, releases });
        let (Reply::Welcome { instance, .. }, _) = connection.ask(&hello, timeout)? else {
            return Err(EmuError::Confused);
        };
        Ok(Self { connection, timeout, instance })
    }

    /// Differs from one emulator to the next: names of tasks and queues of another are worth
    /// nothing.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Everything there is now. Events that came before are older than this, so a queue may be in
    /// both.
    ///
    /// # Errors
    /// The emulator is gone, or slow.
    pub fn list(&mut self) -> Result<Listing, EmuError> {
        let mut listing = Listing::default();
        for reply in self.connection.list(self.timeout)? {
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
                | Reply::Usage(_) => return Err(EmuError::Confused),
            }
        }
        Ok(listing)
    }

    /// Takes a queue off its device, in the middle of whatever it does, and returns when it is.
    ///
    /// # Errors
    /// The queue or the emulator is gone, or it takes too long. Then it may happen yet.
    pub fn stop(&mut self, queue: QueueId) -> Result<(), EmuError> {
        self.connection.do_it(&Request::Stop(queue), self.timeout)
    }

    /// Lets a queue go on.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn resume(&mut self, queue: QueueId) -> Result<(), EmuError> {
        self.connection.do_it(&Request::Resume(queue), self.timeout)
    }

    /// Fetches nothing more from a queue's ring; what was fetched ends, which its page shows.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn park(&mut self, queue: QueueId) -> Result<(), EmuError> {
        self.connection.do_it(&Request::Park(queue), self.timeout)
    }

    /// Fetches again.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn unpark(&mut self, queue: QueueId) -> Result<(), EmuError> {
        self.connection.do_it(&Request::Unpark(queue), self.timeout)
    }

    /// Gives a queue a slice; none is the one it came with.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn set_slice(&mut self, queue: QueueId, slice: Option<Duration>) -> Result<(), EmuError> {
        self.connection.do_it(&Request::SetSlice { queue, slice }, self.timeout)
    }

    /// This queue alone may be held across its gaps on its device, as long as this connection
    /// lasts.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn permit_hold(&mut self, queue: QueueId) -> Result<(), EmuError> {
        self.connection.do_it(&Request::PermitHold(queue), self.timeout)
    }

    /// This queue may no longer be held.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn forbid_hold(&mut self, queue: QueueId) -> Result<(), EmuError> {
        self.connection.do_it(&Request::ForbidHold(queue), self.timeout)
    }

    /// Tells the hardware a queue's priority.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn set_priority(&mut self, queue: QueueId, priority: Priority) -> Result<(), EmuError> {
        self.connection.do_it(&Request::SetPriority { queue, priority }, self.timeout)
    }

    /// A queue's page, to be read at any time without asking.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn page(&mut self, queue: QueueId) -> Result<QueuePage, EmuError> {
        let answer = self.connection.ask(&Request::Page(queue), self.timeout)?;
        let (Reply::Page { capacity, .. }, Some(file)) = answer else {
            return Err(EmuError::Confused);
        };
        Ok(QueuePage::open(file.as_fd(), capacity, Access::ReadOnly)?)
    }

    /// What a queue is given and has got.
    ///
    /// # Errors
    /// As [`Control::stop`].
    pub fn usage(&mut self, queue: QueueId) -> Result<UsageInfo, EmuError> {
        match self.connection.ask(&Request::Usage(queue), self.timeout)? {
            (Reply::Usage(usage), _) => Ok(usage),
            _ => Err(EmuError::Confused),
        }
    }

    /// Begins a request without waiting; its end is an event. For requests whose answer is that
    /// they are done. (The late answer to a call that was given up is an event of the same kind,
    /// with a number that was never begun.)
    ///
    /// # Errors
    /// The emulator is gone, or does not listen.
    pub fn begin(&mut self, request: &Request) -> Result<u64, EmuError> {
        self.connection.send(request, deadline(self.timeout))
    }

    /// The next event, if one came. Does not wait. After a call that waited there may be some
    /// although the socket is not readable.
    ///
    /// # Errors
    /// The emulator is gone.
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
                | Reply::Usage(_) => continue,
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
