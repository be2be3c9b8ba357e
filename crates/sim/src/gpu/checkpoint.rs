//! Lock, checkpoint, restore and unlock of a process, as NVIDIA's driver does them.
//!
//! The steps take the times of the model. A step that began ends by itself, whatever becomes of
//! its caller; only the end of the process stops it. A stopped queue, or a kernel without an end,
//! keeps a lock waiting.

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;

use super::{Gpu, Notice};
use crate::event_queue::SimEvent;
use crate::model::MachineKind;
use crate::process_memory::{
    CheckpointError, CheckpointState, CheckpointStep, ProcessId, ProcessMemory, RunningStep,
};

/// Written over memory whose contents are on the host, so that no kernel can use it unnoticed.
const POISON: u8 = 0xdb;

impl Gpu {
    /// Begins a step. A notice follows when it has ended.
    pub(crate) fn begin_step(
        &mut self,
        id: ProcessId,
        step: CheckpointStep,
    ) -> Result<(), CheckpointError> {
        let process = self.memory_table.get(id).ok_or(CheckpointError::NoSuchProcess)?;
        if process.step.is_some() {
            return Err(CheckpointError::Busy);
        }
        let (state, bytes) = (process.state, process.bytes());
        let costs = self.model.memory;
        let (begins_in, takes) = match step {
            CheckpointStep::Lock(timeout) => (CheckpointState::Running, timeout),
            CheckpointStep::Checkpoint => {
                let takes = transfer(bytes, costs.checkpoint_bytes_per_us);
                (CheckpointState::Locked, Some(costs.checkpoint + takes))
            }
            CheckpointStep::Restore => {
                let takes = transfer(bytes, costs.restore_bytes_per_us);
                (CheckpointState::Checkpointed, Some(costs.restore + takes))
            }
            CheckpointStep::Unlock => (CheckpointState::Locked, Some(costs.unlock)),
        };
        if state != begins_in {
            return Err(CheckpointError::WrongState(state));
        }
        // The room is taken before anything is copied.
        if step == CheckpointStep::Restore && !self.memory_table.count(id, true) {
            return Err(CheckpointError::NoRoom);
        }
        let waits = matches!(step, CheckpointStep::Lock(_));
        self.run_step(id, step, waits, takes);
        if waits {
            self.set_locked(id, true);
            self.locking.insert(id);
            self.settle_locks();
        }
        Ok(())
    }

    fn run_step(
        &mut self,
        id: ProcessId,
        step: CheckpointStep,
        waits: bool,
        takes: Option<Duration>,
    ) {
        let epoch = self.memory_table.next_epoch();
        if let Some(process) = self.memory_table.get_mut(id) {
            process.step = Some(RunningStep { step, epoch, waits });
        }
        if let Some(takes) = takes {
            self.event_queue.after(takes, SimEvent::StepReaches { process: id, epoch });
        }
    }

    /// Locks the processes whose kernels have finished meanwhile.
    pub(crate) fn settle_locks(&mut self) {
        if self.locking.is_empty() {
            return;
        }
        let rests = |id: &ProcessId| self.is_at_rest(*id);
        let ready: Vec<ProcessId> = self.locking.iter().copied().filter(rests).collect();
        for id in ready {
            self.locking.remove(&id);
            let Some(step) = self.memory_table.get(id).and_then(|process| process.step) else {
                continue;
            };
            self.run_step(id, step.step, false, Some(self.model.memory.lock));
        }
    }

    fn queues_of(&self, id: ProcessId) -> Vec<QueueId> {
        let Some(process) = self.memory_table.get(id) else { return Vec::new() };
        self.queues_where(|queue| process.tasks.contains(&queue.task))
    }

    fn is_at_rest(&self, id: ProcessId) -> bool {
        self.queues_of(id)
            .iter()
            .filter_map(|queue| self.queues.get(queue))
            .all(|queue| !queue.stopped && queue.in_flight() == 0)
    }

    fn set_locked(&mut self, id: ProcessId, is_locked: bool) {
        for queue in self.queues_of(id) {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.locked = is_locked;
            }
            if !is_locked {
                self.fetch_again(queue);
            }
        }
    }

    /// The running step of a process has taken its time.
    pub(crate) fn step_reaches(&mut self, id: ProcessId, epoch: u64) {
        let Some(process) = self.memory_table.get_mut(id) else { return };
        let Some(step) = process.step.take_if(|step| step.epoch == epoch) else { return };
        let mut result = Ok(());
        match step.step {
            CheckpointStep::Lock(_) if step.waits => {
                self.locking.remove(&id);
                self.set_locked(id, false);
                result = Err(CheckpointError::NotReady);
            }
            CheckpointStep::Lock(_) => process.state = CheckpointState::Locked,
            CheckpointStep::Checkpoint => {
                process.state = CheckpointState::Checkpointed;
                for &task in &process.tasks {
                    let content = self.memories[task].replace(POISON);
                    process.contents.push((task, content));
                }
                self.memory_table.count(id, false);
            }
            CheckpointStep::Restore => {
                process.state = CheckpointState::Locked;
                for (task, content) in std::mem::take(&mut process.contents) {
                    self.memories[task].put_back(&content);
                }
                self.forget_slices(id);
            }
            CheckpointStep::Unlock => {
                process.state = CheckpointState::Running;
                self.set_locked(id, false);
            }
        }
        self.notices.push_back(Notice::StepEnded(id, result));
    }

    /// The driver makes new channel groups, which have the default slice.
    fn forget_slices(&mut self, id: ProcessId) {
        if self.machine == MachineKind::Tsg {
            for queue in self.queues_of(id) {
                self.set_slice(queue, None);
            }
        }
    }

    /// The memory of a task is no longer used: its allocations are free.
    pub(crate) fn end_task_memory(&mut self, task: usize) {
        // What a process leaves behind is its own.
        let kept = |(_, process): (ProcessId, &ProcessMemory)| {
            process
                .contents
                .iter()
                .find(|(other, _)| *other == task)
                .map(|(_, bytes)| bytes.clone())
        };
        if let Some(contents) = self.memory_table.processes().find_map(kept) {
            self.memories[task].put_back(&contents);
        }
        let Some((process, was_in_step)) = self.memory_table.leave(task) else { return };
        self.locking.remove(&process);
        if was_in_step {
            self.notices.push_back(Notice::StepEnded(process, Err(CheckpointError::Gone)));
        }
    }
}

fn transfer(bytes: u64, bytes_per_us: u64) -> Duration {
    let ns = u128::from(bytes) * 1_000 / u128::from(bytes_per_us.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}
