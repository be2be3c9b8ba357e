//! What the threads of the backend report to it.

use gpreempt_core::event::Event;
use gpreempt_core::id::TaskId;

use crate::amd::abi::trap::QueueEntry;
use crate::amd::session::{QueueGeneration, QueueKey};
use crate::amd::stop_method::PatchedCalls;
use crate::controller::ControlLimit;
use crate::process::ProcessKey;

#[derive(Debug)]
pub(super) enum Report {
    Event(Event),
    /// A failure, in a message that begins with the process.
    Problem(String),
    /// The problem with this message is solved.
    Resolved(String),
    /// All problems with this process are solved.
    Solved(u32),
    /// The processes that use KFD now.
    Users(Vec<ProcessKey>),
    /// The queues of a task now. With `fresh`, none of them is off.
    Queues {
        task: TaskId,
        queues: Vec<StopUnit>,
        fresh: bool,
    },
    /// What limits the control of a task, or None.
    ControlLimit(TaskId, Option<ControlLimit>),
    /// The in-kernel scheduler was enabled or disabled.
    KernelSchedules(bool),
    PatchedCalls(PatchedCalls),
    /// Debugfs has lost the list of all queues, as a message; or has it again.
    Unlisted(Option<String>),
    /// The rings of a process have changed.
    Rings(ProcessKey),
    /// The controller of a task has reverted its changes and ended.
    Over(TaskId),
}

/// What is stopped as one: a queue, or all queues of a process on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StopUnit {
    pub(super) entry: QueueEntry,
    generation: QueueGeneration,
    /// The rings that feed it. Empty if they are unknown.
    pub(super) rings: Vec<QueueEntry>,
}

impl StopUnit {
    pub(super) fn queue(generation: QueueGeneration, entry: QueueEntry) -> Self {
        Self { entry, generation, rings: vec![entry] }
    }

    pub(super) const fn without_rings(generation: QueueGeneration, entry: QueueEntry) -> Self {
        Self { entry, generation, rings: Vec::new() }
    }

    /// All queues of a process on a device. No queue has this id.
    pub(super) fn whole(generation: QueueGeneration, gpu_id: u32, rings: Vec<QueueEntry>) -> Self {
        let queue_type = crate::amd::abi::block::QueueType::ComputeAql as u32;
        let entry = QueueEntry { queue_id: u32::MAX, gpu_id, queue_type, ..QueueEntry::default() };
        Self { entry, generation, rings }
    }

    pub(super) const fn key(&self) -> QueueKey {
        QueueKey { id: self.entry.queue_id, generation: self.generation }
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.key() == other.key() && self.entry.gpu_id == other.entry.gpu_id
    }
}
