//! What others see of the driver: lists, and what tests ask.

use gpreempt_core::id::QueueId;
use gpreempt_kfd::abi::trap::{QueueEntry, RuntimeState};

use super::{Driver, Why};

/// A process, as sysfs and debugfs show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessView {
    /// Its number.
    pub pid: u32,
    /// Its number for the devices.
    pub pasid: u32,
    /// Its queues, by name.
    pub queues: Vec<QueueView>,
}

/// A queue, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// What a snapshot shows.
    pub entry: QueueEntry,
    /// What the devices call it.
    pub device_id: QueueId,
    /// What no other queue ever is called.
    pub serial: u64,
    /// 0 to 15.
    pub priority: u32,
    /// Whether it may be on its device.
    pub is_on: bool,
    /// Whether our own calls or the scheduler keep it off.
    pub is_preempted: bool,
}

impl Driver {
    /// Every process that has the device open.
    pub fn processes(&self) -> Vec<ProcessView> {
        let view = |(&pid, process): (&u32, &super::Process)| ProcessView {
            pid,
            pasid: process.pasid,
            queues: process
                .queues
                .values()
                .map(|queue| QueueView {
                    entry: queue.entry,
                    device_id: queue.device_id,
                    serial: queue.serial,
                    priority: queue.priority,
                    is_on: queue.is_on,
                    is_preempted: queue.is_preempted(),
                })
                .collect(),
        };
        self.processes.iter().map(view).collect()
    }

    /// Grows with every change that somebody could see.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How often the queues of a device were all taken off and put on again.
    pub fn remaps_of(&self, gpu_id: u32) -> u64 {
        self.remaps.get(&gpu_id).copied().unwrap_or(0)
    }

    /// The same for all devices.
    pub fn remaps(&self) -> u64 {
        self.remaps.values().sum()
    }

    /// Whether nothing keeps a queue from being on its device, if there is one of that name.
    pub fn is_running(&self, pid: u32, queue: u32) -> Option<bool> {
        let process = self.processes.get(&pid)?;
        Some(process.may_run(process.queues.get(&queue)?))
    }

    /// What the devices call a queue.
    pub fn device_id(&self, pid: u32, queue: u32) -> Option<QueueId> {
        Some(self.processes.get(&pid)?.queues.get(&queue)?.device_id)
    }

    /// The serial number of a queue.
    pub fn serial(&self, pid: u32, queue: u32) -> Option<u64> {
        Some(self.processes.get(&pid)?.queues.get(&queue)?.serial)
    }

    /// Whether there is such a process.
    pub fn knows(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Whether a process has a debugger.
    pub fn is_debugged(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_some_and(super::Process::is_debugged)
    }

    /// How many calls of a process wait for its debugger, or for a suspended queue.
    pub fn waiting(&self, pid: u32) -> usize {
        let waits = |why: &Why| !matches!(why, Why::Devices(_));
        self.waiting.values().filter(|call| call.pid == pid && waits(&call.why)).count()
    }

    /// How a process stands with its runtime.
    pub fn runtime(&self, pid: u32) -> Option<RuntimeState> {
        self.processes.get(&pid).map(|process| process.info.runtime())
    }

    /// How important a process's queues are to the scheduler, if somebody said so.
    pub fn logical_priority(&self, pid: u32) -> Option<u8> {
        self.processes.get(&pid)?.logical_priority
    }

    /// The same of one queue, if somebody said so of that alone.
    pub fn logical_priority_of(&self, pid: u32, queue: u32) -> Option<u8> {
        self.processes.get(&pid)?.queues.get(&queue)?.logical_priority
    }

    /// The hardware no longer does what it is told about a queue.
    pub fn break_queue(&mut self, pid: u32, queue: u32) {
        let process = self.processes.get_mut(&pid);
        if let Some(queue) = process.and_then(|process| process.queues.get_mut(&queue)) {
            queue.is_broken = true;
        }
    }
}
