//! A backend that takes processes in and puts them back as they were.
//!
//! The daemon's loop talks to every kind of device through [`Controller`]. Its required part is
//! what all of them do; what only some can do is a trait of its own, reached through an accessor
//! that says `None` by default. Nothing here names a vendor.
//!
//! Several controllers run side by side under one scheduler, so each counts its devices and queues
//! from a number of its own.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};

use gpreempt_core::backend::Backend;
use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use rustix::event::{EventfdFlags, eventfd};

use crate::act::{ActError, UndoError};
use crate::process::{ProcessError, ProcessKey};

/// Devices of one kind, and the processes on them that were adopted.
///
/// The daemon announces tasks to the scheduler; the controller announces their queues.
pub trait Controller: Backend + Debug {
    /// What kind of devices these are, in a word.
    fn kind(&self) -> &'static str;

    /// Takes a process in. What it has on these devices now and later becomes queues of `task`.
    ///
    /// # Errors
    /// If it cannot be looked into or has ended.
    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), AdoptError>;

    /// Puts a process back as it was and forgets it. Its task has to be gone for the scheduler.
    fn release(&mut self, task: TaskId);

    /// Processes that use these devices now. Later ones come as notes.
    fn users(&mut self) -> Vec<ProcessKey>;

    /// The devices it knows.
    fn devices(&self) -> Vec<DeviceName>;

    /// The names of the devices that a process uses which was not adopted, as far as it was seen.
    fn uuids_of(&self, process: ProcessKey) -> Vec<String>;

    /// The queues of a task.
    fn queues_of(&self, task: TaskId) -> Vec<QueueId>;

    /// Something that is not for the scheduler.
    fn poll_note(&mut self) -> Option<Note>;

    /// Ends what runs in the background and puts everything back as it was.
    ///
    /// # Errors
    /// The first thing that could not be put back.
    fn release_all(&mut self) -> Result<(), UndoError>;

    /// Where queues have numbers that their processes know too.
    fn numbered_queues(&self) -> Option<&dyn NumberedQueues> {
        None
    }

    /// Where a device can be told to fetch nothing more from a ring.
    fn parking(&self) -> Option<&dyn QueueParking> {
        None
    }

    /// The same, to tell it so.
    fn parking_mut(&mut self) -> Option<&mut dyn QueueParking> {
        None
    }

    /// Where a thread of the controller places holds from the page on which a process gives hints.
    fn hint_watching(&mut self) -> Option<&mut dyn HintWatching> {
        None
    }

    /// Where the kernel may schedule the devices itself and has to know priorities.
    fn priority_forwarding(&mut self) -> Option<&mut dyn PriorityForwarding> {
        None
    }

    /// Where devices can be held for a queue across its gaps.
    fn hold_reporting(&self) -> Option<&dyn HoldReporting> {
        None
    }

    /// Where there are several ways to stop queues.
    fn stop_method_reporting(&self) -> Option<&dyn StopMethodReporting> {
        None
    }

    /// Where processes that were not adopted matter to the order of the adopted ones.
    fn unadopted(&mut self) -> Option<&mut dyn UnadoptedProcesses> {
        None
    }

    /// Where new processes are found by looking again and again.
    fn rescanning(&mut self) -> Option<&mut dyn Rescanning> {
        None
    }
}

/// Queues with numbers that their processes know too.
pub trait NumberedQueues {
    /// The number of a queue on its device, if it has one.
    fn native(&self, queue: QueueId) -> Option<u64>;
}

/// Queues from whose rings a device can be told to fetch nothing more.
pub trait QueueParking {
    /// Whether the device of a queue can be told so.
    fn can_park(&self, queue: QueueId) -> bool;

    /// Tells it so, or to fetch again. What was fetched continues to run.
    fn park(&mut self, queue: QueueId, parked: bool);

    /// Whether nothing is fetched for a parked queue any more, and what was fetched has ended.
    fn is_at_rest(&self, queue: QueueId) -> bool;
}

