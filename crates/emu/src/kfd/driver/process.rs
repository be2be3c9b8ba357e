//! Processes and queues of the driver, and the views of them that files and tests use.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use gpreempt_core::id::QueueId;
use gpreempt_kfd::abi::block::CreateQueue;
use gpreempt_kfd::abi::exception::Exceptions;
use gpreempt_kfd::abi::trap::{QueueEntry, RuntimeInfo, RuntimeState};
use rustix::event::{PollFd, PollFlags, poll};

use super::preempt::PreemptOwner;
use super::{Driver, WaitReason};

#[derive(Debug, Default)]
pub(super) struct Process {
    /// Its number for the devices.
    pub(super) pasid: u32,
    /// How many descriptors of KFD it has open.
    pub(super) opened: u32,
    pub(super) queues: BTreeMap<u32, Queue>,
    pub(super) info: RuntimeInfo,
    pub(super) session: Option<DebugSession>,
    /// The process that started the session, or tried to: the kernel sets it first.
    pub(super) debugger: Option<u32>,
    /// Raised and not cleared.
    pub(super) exceptions: Exceptions,
    /// Raised on its devices and not cleared.
    pub(super) device_exceptions: BTreeMap<u32, Exceptions>,
    /// Debugger replies that no call has used yet.
    pub(super) answers: u32,
    /// Pauses minus ends.
    pub(super) evictions: u32,
    pub(super) is_paused: bool,
    /// Its priority for the in-kernel scheduler, if one was set.
    pub(super) logical_priority: Option<u8>,
}

#[derive(Debug)]
pub(super) struct DebugSession {
    pub(super) wanted: Exceptions,
    pub(super) events: OwnedFd,
}

impl Process {
    pub(super) fn is_debugged(&self) -> bool {
        self.session.is_some()
    }

    /// Whether nothing keeps a queue off its device.
    pub(super) fn may_run(&self, queue: &Queue) -> bool {
        !queue.is_suspended && !queue.is_preempted() && queue.percentage > 0 && self.evictions == 0
    }

    /// Writes a byte to the session's pipe, if the session subscribed to one of the exceptions.
    pub(super) fn announce(&self, exceptions: Exceptions) {
        let Some(session) = &self.session else { return };
        // Writing to a full pipe would block, and a full pipe is notice enough.
        let mut files = [PollFd::new(&session.events, PollFlags::OUT)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let may_write =
            poll(&mut files, Some(&now)).is_ok() && files[0].revents().contains(PollFlags::OUT);
        if session.wanted.has(exceptions) && may_write {
            let _ = rustix::io::write(&session.events, b".");
        }
    }

    pub(super) fn resume_all(&mut self) {
        for queue in self.queues.values_mut() {
            queue.is_suspended = false;
        }
    }

    /// Ends the session and reverts what it did.
    pub(super) fn end_session(&mut self) {
        self.resume_all();
        self.session = None;
        self.debugger = None;
        self.exceptions = Exceptions::NONE;
        self.device_exceptions.clear();
        for queue in self.queues.values_mut() {
            queue.entry.exceptions = Exceptions::NONE;
        }
        // A runtime without a debugger slot is registered again.
        if self.info.state > 1 {
            self.info.state = 1;
        }
    }

    /// The lowest free id: the kernel reuses ids at once.
    pub(super) fn free_name(&self) -> u32 {
        (0..).find(|name| !self.queues.contains_key(name)).unwrap_or(u32::MAX)
    }

    pub(super) fn names(&self) -> Vec<u32> {
        self.queues.keys().copied().collect()
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) device_id: QueueId,
    /// Never reused, unlike the queue id.
    pub(super) serial: u64,
    pub(super) entry: QueueEntry,
    /// 0 if its process disabled it.
    pub(super) percentage: u32,
    pub(super) priority: u32,
    pub(super) is_suspended: bool,
    pub(super) preempted_by: Option<PreemptOwner>,
    /// The in-kernel scheduler keeps it off.
    pub(super) is_scheduled_off: bool,
    /// Its own priority for the in-kernel scheduler, if one was set.
    pub(super) logical_priority: Option<u8>,
    /// A thread of its process is blocked in `DESTROY_QUEUE`.
    pub(super) is_leaving: bool,
    /// The hardware does not execute commands about it.
    pub(super) is_broken: bool,
    /// The state that the device was last told.
    pub(super) is_on: bool,
}

impl Queue {
    pub(super) fn new(device_id: QueueId, serial: u64, block: &CreateQueue) -> Self {
        let entry = QueueEntry {
            // The kernel marks every queue, even without a debugger.
            exceptions: Exceptions::QUEUE_NEW,
            ring_base: block.ring_base,
            write_pointer: block.write_pointer,
            read_pointer: block.read_pointer,
            save_area: block.save_area,
            queue_id: block.queue_id,
            gpu_id: block.gpu_id,
            ring_size: block.ring_size,
            queue_type: block.queue_type,
            save_area_size: block.save_area_size,
            ..QueueEntry::default()
        };
        Self {
            device_id,
            serial,
            entry,
            percentage: block.percentage & 0xff,
            priority: block.priority,
            is_suspended: false,
            preempted_by: None,
            is_scheduled_off: false,
            logical_priority: None,
            is_leaving: false,
            is_broken: false,
            is_on: false,
        }
    }

