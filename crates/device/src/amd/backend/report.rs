//! What the backend's threads tell it.

use gpreempt_core::event::Event;
use gpreempt_core::id::TaskId;

use crate::amd::abi::trap::QueueEntry;
use crate::amd::own_calls::OwnCalls;
use crate::amd::session::{Epoch, QueueName};
use crate::controller::Limit;
use crate::process::ProcessKey;

/// From a thread of the backend.
#[derive(Debug)]
pub(super) enum Report {
    /// Something the scheduler has to know.
    Event(Event),
    /// Something that did not work, in a sentence that begins with the process.
    Problem(String),
    /// What was said in that sentence is over.
    Resolved(String),
    /// A process is under control, whatever was in the way before.
    Solved(u32),
    /// These processes use KFD now.
    Users(Vec<ProcessKey>),
    /// These are the queues of a task now. If they are `fresh`, none of them is off.
    Queues { task: TaskId, queues: Vec<Listed>, fresh: bool },
    /// What a task's process cannot have of what others can, and why; or nothing.
    Limit(TaskId, Option<Limit>),
    /// The kernel schedules from now on, or no longer does.
    KernelSchedules(bool),
    /// It stands like that with the calls of a patched KFD now.
    OwnCalls(OwnCalls),
    /// The list of all queues is gone, in a sentence; or it is there again.
    Unlisted(Option<String>),
    /// The rings of a process show something else than before.
    Rings(ProcessKey),
    /// Whoever controlled a task has put its process back as it was, and let go of it.
    Over(TaskId),
}

/// What is stopped as one: a queue, or all that a process has on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    /// Which one.
    pub(super) entry: QueueEntry,
    /// Since when: numbers are given again.
    epoch: Epoch,
    /// Where its work comes from. Nothing if that is not shown.
    pub(super) rings: Vec<QueueEntry>,
}

impl Listed {
    /// A queue.
    pub(super) fn queue(epoch: Epoch, entry: QueueEntry) -> Self {
        Self { entry, epoch, rings: vec![entry] }
    }

    /// A queue of which nobody knows where its ring is.
    pub(super) const fn without_rings(epoch: Epoch, entry: QueueEntry) -> Self {
        Self { entry, epoch, rings: Vec::new() }
    }

    /// All of a process on a device: no queue is called so.
    pub(super) fn whole(epoch: Epoch, gpu_id: u32, rings: Vec<QueueEntry>) -> Self {
        let queue_type = crate::amd::abi::block::QueueType::ComputeAql as u32;
        let entry = QueueEntry { queue_id: u32::MAX, gpu_id, queue_type, ..QueueEntry::default() };
        Self { entry, epoch, rings }
    }

    /// What it is called, and since when.
    pub(super) const fn name(&self) -> QueueName {
        QueueName { id: self.entry.queue_id, epoch: self.epoch }
    }

    /// Whether two are one.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.name() == other.name() && self.entry.gpu_id == other.entry.gpu_id
    }
}
