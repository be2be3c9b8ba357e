//! What the scheduler tells the hardware.

use crate::capability::Level;
use crate::id::QueueId;
use crate::priority::Priority;
use crate::time::Duration;

/// Something the backend has to do. It answers preempt and resume with an event, always and
/// exactly once; the others are answered by nobody, because nothing waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take a queue off the device.
    Preempt {
        /// Which one.
        queue: QueueId,
        /// How deep to reach: the best the device offers.
        level: Level,
    },
    /// Let a queue run again.
    Resume {
        /// Which one.
        queue: QueueId,
    },
    /// Give a queue a time slice.
    SetSlice {
        /// Which one.
        queue: QueueId,
        /// How long, or none for the one it had before anybody touched it.
        slice: Option<Duration>,
    },
    /// This queue alone may be held across its gaps on its device.
    PermitHold {
        /// Which one.
        queue: QueueId,
    },
    /// This queue may no longer be held.
    ForbidHold {
        /// Which one.
        queue: QueueId,
    },
    /// Tell the hardware a queue's priority, as a hint to its own scheduler.
    SetHardwarePriority {
        /// Which one.
        queue: QueueId,
        /// How important it is.
        priority: Priority,
    },
}

impl Command {
    /// The queue this is about.
    pub const fn queue(&self) -> QueueId {
        match *self {
            Self::Preempt { queue, .. }
            | Self::Resume { queue }
            | Self::SetSlice { queue, .. }
            | Self::PermitHold { queue }
            | Self::ForbidHold { queue }
            | Self::SetHardwarePriority { queue, .. } => queue,
        }
    }
}