/// A thread of the controller reads the hints of a process and places holds from them. The
/// scheduler is told of every hint as well, by the daemon's loop.
pub trait HintWatching {
    /// Where a task gives its hints. They are not in force any more once the page is dropped.
    fn watch_hints(&mut self, task: TaskId, sight: Weak<dyn HintSight>);

    /// Has the thread read the pages now instead of at its next look. The daemon's loop calls it
    /// when a process has woken it for a hint.
    fn read_hints_now(&mut self);
}

/// Priorities for devices that the kernel schedules.
pub trait PriorityForwarding {
    /// A task has this priority now.
    fn set_priority(&mut self, task: TaskId, priority: Priority);

    /// A queue has this priority now, or its task's again.
    fn set_queue_priority(&mut self, queue: QueueId, priority: Option<Priority>);
}

/// Devices that can be held for a queue across its gaps.
pub trait HoldReporting {
    /// The state of the hold of a queue, if it is known.
    fn hold_of(&self, queue: QueueId) -> Option<HoldStatus>;
}

/// Devices with several ways to stop queues.
pub trait StopMethodReporting {
    /// In which way queues are stopped here.
    fn way(&self) -> WayInUse;

    /// The same for a task, which may have less than others.
    fn way_of(&self, task: TaskId) -> Option<WayInUse>;

    /// What a task's process cannot have of what others can, if so.
    fn limit_of(&self, task: TaskId) -> Option<Limit>;
}

/// Processes on these devices that were not adopted.
pub trait UnadoptedProcesses {
    /// Stands for all of them with one priority, or no longer does: the adopted ones are compared
    /// with it where all of them are of one class. No process is touched for it.
    fn set_others(&mut self, priority: Option<Priority>);
}

/// New processes are found by looking again and again.
pub trait Rescanning {
    /// How often to look, at the least, for processes of which no event tells.
    fn set_rescan(&mut self, every: std::time::Duration);
}

/// Why a process was not taken in.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// It was before.
    #[error("process {0} is adopted already")]
    Twice(ProcessKey),
    /// Its pidfd cannot be opened.
    #[error("process {0}: {1}")]
    Unreachable(ProcessKey, io::Error),
    /// What it has on its devices could not be seen, in a sentence.
    #[error("{0}")]
    Unseen(String),
    /// It has ended, or that it is ours could not be written down.
    #[error(transparent)]
    Act(#[from] ActError),
}

impl From<ProcessError> for AdoptError {
    fn from(error: ProcessError) -> Self {
        Self::Act(error.into())
    }
}

/// A place where a process says that requests are coming, to be read at any time by any thread.
pub trait HintSight: Debug + Send + Sync {
    /// What it says now.
    fn look(&self) -> HintView;
}

/// What a process says of its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintView {
    /// How many it announced so far, whatever number that began with.
    pub begun: u64,
    /// Whether one is on its way.
    pub is_active: bool,
}

/// The state of the hold of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldStatus {
    /// The device is held for it when it needs that, and was so often.
    Ready(HoldFigures),
    /// That cannot be done, in a sentence.
    Impossible(String),
}

/// What became of the holds of a queue so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldFigures {
    /// How many holds were placed.
    pub placed: u64,
    /// How many of them were ended by the maximum.
    pub expired: u64,
    /// How long the longest was.
    pub longest_us: u64,
    /// Whether the device is held now.
    pub is_held: bool,
    /// How long the program has to be quiet until its hold is released.
    pub quiet_us: u64,
    /// How many looks came late while the program was at work.
    pub late_looks: u64,
    /// The longest time between two looks then.
    pub blind_us: u64,
}

/// In which way queues are stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayInUse {
    /// A short name.
    pub name: &'static str,
    /// What it is, in a sentence without an end.
    pub what: String,
    /// Why it is not a better one.
    pub why_not_better: Option<String>,
}

/// What a process cannot have of what others can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What and why, in a sentence.
    pub sentence: String,
    /// Whether it cannot be stopped at all.
    pub is_beyond: bool,
}

/// What a device is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// By the scheduler.
    pub id: DeviceId,
    /// By its vendor's tools.
    pub uuid: String,
}

