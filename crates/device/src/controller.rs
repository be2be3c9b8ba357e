//! A backend that takes processes in and puts them back as they were.
//!
//! Several of them run side by side under one scheduler, so each counts its devices and queues from
//! a number of its own.

mod awaited;
mod reporter;

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use gpreempt_core::backend::Backend;
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use rustix::event::{EventfdFlags, eventfd};

use crate::nvidia::hold::HoldFigures;
use crate::process::ProcessKey;
pub(crate) use awaited::Awaited;
pub(crate) use reporter::{Alone, Reporter};

/// Devices of one kind, and the processes on them that were adopted.
///
/// Tasks are announced to the scheduler by whoever adopts them; their queues by the controller.
pub trait Controller: Backend + Debug {
    /// What kind of devices these are, in a word.
    fn kind(&self) -> &'static str;

    /// Takes a process in. What it has on these devices now and later becomes queues of `task`.
    ///
    /// # Errors
    /// If it cannot be looked into or has ended.
    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), String>;

    /// Puts a process back as it was and forgets it. Its task has to be gone for the scheduler.
    fn release(&mut self, task: TaskId);

    /// Processes that use these devices now. Later ones come as notes.
    fn users(&mut self) -> Vec<ProcessKey>;

    /// The devices it knows.
    fn devices(&self) -> Vec<DeviceName>;

    /// The queues of a task.
    fn queues_of(&self, task: TaskId) -> Vec<QueueId>;

    /// The number of a queue on its device, where it has one that its process knows too.
    fn native(&self, _queue: QueueId) -> Option<u64> {
        None
    }

    /// Whether the device of a queue can be told to fetch nothing more from its ring.
    fn can_park(&self, _queue: QueueId) -> bool {
        false
    }

    /// Tells it so, or to fetch again. What was fetched goes on.
    fn park(&mut self, _queue: QueueId, _parked: bool) {}

    /// Whether nothing is fetched for a parked queue any more, and what was fetched has ended.
    fn is_at_rest(&self, _queue: QueueId) -> bool {
        false
    }

    /// The names of the devices that a process uses which nobody adopted, as far as it was seen.
    fn uuids_of(&self, _process: ProcessKey) -> Vec<String> {
        Vec::new()
    }

    /// What a task's process cannot have of what others can, if so.
    fn limit_of(&self, _task: TaskId) -> Option<Limit> {
        None
    }

    /// A task has this priority now, for devices that are scheduled by somebody who has to be told.
    fn set_priority(&mut self, _task: TaskId, _priority: Priority) {}

    /// The same for a queue, or it has its task's again.
    fn set_queue_priority(&mut self, _queue: QueueId, _priority: Option<Priority>) {}

    /// In which way queues are stopped here, where there are several.
    fn way(&self) -> Option<WayInUse> {
        None
    }

    /// The same for a task, which may have less than others.
    fn way_of(&self, _task: TaskId) -> Option<WayInUse> {
        None
    }

    /// Stands for everybody on these devices who was not adopted, or no longer does: whom the
    /// adopted ones are compared with where all of them are of one class. Nobody is touched for it.
    fn set_others(&mut self, _priority: Option<Priority>) {}

    /// How often it is looked, at the least, for what nobody announces.
    fn set_rescan(&mut self, _every: std::time::Duration) {}

    /// A task says that a request is coming, or is done. The scheduler hears of it as well; this is
    /// for whoever can do something before it decides.
    fn hint(&mut self, _task: TaskId, _begins: bool) {}

    /// Where a task says the same, for whoever looks there more often than it is told. What it
    /// says is not in force any more once nobody else has it.
    fn watch_hints(&mut self, _task: TaskId, _sight: Weak<dyn HintSight>) {}

    /// How it stands with the hold of a queue, where there are holds.
    fn hold_of(&self, _queue: QueueId) -> Option<HoldStatus> {
        None
    }

    /// Something that is not for the scheduler.
    fn poll_note(&mut self) -> Option<Note>;

    /// Ends what runs in the background and puts everything back as it was.
    ///
    /// # Errors
    /// What could not be put back.
    fn release_all(&mut self) -> Result<(), String>;
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

/// How it stands with the hold of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldStatus {
    /// The device is held for it when it needs that, and was so often.
    Ready(HoldFigures),
    /// That cannot be done, in a sentence.
    Impossible(String),
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