    /// Whether a debugger cannot suspend it now.
    pub(super) fn is_off_limits(&self) -> bool {
        self.is_leaving || self.entry.exceptions.has(Exceptions::QUEUE_NEW)
    }
}

/// A process, as sysfs and debugfs show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessView {
    pub pid: u32,
    pub pasid: u32,
    pub queues: Vec<QueueView>,
}

/// A queue, as sysfs and debugfs show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    pub entry: QueueEntry,
    pub device_id: QueueId,
    pub serial: u64,
    pub priority: u32,
    pub is_on: bool,
    /// Whether a patched call or the scheduler keeps it off.
    pub is_preempted: bool,
}

impl Driver {
    pub fn processes(&self) -> Vec<ProcessView> {
        let view = |(&pid, process): (&u32, &Process)| ProcessView {
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

    /// Increases with every change that the files show.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How often a device's run list was replaced.
    pub fn remaps_of(&self, gpu_id: u32) -> u64 {
        self.remaps.get(&gpu_id).copied().unwrap_or(0)
    }

    pub fn remaps(&self) -> u64 {
        self.remaps.values().sum()
    }

    /// Whether nothing keeps a queue off its device. None if there is no such queue.
    pub fn is_running(&self, pid: u32, queue: u32) -> Option<bool> {
        let process = self.processes.get(&pid)?;
        Some(process.may_run(process.queues.get(&queue)?))
    }

    pub fn device_id(&self, pid: u32, queue: u32) -> Option<QueueId> {
        Some(self.processes.get(&pid)?.queues.get(&queue)?.device_id)
    }

    pub fn serial(&self, pid: u32, queue: u32) -> Option<u64> {
        Some(self.processes.get(&pid)?.queues.get(&queue)?.serial)
    }

    pub fn knows(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    pub fn is_debugged(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_some_and(Process::is_debugged)
    }

    /// How many calls of a process wait for its debugger or for a suspended queue.
    pub fn waiting(&self, pid: u32) -> usize {
        let waits = |why: &WaitReason| !matches!(why, WaitReason::Devices(_));
        self.waiting.values().filter(|call| call.pid == pid && waits(&call.why)).count()
    }

    pub fn runtime(&self, pid: u32) -> Option<RuntimeState> {
        self.processes.get(&pid).map(|process| process.info.runtime())
    }

    pub fn logical_priority(&self, pid: u32) -> Option<u8> {
        self.processes.get(&pid)?.logical_priority
    }

    pub fn logical_priority_of(&self, pid: u32, queue: u32) -> Option<u8> {
        self.processes.get(&pid)?.queues.get(&queue)?.logical_priority
    }

    /// From now on the hardware does not execute commands about a queue.
    pub fn break_queue(&mut self, pid: u32, queue: u32) {
        let process = self.processes.get_mut(&pid);
        if let Some(queue) = process.and_then(|process| process.queues.get_mut(&queue)) {
            queue.is_broken = true;
        }
    }
}
