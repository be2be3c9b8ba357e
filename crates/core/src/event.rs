//! Events: everything that the scheduler learns about devices, tasks and queues.

use core::fmt;

use crate::backend::Capabilities;
use crate::busy_periods::BusyTime;
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::latency_budget::LatencyBudget;
use crate::priority::Priority;
use crate::ring::RingView;
use crate::time::Duration;

/// The scheduling attributes of a task. All but the gang can change later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedAttr {
    /// The priority of its queues, unless a queue has its own.
    pub priority: Priority,
    /// Its part of the device under the fair policy. At least 1.
    pub weight: u32,
    /// How long after its arrival a request should be done.
    pub deadline: Option<Duration>,
    /// The tasks with which it runs and stops together.
    pub gang: Option<GangId>,
    /// Whether it is one of the tasks for which [`crate::config::Config::min_share`] is kept.
    pub has_min_share: bool,
    /// How much slower it may become in exchange for throughput of others. It counts while the task
    /// is the only high-priority one on its device, and only where the device has time slices.
    pub latency_budget: LatencyBudget,
}

impl Default for SchedAttr {
    fn default() -> Self {
        Self {
            priority: Priority::DEFAULT,
            weight: 1,
            deadline: None,
            gang: None,
            has_min_share: false,
            latency_budget: LatencyBudget::ZERO,
        }
    }
}

/// Why a command was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device did not answer in time.
    TimedOut,
    /// The device refused; the number is the vendor's, or [`Fault::NOT_SENT`].
    Refused(u32),
    /// The queue no longer exists. That is no failure: the backend also reports that the queue
    /// vanished, and the scheduler gives no further command for it.
    Gone,
}

impl Fault {
    /// The command was never sent to the device; the backend has logged why.
    pub const NOT_SENT: Self = Self::Refused(u32::MAX);
}

/// A change outside of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant explains the fields that need it")]
pub enum Event {
    /// A device can be used.
    DeviceAppeared { device: DeviceId, capabilities: Capabilities },
    /// A preempt and a resume cost something else now, for example because there are more
    /// processes to stop one after the other.
    DeviceCost { device: DeviceId, preempt_cost: Duration, resume_cost: Duration },
    /// Another scheduler (a patched kernel) decides which queues run on a device, or no longer
    /// does. Meanwhile this one preempts suspended queues only, and resumes all others.
    DeviceExternallyScheduled { device: DeviceId, externally_scheduled: bool },
    /// A device is gone, with every queue on it.
    DeviceVanished { device: DeviceId },
    /// A process started to use a device.
    TaskAppeared { task: TaskId, attr: SchedAttr },
    /// A task has other attributes. It stays in its gang.
    TaskChanged { task: TaskId, attr: SchedAttr },
    /// A user or program suspended a task, or ended the suspension.
    TaskSuspended { task: TaskId, suspended: bool },
    /// A process ended, with every queue it had.
    TaskVanished { task: TaskId },
    /// A task has one more queue. `stopped`: an earlier scheduler preempted it, and this one
    /// adopts it.
    QueueAppeared { queue: QueueId, task: TaskId, device: DeviceId, stopped: bool },
    /// A queue has its own priority, or with none its task's again.
    QueueChanged { queue: QueueId, priority: Option<Priority> },
    /// A user or program suspended one queue, or ended the suspension.
    QueueSuspended { queue: QueueId, suspended: bool },
    /// A queue is gone.
    QueueVanished { queue: QueueId },
    /// A ring was read.
    RingObserved { queue: QueueId, ring: RingView },
    /// What was measured of a queue since the last such event: how long its busy periods were, and
    /// how long of that it had work but was off the engine.
    SlowdownMeasured { queue: QueueId, time: BusyTime },
    /// A task announces a request, which should be done `deadline` from now. Takes effect before
    /// the next reading of the rings.
    HintBegin { task: TaskId, deadline: Option<Duration> },
    /// A task's request is done.
    HintEnd { task: TaskId },
    /// A preempt is done: the queue is off.
    Preempted { queue: QueueId },
    /// A preempt failed: the queue is still on.
    PreemptFailed { queue: QueueId, fault: Fault },
    /// A resume is done: the queue is on.
    Resumed { queue: QueueId },
    /// A resume failed: the queue is still off.
    ResumeFailed { queue: QueueId, fault: Fault },
}

/// Why an event was refused. It changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventError {
    /// The device is not known.
    UnknownDevice(DeviceId),
    /// The task is not known.
    UnknownTask(TaskId),
    /// The queue is not known; it may have vanished.
    UnknownQueue(QueueId),
    /// The device is known already.
    DuplicateDevice(DeviceId),
    /// The task is known already.
    DuplicateTask(TaskId),
    /// The queue is known already.
    DuplicateQueue(QueueId),
    /// A completion arrived, but no command of that kind was in flight.
    NoCommandInFlight(QueueId),
    /// The weight is zero.
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
            Self::NoCommandInFlight(id) => {
                write!(f, "completion for {id} ignored: no command was in flight")
            }
            Self::ZeroWeight(id) => write!(f, "{id} has weight 0; a weight is at least 1"),
        }
    }
}

impl core::error::Error for EventError {}
