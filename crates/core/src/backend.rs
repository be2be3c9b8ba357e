//! The interface to devices: what one can do, the commands it gets, and the trait that a
//! backend implements. Reports come back as [`crate::event::Event`]s.

use crate::event::Event;
use crate::id::QueueId;
use crate::priority::Priority;
use crate::ring::RingView;
use crate::time::Duration;

/// Devices of one kind: hardware, an emulated GPU, a simulation.
///
/// No method blocks. Control calls take up to 20 ms, so `submit` passes the command to a worker.
/// Its completion comes through `poll_event`, exactly once for every preempt and resume, even if
/// the queue has vanished by then. A backend that answers with [`Fault::Gone`] also reports, once,
/// that the queue vanished, as soon as it knows.
///
/// [`Fault::Gone`]: crate::event::Fault::Gone
pub trait Backend {
    /// Starts to carry out a command.
    fn submit(&mut self, command: Command);

    /// Reads a ring without side effects. None if it could not be read this time, which does not
    /// mean that it is empty.
    fn observe(&mut self, queue: QueueId) -> Option<RingView>;

    /// The oldest event that was not yet returned.
    fn poll_event(&mut self) -> Option<Event>;
}

/// How a preempt stops a queue (the levels 1 to 3 of the XSched interface).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PreemptLevel {
    /// New submissions wait; submitted work runs.
    BlockSubmission,
    /// The device stops fetching; the running kernel finishes first.
    Deactivate,
    /// The running kernel is interrupted and saved.
    Interrupt,
}

/// How the scheduler makes a device prefer one queue over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// It preempts the other queues, with one command each.
    Stop,
    /// It sets time slices, and the hardware switches by itself. Preempting is used as well: to
    /// order high-priority queues, and because several tiny slices starve each other.
    Slice,
    /// It cannot; it observes and reports.
    ObserveOnly,
}

/// What a device can do and what that costs. The backend reports it when the device appears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How preference is expressed.
    pub mechanism: Mechanism,
    /// The strongest preempt that the device supports.
    pub level: PreemptLevel,
    /// From the preempt command to the queue being off.
    pub preempt_cost: Duration,
    /// From the resume command to the queue running again.
    pub resume_cost: Duration,
    /// How long a ring must be empty before its queue counts as idle.
    pub quiet: Duration,
    /// Whether the backend can hold the device between kernels of a high-priority queue.
    pub hold: bool,
    /// Whether queues have a hardware priority that has an effect.
    pub hardware_priority: bool,
}

impl Capabilities {
    /// The cost of one preempt and one resume.
    pub fn round_trip(&self) -> Duration {
        self.preempt_cost + self.resume_cost
    }
}

/// An order to the backend, which answers each preempt and resume with exactly one event and the
/// other commands with none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each variant says what it does to its queue")]
pub enum Command {
    /// Take a queue off the device, at the strongest level that the device supports.
    Preempt { queue: QueueId, level: PreemptLevel },
    /// Allow a queue to run again.
    Resume { queue: QueueId },
    /// Set a queue's time slice; none restores the one it had when it appeared.
    SetSlice { queue: QueueId, slice: Option<Duration> },
    /// Allow holds for this queue, and no other, on its device.
    PermitHold { queue: QueueId },
    /// Release and forbid holds for this queue.
    ForbidHold { queue: QueueId },
    /// Measure all the time how long a queue with work is off the engine, or only until the engine
    /// has reached it. Reports are [`Event::SlowdownMeasured`].
    MeasureSlowdown { queue: QueueId, always: bool },
    /// Set a queue's priority in hardware, as a hint to the device's own scheduler.
    SetHardwarePriority { queue: QueueId, priority: Priority },
}

impl Command {
    /// The queue that the command is for.
    pub const fn queue(&self) -> QueueId {
        match *self {
            Self::Preempt { queue, .. }
            | Self::Resume { queue }
            | Self::SetSlice { queue, .. }
            | Self::PermitHold { queue }
            | Self::ForbidHold { queue }
            | Self::MeasureSlowdown { queue, .. }
            | Self::SetHardwarePriority { queue, .. } => queue,
        }
    }
}
