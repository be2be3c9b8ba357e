//! What the daemon's loop needs of every kind of device.
//!
//! The loop uses [`Controller`]. Its required methods are common to all devices; features that only
//! some devices have are traits of their own, returned by methods whose default is `None`. Nothing
//! here names a vendor.
//!
//! Several controllers run side by side under one scheduler, so each counts its devices and queues
//! from a number of its own.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use gpreempt_core::backend::{Backend, Command};
use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};
use rustix::event::{EventfdFlags, eventfd};

use crate::change::{ChangeError, UndoError};
use crate::eviction::EvictDevice;
use crate::gauge::DeviceGauge;
use crate::process::{ProcessError, ProcessKey};

/// Devices of one kind, and the processes on them that were adopted.
///
/// The daemon announces tasks to the scheduler; the controller announces their queues.
pub trait Controller: Backend + Debug {
    /// The kind of devices, in a word.
    fn kind(&self) -> &'static str;

    /// Adopts a process. Its current and future queues on these devices become queues of `task`.
    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), AdoptError>;

    /// Reverts the changes of a process and forgets it. Its task must have vanished for the
    /// scheduler.
    fn release(&mut self, task: TaskId);

    /// Processes that use these devices now. Later ones come as reports.
    fn users(&mut self) -> Vec<ProcessKey>;

    fn devices(&self) -> Vec<DeviceName>;

    /// Finds the UUIDs of the devices that a process uses which was not adopted, as far as is
    /// known.
    fn device_search(&self, process: ProcessKey) -> DeviceSearch;

    fn queues_of(&self, task: TaskId) -> Vec<QueueId>;

    /// The next report that is not for the scheduler.
    fn poll_report(&mut self) -> Option<ControllerReport>;

    /// Ends all threads and reverts all changes. Returns the first error.
    fn release_all(&mut self) -> Result<(), UndoError>;

    /// Reads what the devices count and measure themselves, in a thread of the caller's.
    fn gauge(&self) -> Option<Box<dyn DeviceGauge>> {
        None
    }

    /// Through which driver the memory of its processes moves to the host and back. None if it
    /// cannot.
    fn evict_device(&self) -> Option<EvictDevice> {
        None
    }

    fn numbered_queues(&self) -> Option<&dyn NumberedQueues> {
        None
    }

    fn parking(&self) -> Option<&dyn QueueParking> {
        None
    }

    fn parking_mut(&mut self) -> Option<&mut dyn QueueParking> {
        None
    }

    fn hint_watching(&mut self) -> Option<&mut dyn HintWatching> {
        None
    }

    fn priority_forwarding(&mut self) -> Option<&mut dyn PriorityForwarding> {
        None
    }

    fn hold_reporting(&self) -> Option<&dyn HoldReporting> {
        None
    }

    fn stop_method_reporting(&self) -> Option<&dyn StopMethodReporting> {
        None
    }

    fn unadopted(&mut self) -> Option<&mut dyn UnadoptedProcesses> {
        None
    }

    fn rescanning(&mut self) -> Option<&mut dyn Rescanning> {
        None
    }
}

/// The search for the devices of a process, for another thread: it may read one file for each
/// queue of the process.
pub type DeviceSearch = Box<dyn FnOnce() -> Vec<String> + Send>;

/// Queues have numbers that their processes know too.
pub trait NumberedQueues {
    /// The number of a queue on its device, if it has one.
    fn native(&self, queue: QueueId) -> Option<u64>;
}

/// A device can be ordered to fetch nothing more from a ring.
pub trait QueueParking {
    fn can_park(&self, queue: QueueId) -> bool;

    /// Stops or restarts fetching. Fetched work continues to run.
    fn park(&mut self, queue: QueueId, parked: bool);

    /// Whether the device no longer fetches for a parked queue, and the fetched work has ended.
    fn is_at_rest(&self, queue: QueueId) -> bool;
}

/// A thread of the controller reads the hints of a process and places holds from them. The daemon's
/// loop passes every hint to the scheduler as well.
pub trait HintWatching {
    /// Sets where a task gives its hints. They end when the page is dropped.
    fn watch_hints(&mut self, task: TaskId, source: Weak<dyn HintSource>);

