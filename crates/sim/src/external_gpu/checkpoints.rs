//! Memory of processes, and the steps that take a process off its devices and bring it back.

use super::{CallId, ExternalGpu, ExternalGpuEvent, MemoryId};
use crate::process_memory::{
    AllocationId, CheckpointError, CheckpointState, CheckpointStep, ProcessId,
};

/// What a process has on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    pub process: ProcessId,
    pub device: usize,
    /// Bytes that count on the device; during a restore, those that it will have.
    pub on_device: u64,
    /// Bytes whose contents are on the host.
    pub on_host: u64,
}

impl ExternalGpu {
    /// The memory of each device, in bytes.
    pub fn memory_size(&self) -> u64 {
        self.gpu.memory_table.size()
    }

    /// How much of a device's memory is allocated.
    pub fn memory_used(&self, device: usize) -> u64 {
        self.gpu.memory_table.used(device)
    }

    /// Adds a task's memory to a process.
    pub fn join_process(&mut self, memory: MemoryId, process: ProcessId) {
        self.gpu.memory_table.join(process, memory.0);
    }

    /// Allocates memory, which is counted and has no contents. None if it does not fit.
    pub fn allocate(
        &mut self,
        process: ProcessId,
        memory: MemoryId,
        device: usize,
        bytes: u64,
    ) -> Option<AllocationId> {
        self.gpu.memory_table.allocate(process, memory.0, device, bytes)
    }

    /// Frees an allocation. Returns whether the task has it.
    pub fn free(&mut self, process: ProcessId, memory: MemoryId, id: AllocationId) -> bool {
        self.gpu.memory_table.free(process, memory.0, id)
    }

    /// What each process has on each device, in order of processes.
    pub fn memory_usage(&self) -> Vec<ProcessUsage> {
        let mut usage = Vec::new();
        for (process, memory) in self.gpu.memory_table.processes() {
            for device in 0..self.devices() {
                let bytes = memory.bytes_of(device);
                if bytes > 0 {
                    let on_device = if memory.is_on_device() { bytes } else { 0 };
                    let on_host = if memory.is_on_host() { bytes } else { 0 };
                    usage.push(ProcessUsage { process, device, on_device, on_host });
                }
            }
        }
        usage
    }

    /// The state of a process that has memory or queues here.
    pub fn checkpoint_state(&self, process: ProcessId) -> Option<CheckpointState> {
        self.gpu.memory_table.get(process).map(|process| process.state)
    }

    /// Whether a process is neither locked nor checkpointed nor between two states.
    pub fn is_running(&self, process: ProcessId) -> bool {
        self.gpu.memory_table.get(process).is_none_or(|process| process.is_running())
    }

    /// Begins a step of a process, whose end is reported.
    ///
    /// # Errors
    /// The step cannot begin; nothing is reported.
    pub fn begin_step(
        &mut self,
        id: CallId,
        process: ProcessId,
        step: CheckpointStep,
    ) -> Result<(), CheckpointError> {
        self.gpu.begin_step(process, step)?;
        self.steps.insert(process, id);
        // The queue has to be at rest, which a hold prevents.
        if matches!(step, CheckpointStep::Lock(_)) {
            let tasks = self.gpu.memory_table.get(process).map(|process| process.tasks.clone());
            let tasks = tasks.unwrap_or_default();
            for queue in self.gpu.queues_where(|queue| tasks.contains(&queue.task)) {
                self.forbid_hold(queue);
            }
        }
        self.handle_notices();
        Ok(())
    }

    pub(super) fn end_step(&mut self, process: ProcessId, result: Result<(), CheckpointError>) {
        if let Some(call) = self.steps.remove(&process) {
            self.events.push_back(ExternalGpuEvent::StepEnded { call, process, result });
        }
    }
}
