//! What the scheduler waits for.

use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::QueueId;

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