    /// Makes the thread read the pages now. The daemon's loop calls it when a process has woken it
    /// for a hint.
    fn read_hints_now(&mut self);
}

/// The kernel may schedule the devices itself and needs the priorities.
pub trait PriorityForwarding {
    fn set_priority(&mut self, task: TaskId, priority: Priority);

    /// Sets the priority of a queue, or with `None` its task's.
    fn set_queue_priority(&mut self, queue: QueueId, priority: Option<Priority>);
}

/// Devices can be held for a queue between its kernels.
pub trait HoldReporting {
    fn hold_of(&self, queue: QueueId) -> Option<HoldStatus>;

    /// What was noted of the holds of each queue since the last call.
    fn take_hold_records(&self) -> Vec<(QueueId, Vec<HoldRecord>)>;
}

/// What a hold watcher notes. Times are of `CLOCK_MONOTONIC`, and those of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldRecord {
    /// A hold that has ended.
    Held {
        placed_at: Instant,
        /// None if it ended before the queue was on the engine.
        on_engine_at: Option<Instant>,
        ended_at: Instant,
        /// The longest time in it without a movement of the queue's rings.
        longest_silence: Duration,
    },
    /// Two samples were further apart than usual while the queue was active.
    LateSample { from: Instant, until: Instant },
}

/// There are several methods to stop queues.
pub trait StopMethodReporting {
    fn stop_method(&self) -> StopMethodInUse;

    /// The method for a task, which may be a weaker one.
    fn stop_method_of(&self, task: TaskId) -> Option<StopMethodInUse>;

    /// What cannot be controlled of a task's process, if anything.
    fn limit_of(&self, task: TaskId) -> Option<ControlLimit>;
}

/// Processes that were not adopted matter to the order of the adopted ones.
pub trait UnadoptedProcesses {
    /// Adds or removes a placeholder task for the unmanaged processes, so that managed ones have
    /// something to be ranked against. No process is changed.
    fn set_unmanaged(&mut self, priority: Option<Priority>);
}

/// New processes are found by polling.
pub trait Rescanning {
    /// Sets the longest time between two scans.
    fn set_rescan(&mut self, every: std::time::Duration);
}

/// Why a process was not adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    #[error("process {0} is adopted already")]
    Twice(ProcessKey),
    /// Its pidfd cannot be opened.
    #[error("process {0}: {1}")]
    Unreachable(ProcessKey, io::Error),
    /// Its objects on the devices cannot be inspected.
    #[error("{0}")]
    Unseen(String),
    /// It has ended, or the claim could not be recorded.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl From<ProcessError> for AdoptError {
    fn from(error: ProcessError) -> Self {
        Self::Change(error.into())
    }
}

/// Where a process gives hints, to be read at any time by any thread.
pub trait HintSource: Debug + Send + Sync {
    fn look(&self) -> HintState;
}

/// The hints of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintState {
    /// The number of hints so far, counted from any number.
    pub begun: u64,
    /// Whether a request is announced or running.
    pub is_active: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldStatus {
    /// Holds are possible; what they did so far.
    Ready(HoldFigures),
    /// Why there are none.
    Impossible(String),
}

/// The holds of a queue so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldFigures {
    pub placed: u64,
    /// How many reached the maximum.
    pub expired: u64,
    pub longest_us: u64,
    /// Whether the device is held now.
    pub is_held: bool,
    /// The time without work after which a hold is released.
    pub quiet_us: u64,
    /// How many ring samples were late while the program was active.
    pub late_looks: u64,
    /// The longest time between two samples then.
    pub blind_us: u64,
    /// Whether idle fences show when its work has finished.
    pub is_fenced: bool,
    /// The part of the expected requests that came, while requests are predicted.
    pub predicted_percent: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopMethodInUse {
    pub name: &'static str,
    /// A sentence without a full stop.
    pub what: String,
    pub why_not_better: Option<String>,
}

/// What cannot be controlled of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlLimit {
    pub sentence: String,
    /// Whether it cannot be stopped at all.
    pub is_uncontrollable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    pub id: DeviceId,
    /// The name in the vendor's tools.
    pub uuid: String,
}

