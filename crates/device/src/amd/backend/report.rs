//! What the backend's threads tell it.

use gpreempt_core::event::Event;
use gpreempt_core::id::TaskId;

use crate::amd::abi::trap::QueueEntry;
use crate::process::ProcessKey;

/// From a thread of the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// Something the scheduler has to know.
    Event(Event),
    /// Something that did not work, in a sentence.
    Problem(String),
    /// These processes use KFD now.
    Users(Vec<ProcessKey>),
    /// These are the queues of a task now. If they are `fresh`, none of them is suspended.
    Queues { task: TaskId, queues: Vec<QueueEntry>, fresh: bool },
    /// The session with a task's process is over.
    Over(TaskId),
}
