//! What the backend's threads tell it, and what it tells whoever runs it.

use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};

use super::doubt::Counts;
use crate::nvidia::ring::Rings;
use crate::nvidia::survey::GpuProcess;

/// From a thread of the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// Something the scheduler has to know.
    Event(Event),
    /// Something that did not work, in a sentence.
    Problem(String),
    /// A queue was stopped, and these were the device's counts before and after.
    Stopped(QueueId, Option<(Counts, Counts)>),
    /// A queue was looked at again, and these are the device's counts.
    Checked(QueueId, Option<Counts>),
    /// The rings of a queue can be read from now on.
    Rings(QueueId, Box<Rings>),
    /// A process that is watched has something else on its GPUs than before.
    Changed(Box<GpuProcess>),
    /// A process began to use a GPU.
    Appeared(Box<GpuProcess>),
}

/// To whoever runs the loop.
#[derive(Debug)]
pub enum Note {
    /// Something did not work, in a sentence. The loop goes on.
    Problem(String),
    /// A process that nobody attached began to use a GPU.
    Appeared(Box<GpuProcess>),
    /// An attached process ended.
    Ended(TaskId),
    /// An attached process has other groups than before: so many appeared and vanished.
    Regrouped {
        /// Which task.
        task: TaskId,
        /// How many appeared.
        appeared: usize,
        /// How many vanished.
        vanished: usize,
    },
}