/// A report to the daemon's loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerReport {
    /// A failure, in a sentence. The controller continues.
    Problem(String),
    /// Problems that begin with these words are over.
    Solved(String),
    /// A process that was not adopted began to use a device, the first or another one.
    Appeared(ProcessKey),
    /// An adopted process ended, or left all of these devices for good.
    Ended(TaskId),
    /// An adopted process has other queues than before.
    QueuesChanged { task: TaskId, appeared: usize, vanished: usize },
}

/// Ids of devices and queues, counted from a number that no other controller counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    devices_from: u32,
    next_queue: u64,
}

impl Numbering {
    pub const fn of(controller: u16) -> Self {
        // CAST: widens.
        let index = controller as u32;
        Self { devices_from: index << 8, next_queue: ((index as u64) << 40) + 1 }
    }

    /// The same, with other queue ids than an earlier start: a client that remembers one of those
    /// must not name another queue with it.
    #[must_use]
    pub const fn since(mut self, start: u64) -> Self {
        self.next_queue += (start & 0xff_ffff) << 16;
        self
    }

    pub fn device(&self, index: usize) -> DeviceId {
        DeviceId(self.devices_from + u32::try_from(index).unwrap_or(u32::MAX >> 8))
    }

    /// An id that no queue had before.
    pub const fn queue(&mut self) -> QueueId {
        let queue = QueueId(self.next_queue);
        self.next_queue += 1;
        queue
    }
}

/// Wakes a thread that polls its descriptor. A clone wakes the same thread.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { event: Arc::new(eventfd(0, flags)?) })
    }

    pub fn wake(&self) {
        // It fails only after 2^64 - 2 wakes without a clear.
        let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
    }

    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A completion that the scheduler waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PendingCompletion {
    Preempt(QueueId),
    Resume(QueueId),
}

impl PendingCompletion {
    /// None for a command that has no completion.
    pub(crate) fn of(command: &Command) -> Option<Self> {
        let queue = command.queue();
        match command {
            Command::Preempt { .. } => Some(Self::Preempt(queue)),
            Command::Resume { .. } => Some(Self::Resume(queue)),
            Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::MeasureSlowdown { .. }
            | Command::SetHardwarePriority { .. } => None,
        }
    }

    pub(crate) fn event(self, result: Result<(), Fault>) -> Event {
        match (self, result) {
            (Self::Preempt(queue), Ok(())) => Event::Preempted { queue },
            (Self::Preempt(queue), Err(fault)) => Event::PreemptFailed { queue, fault },
            (Self::Resume(queue), Ok(())) => Event::Resumed { queue },
            (Self::Resume(queue), Err(fault)) => Event::ResumeFailed { queue, fault },
        }
    }
}

/// Through this the threads of a controller report to it. A report wakes the loop. A clone reports
/// to the same controller.
#[derive(Debug)]
pub(crate) struct Reporter<R> {
    reports: Sender<R>,
    waker: Waker,
}

/// The controller, which receives reports, no longer exists.
#[derive(Debug)]
pub(crate) struct Disconnected;

impl<R> Reporter<R> {
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<R>) {
        let (reports, incoming) = channel();
        (Self { reports, waker }, incoming)
    }

    pub(crate) fn send(&self, report: R) -> Result<(), Disconnected> {
        self.reports.send(report).map_err(|_| Disconnected)?;
        self.waker.wake();
        Ok(())
    }
}

impl<R> Clone for Reporter<R> {
    fn clone(&self) -> Self {
        Self { reports: self.reports.clone(), waker: self.waker.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn controllers_do_not_share_ids() {
        let (mut first, mut second) = (Numbering::of(0), Numbering::of(1));
        assert_ne!(first.queue(), first.queue());
        assert_ne!(first.queue(), second.queue());
        assert_ne!(first.device(0), second.device(0));
        assert_ne!(first.device(255), second.device(0));
        let mut later = Numbering::of(0).since(u64::MAX);
        assert!(later.queue() > first.queue() && later.queue() < second.queue());
    }

    #[test]
    fn a_waker_is_readable_until_it_is_cleared() {
        let waker = Waker::new().unwrap();
        let is_ready = || {
            let mut fds = [PollFd::new(&waker, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
        };
        assert!(!is_ready());
        waker.clone().wake();
        waker.wake();
        assert!(is_ready());
        waker.clear();
        assert!(!is_ready());
    }
}