/// To whoever runs the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Something did not work, in a sentence. The loop goes on.
    Problem(String),
    /// Problems that begin with these words are no more.
    Solved(String),
    /// A process that nobody adopted began to use a device, the first or another one.
    Appeared(ProcessKey),
    /// An adopted process ended, or left all of these devices for good.
    Ended(TaskId),
    /// An adopted process has other queues than before.
    Regrouped {
        /// Which task.
        task: TaskId,
        /// How many appeared.
        appeared: usize,
        /// How many vanished.
        vanished: usize,
    },
}

/// Names of devices and queues, counted from a number that nobody else counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    devices_from: u32,
    next_queue: u64,
}

impl Numbering {
    /// The numbering of the controller with that index.
    pub const fn of(controller: u16) -> Self {
        // CAST: widens.
        let index = controller as u32;
        Self { devices_from: index << 8, next_queue: ((index as u64) << 40) + 1 }
    }

    /// The same, with queues that are not called like those of an earlier start: whoever remembers
    /// one of those must not mean another by it.
    #[must_use]
    pub const fn since(mut self, start: u64) -> Self {
        self.next_queue += (start & 0xff_ffff) << 16;
        self
    }

    /// The name of this controller's device with that index.
    pub fn device(&self, index: usize) -> DeviceId {
        DeviceId(self.devices_from + u32::try_from(index).unwrap_or(u32::MAX >> 8))
    }

    /// Whether a queue can be one of those counted here, now or before.
    pub const fn may_name(&self, queue: QueueId) -> bool {
        queue.0 >> 40 == self.next_queue >> 40
    }

    /// A name that no queue had before.
    pub const fn queue(&mut self) -> QueueId {
        let queue = QueueId(self.next_queue);
        self.next_queue += 1;
        queue
    }
}

/// Wakes whoever runs the loop. A clone wakes the same one.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    /// A waker of a loop that waits for its descriptor to be readable.
    ///
    /// # Errors
    /// If there are no more descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { event: Arc::new(eventfd(0, flags)?) })
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        // It fails only when it was woken 2^64 - 2 times already, which is awake enough.
        let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
    }

    /// Takes note that it was woken.
    pub fn clear(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A completion the scheduler waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    /// That a queue is off.
    Preempt(QueueId),
    /// That a queue is on.
    Resume(QueueId),
}

impl Awaited {
    /// What the scheduler is told.
    pub(crate) fn event(self, result: Result<(), Fault>) -> Event {
        match (self, result) {
            (Self::Preempt(queue), Ok(())) => Event::Preempted { queue },
            (Self::Preempt(queue), Err(fault)) => Event::PreemptFailed { queue, fault },
            (Self::Resume(queue), Ok(())) => Event::Resumed { queue },
            (Self::Resume(queue), Err(fault)) => Event::ResumeFailed { queue, fault },
        }
    }
}

/// Where the threads of a controller report to it. A report wakes the loop. A clone reports to the
/// same controller.
#[derive(Debug)]
pub(crate) struct Reporter<R> {
    reports: Sender<R>,
    waker: Waker,
}

/// The controller is gone.
#[derive(Debug)]
pub(crate) struct Alone;

impl<R> Reporter<R> {
    /// A reporter, and where its reports arrive.
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<R>) {
        let (reports, incoming) = channel();
        (Self { reports, waker }, incoming)
    }

    /// Reports something.
    pub(crate) fn send(&self, report: R) -> Result<(), Alone> {
        self.reports.send(report).map_err(|_| Alone)?;
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
    fn controllers_do_not_share_names() {
        let (mut first, mut second) = (Numbering::of(0), Numbering::of(1));
        assert_ne!(first.queue(), first.queue());
        assert_ne!(first.queue(), second.queue());
        assert_ne!(first.device(0), second.device(0));
        assert_ne!(first.device(255), second.device(0));
        let mut later = Numbering::of(0).since(u64::MAX);
        assert!(later.queue() > first.queue() && later.queue() < second.queue());
        let queue = later.queue();
        assert!(first.may_name(queue) && !second.may_name(queue));
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
