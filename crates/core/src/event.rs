//! What the world tells the scheduler.

use core::fmt;

use crate::capability::Capabilities;
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::priority::Priority;
use crate::ring::RingView;
use crate::time::Duration;

/// What is known of a task when it appears. All but the gang can be changed later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskTraits {
    /// How important it is.
    pub priority: Priority,
    /// Its part of the device under the fair policy. At least 1.
    pub weight: u32,
    /// How long after its arrival a request should be done.
    pub deadline: Option<Duration>,
    /// Who it must run and stop together with.
    pub gang: Option<GangId>,
}

impl Default for TaskTraits {
    fn default() -> Self {
        Self { priority: Priority::DEFAULT, weight: 1, deadline: None, gang: None }
    }
}

/// Why the hardware did not do what it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It did not answer in time.
    TimedOut,
    /// It said no; the number is the vendor's, or [`Fault::UNASKED`].
    Refused(u32),
    /// The queue is no longer there. That is no failure: the backend also reports that the queue
    /// vanished, and no further command is given for it.
    Gone,
}

impl Fault {
    /// It was not even asked: something of ours failed, and whoever tried has said what.
    pub const UNASKED: Self = Self::Refused(u32::MAX);
}

/// Something that happened outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A device can be used.
    DeviceAppeared {
        /// Its name.
        device: DeviceId,
        /// What it can do.
        capabilities: Capabilities,
    },
    /// What a stop and a resume cost on a device is different now, for example because there are
    /// more processes to stop, one after the other.
    DeviceCost {
        /// Its name.
        device: DeviceId,
        /// From the preempt command to the queue being off.
        preempt_cost: Duration,
        /// From the resume command to the queue running again.
        resume_cost: Duration,
    },
    /// Somebody else decides who runs on a device, or no longer does. As long as it is so, queues
    /// are taken off only because somebody suspended them, and all others are let on.
    DeviceYielded {
        /// Its name.
        device: DeviceId,
        /// Whether it is so from now on.
        yielded: bool,
    },
    /// A device is gone, with every queue on it.
    DeviceVanished {
        /// Its name.
        device: DeviceId,
    },
    /// A process started to use a device.
    TaskAppeared {
        /// Its name.
        task: TaskId,
        /// What is known of it.
        traits: TaskTraits,
    },
    /// A task's traits are different now. The gang stays what it was.
    TaskChanged {
        /// Its name.
        task: TaskId,
        /// What is known of it now.
        traits: TaskTraits,
    },
    /// Somebody took a task off its devices whatever its priority, or lets it on again.
    TaskSuspended {
        /// Its name.
        task: TaskId,
        /// Whether it is to stay off from now on.
        suspended: bool,
    },
    /// A process ended, with every queue it had.
    TaskVanished {
        /// Its name.
        task: TaskId,
    },
    /// A task has one more queue.
    QueueAppeared {
        /// Its name.
        queue: QueueId,
        /// Whose it is.
        task: TaskId,
        /// Where it is.
        device: DeviceId,
        /// Whether it is off already: stopped by a scheduler before us, and now adopted.
        stopped: bool,
    },
    /// A queue has a priority of its own, or again its task's.
    QueueChanged {
        /// Its name.
        queue: QueueId,
        /// The priority, or none for the task's.
        priority: Option<Priority>,
    },
    /// Somebody took one queue off its device whatever its priority, or lets it on again.
    QueueSuspended {
        /// Its name.
        queue: QueueId,
        /// Whether it is to stay off from now on.
        suspended: bool,
    },
    /// A queue is gone.
    QueueVanished {
        /// Its name.
        queue: QueueId,
    },
    /// A ring was read.
    RingObserved {
        /// Whose ring.
        queue: QueueId,
        /// What it showed.
        ring: RingView,
    },
    /// A task says that a request is coming: the urgent path that needs no polling.
    HintBegin {
        /// Who says so.
        task: TaskId,
        /// When the request should be done, from now.
        deadline: Option<Duration>,
    },
    /// A task says that its request is done.
    HintEnd {
        /// Who says so.
        task: TaskId,
    },
    /// A preempt is done: the queue is off.
    Preempted {
        /// Which queue.
        queue: QueueId,
    },
    /// A preempt did not happen: the queue runs on.
    PreemptFailed {
        /// Which queue.
        queue: QueueId,
        /// Why.
        fault: Fault,
    },
    /// A resume is done: the queue is on.
    Resumed {
        /// Which queue.
        queue: QueueId,
    },
    /// A resume did not happen: the queue is still off.
    ResumeFailed {
        /// Which queue.
        queue: QueueId,
        /// Why.
        fault: Fault,
    },
}

/// An event that cannot be true. It changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventError {
    /// It names a device that is not there.
    UnknownDevice(DeviceId),
    /// It names a task that is not there.
    UnknownTask(TaskId),
    /// It names a queue that is not there, for example one that vanished meanwhile.
    UnknownQueue(QueueId),
    /// A device of that name is there already.
    DuplicateDevice(DeviceId),
    /// A task of that name is there already.
    DuplicateTask(TaskId),
    /// A queue of that name is there already.
    DuplicateQueue(QueueId),
    /// A completion of something that was not asked for.
    NotAskedFor(QueueId),
    /// A weight of zero.
    ZeroWeight(TaskId),
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownDevice(id) => write!(f, "{id} is not known; announce it first"),
            Self::UnknownTask(id) => write!(f, "{id} is not known; announce it first"),
            Self::UnknownQueue(id) => write!(f, "{id} is not known; it may have vanished"),
            Self::DuplicateDevice(id) => write!(f, "{id} is known already; use another name"),
            Self::DuplicateTask(id) => write!(f, "{id} is known already; use another name"),
            Self::DuplicateQueue(id) => write!(f, "{id} is known already; use another name"),
            Self::NotAskedFor(id) => write!(f, "{id} completed a command nobody gave; ignored"),
            Self::ZeroWeight(id) => write!(f, "{id} has weight 0; a weight is at least 1"),
        }
    }
}

impl core::error::Error for EventError {}
