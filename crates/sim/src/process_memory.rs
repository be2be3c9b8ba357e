//! Who has how much memory of which device, and what is on the host.
//!
//! Sizes are only counted: the bytes that kernels read and write are [`Memory`](crate::memory),
//! which is small. The rules are those of an NVIDIA driver: a process that allocates more than is
//! free gets an error, and a process that is checkpointed has nothing on the device.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::time::Duration;

/// A process: all tasks of one are locked, checkpointed and restored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllocationId(pub u64);

/// Where a process is between running and being off its devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointState {
    #[default]
    Running,
    /// Its kernels have finished, and its rings are not fetched from.
    Locked,
    /// Its memory is on the host.
    Checkpointed,
}

/// A step between two states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointStep {
    /// Waits until the kernels of the process have finished, at most that long.
    Lock(Option<Duration>),
    Checkpoint,
    Restore,
    Unlock,
}

/// Why a step was not made. The state is what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointError {
    NoSuchProcess,
    /// Another step of the process has not ended.
    Busy,
    /// The step does not begin in this state.
    WrongState(CheckpointState),
    /// The kernels of the process did not finish in time.
    NotReady,
    /// The devices have no room for its memory.
    NoRoom,
    /// The process ended during the step.
    Gone,
}

/// The sizes that processes have on all devices, and their states.
#[derive(Debug, Default)]
pub(crate) struct MemoryTable {
    /// Of each device.
    size: u64,
    used: Vec<u64>,
    processes: BTreeMap<ProcessId, ProcessMemory>,
    last_allocation: u64,
    last_epoch: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ProcessMemory {
    /// Indices of its tasks' memories.
    pub(crate) tasks: BTreeSet<usize>,
    allocations: BTreeMap<AllocationId, Allocation>,
    pub(crate) state: CheckpointState,
    pub(crate) step: Option<RunningStep>,
    /// What was in the memories of its tasks.
    pub(crate) contents: Vec<(usize, Vec<u8>)>,
    /// Its allocations do not count on the devices.
    is_out: bool,
}

#[derive(Clone, Copy, Debug)]
struct Allocation {
    task: usize,
    device: usize,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningStep {
    pub(crate) step: CheckpointStep,
    /// Distinguishes its events from those of earlier steps.
    pub(crate) epoch: u64,
    /// A lock that waits for kernels.
    pub(crate) waits: bool,
}

impl ProcessMemory {
    /// What it has allocated on a device, wherever that is now.
    pub(crate) fn bytes_of(&self, device: usize) -> u64 {
        self.sizes().filter(|(other, _)| *other == device).map(|(_, bytes)| bytes).sum()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.sizes().map(|(_, bytes)| bytes).sum()
    }

    fn sizes(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.allocations.values().map(|allocation| (allocation.device, allocation.bytes))
    }

    /// Whether the devices have room for it.
    pub(crate) fn is_on_device(&self) -> bool {
        !self.is_out
    }

    /// Whether its contents are on the host.
    pub(crate) fn is_on_host(&self) -> bool {
        self.state == CheckpointState::Checkpointed
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state == CheckpointState::Running && self.step.is_none()
    }
}

impl MemoryTable {
    pub(crate) fn new(size: u64, devices: usize) -> Self {
        Self { size, used: vec![0; devices], ..Self::default() }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn used(&self, device: usize) -> u64 {
        self.used[device]
    }

    pub(crate) fn get(&self, process: ProcessId) -> Option<&ProcessMemory> {
        self.processes.get(&process)
    }

    pub(crate) fn get_mut(&mut self, process: ProcessId) -> Option<&mut ProcessMemory> {
        self.processes.get_mut(&process)
    }

    pub(crate) fn processes(&self) -> impl Iterator<Item = (ProcessId, &ProcessMemory)> {
        self.processes.iter().map(|(&id, process)| (id, process))
    }

    /// Adds a task's memory to a process, which may be new.
    pub(crate) fn join(&mut self, process: ProcessId, task: usize) {
        self.processes.entry(process).or_default().tasks.insert(task);
    }

    /// Allocates; none if the process is unknown or the device has too little room.
    pub(crate) fn allocate(
        &mut self,
        process: ProcessId,
        task: usize,
        device: usize,
        bytes: u64,
    ) -> Option<AllocationId> {
        let owner = self.processes.get_mut(&process)?;
        let used = self.used[device].checked_add(bytes).filter(|used| *used <= self.size)?;
        self.used[device] = used;
        self.last_allocation += 1;
        let id = AllocationId(self.last_allocation);
        owner.allocations.insert(id, Allocation { task, device, bytes });
        Some(id)
    }

    /// Frees an allocation of a task. Returns whether it has it.
    pub(crate) fn free(&mut self, process: ProcessId, task: usize, id: AllocationId) -> bool {
        let Some(owner) = self.processes.get_mut(&process) else { return false };
        if owner.allocations.get(&id).is_none_or(|allocation| allocation.task != task) {
            return false;
        }
        let freed = owner.allocations.remove(&id).filter(|_| !owner.is_out);
        if let Some(Allocation { device, bytes, .. }) = freed {
            self.used[device] -= bytes;
        }
        true
    }

    /// Frees everything of a task. Returns the process that ends with it, and whether a step of
    /// it was running.
    pub(crate) fn leave(&mut self, task: usize) -> Option<(ProcessId, bool)> {
        let has_task = |(_, process): &(&ProcessId, &ProcessMemory)| process.tasks.contains(&task);
        let process = *self.processes.iter().find(has_task)?.0;
        let owner = self.processes.get_mut(&process)?;
        owner.tasks.remove(&task);
        owner.contents.retain(|(other, _)| *other != task);
        let own = |(&id, allocation): (&AllocationId, &Allocation)| {
            (allocation.task == task).then_some(id)
        };
        let ids: Vec<AllocationId> = owner.allocations.iter().filter_map(own).collect();
        for id in ids {
            self.free(process, task, id);
        }
        if self.processes.get(&process).is_none_or(|owner| !owner.tasks.is_empty()) {
            return None;
        }
        let ended = self.processes.remove(&process)?;
        Some((process, ended.step.is_some()))
    }

    /// Counts the allocations of a process on its devices again, or no longer. Returns whether
    /// there was room.
    pub(crate) fn count(&mut self, process: ProcessId, on_device: bool) -> bool {
        let Some(owner) = self.processes.get_mut(&process) else { return false };
        if owner.is_out != on_device {
            return true;
        }
        let mut used = self.used.clone();
        for (device, bytes) in owner.sizes() {
            if on_device {
                used[device] += bytes;
            } else {
                used[device] -= bytes;
            }
        }
        if used.iter().any(|used| *used > self.size) {
            return false;
        }
        owner.is_out = !on_device;
        self.used = used;
        true
    }

    pub(crate) fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProcessId = ProcessId(7);
    const B: ProcessId = ProcessId(8);

    fn table() -> MemoryTable {
        let mut table = MemoryTable::new(100, 2);
        table.join(A, 0);
        table.join(A, 1);
        table.join(B, 2);
        table
    }

    #[test]
    fn what_does_not_fit_is_refused_and_what_is_freed_can_be_allocated() {
        let mut table = table();
        let first = table.allocate(A, 0, 0, 60).unwrap();
        assert_eq!(table.allocate(B, 2, 0, 41), None);
        assert_eq!(table.allocate(B, 2, 0, u64::MAX), None);
        assert!(table.allocate(B, 2, 1, 100).is_some());
        assert!(table.allocate(B, 2, 0, 40).is_some());
        // Only the task that allocated it can free it, once.
        assert!(!table.free(B, 2, first) && !table.free(A, 1, first));
        assert!(table.free(A, 0, first) && !table.free(A, 0, first));
        assert_eq!((table.used(0), table.used(1)), (40, 100));
        assert!(table.allocate(A, 1, 0, 60).is_some());
    }

    #[test]
    fn what_is_out_counts_on_no_device_and_returns_only_where_there_is_room() {
        let mut table = table();
        table.allocate(A, 0, 0, 60).unwrap();
        let second = table.allocate(A, 1, 1, 30).unwrap();
        assert!(table.count(A, false) && table.count(A, false));
        assert_eq!((table.used(0), table.used(1)), (0, 0));
        let other = table.allocate(B, 2, 0, 41).unwrap();
        assert!(!table.count(A, true));
        assert_eq!((table.used(0), table.used(1)), (41, 0));
        // What is freed while it is out is not counted twice.
        assert!(table.free(A, 1, second) && table.free(B, 2, other));
        assert!(table.count(A, true));
        assert_eq!((table.used(0), table.used(1)), (60, 0));
    }

    #[test]
    fn a_process_ends_with_its_last_task_and_frees_everything() {
        let mut table = table();
        table.allocate(A, 0, 0, 10).unwrap();
        table.allocate(A, 1, 0, 20).unwrap();
        assert_eq!(table.leave(0), None);
        assert_eq!(table.used(0), 20);
        assert!(table.count(A, false));
        assert_eq!(table.leave(1), Some((A, false)));
        assert_eq!(table.used(0), 0);
        assert_eq!(table.leave(9), None);
    }
}
