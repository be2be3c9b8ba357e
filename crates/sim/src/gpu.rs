//! The GPU in virtual time.
//!
//! A command processor fetches packets from rings, a dispatcher places work-groups on compute
//! units, waves execute their program and serve busy time. Machines differ in which queues may be
//! on the units and how they are preempted ([`reset`], [`cwsr`], [`tsg`]). The GPU ignores
//! priorities.

mod checkpoint;
mod control;
mod cwsr;
mod dispatch;
mod execution;
pub(crate) mod queue;
mod reset;
mod tsg;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gpreempt_core::busy_periods::BusyTime;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;

use crate::event_queue::{EventQueue, SimEvent};
use crate::isa::Program;
use crate::memory::Memory;
use crate::model::{DeviceModel, MachineKind};
use crate::process_memory::{CheckpointError, MemoryTable, ProcessId};
use crate::ring::Packet;
use crate::ring::Ring;
use crate::track::Tracks;
use dispatch::Units;
use execution::Execution;
use queue::{HardwareQueue, LaunchRecord, Residency};
use tsg::Runlist;

/// All devices of a simulation, with their queues and the memory of the tasks.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) event_queue: EventQueue,
    pub(crate) model: DeviceModel,
    pub(crate) machine: MachineKind,
    pub(crate) devices: Vec<Device>,
    pub(crate) queues: BTreeMap<QueueId, HardwareQueue>,
    /// Queues whose client is gone, for the checks at the end.
    pub(crate) closed: Vec<(QueueId, HardwareQueue)>,
    /// The memory of each task, by its index.
    pub(crate) memories: Vec<Memory>,
    /// Which process has how much memory.
    pub(crate) memory_table: MemoryTable,
    /// Processes whose lock waits for their kernels.
    locking: BTreeSet<ProcessId>,
    /// Loaded programs, by the number packets use.
    pub(crate) programs: Vec<Arc<Program>>,
    /// What the hardware finished, oldest first.
    pub(crate) notices: VecDeque<Notice>,
    pub(crate) tracks: Tracks,
    /// The queue whose kernel faulted, and how.
    pub(crate) failure: Option<(QueueId, String)>,
    /// Launches whose execution began more than once.
    pub(crate) reexecuted: u64,
    /// How often running waves were preempted.
    pub(crate) preemptions: u64,
    /// Busy periods that were measured and not reported.
    pub(crate) measured: Vec<(QueueId, BusyTime)>,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) units: Units,
    runlist: Runlist,
    /// Queues that wait for a hardware slot, the longest waiting first.
    slot_waiters: VecDeque<QueueId>,
    slot_turn: bool,
    /// The queue whose work-group was placed last.
    served: QueueId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Stopped(QueueId),
    Resumed(QueueId),
    /// A step of a checkpoint has ended.
    StepEnded(ProcessId, Result<(), CheckpointError>),
}

impl Gpu {
    pub(crate) fn new(
        model: DeviceModel,
        machine: MachineKind,
        devices: u32,
        programs: Vec<Arc<Program>>,
        tracks: Tracks,
    ) -> Self {
        let device = || Device {
            units: Units::new(model.compute_units, model.waves_per_unit),
            runlist: Runlist::default(),
            slot_waiters: VecDeque::new(),
            slot_turn: false,
            served: QueueId(0),
        };
        Self {
            event_queue: EventQueue::default(),
            devices: (0..devices).map(|_| device()).collect(),
            memory_table: MemoryTable::new(model.memory.bytes, devices as usize),
            locking: BTreeSet::new(),
            model,
            machine,
            queues: BTreeMap::new(),
            closed: Vec::new(),
            memories: Vec::new(),
            programs,
            notices: VecDeque::new(),
            tracks,
            failure: None,
            reexecuted: 0,
            preemptions: 0,
            measured: Vec::new(),
        }
    }

    pub(crate) fn open_queue(
        &mut self,
        id: QueueId,
        device: usize,
        task: usize,
        priority: Priority,
        ring: Ring,
    ) {
        let mut queue = HardwareQueue::new(device, task, priority, ring);
        queue.slice = self.model.tsg.slice;
        if matches!(self.machine, MachineKind::None | MachineKind::Reset) {
            queue.residency = Residency::In;
        }
        self.queues.insert(id, queue);
        if self.machine == MachineKind::Tsg {
            self.devices[device].runlist.add(id);
        }
    }

    /// A client launches a kernel. Returns the launch's number in its queue.
    pub(crate) fn submit(&mut self, id: QueueId, mut packet: Packet) -> Option<u64> {
        let now = self.event_queue.now();
        let reset = self.machine == MachineKind::Reset;
        let queue = self.queues.get_mut(&id)?;
        let number = queue.launches.len() as u64;
        packet.number = number;
        packet.rung_at = now;
        queue.launches.push(LaunchRecord { packet, begun: 0, completed: 0 });
        let withheld = reset && queue.stopped;
        if withheld || queue.ring.is_full() || !queue.backlog.is_empty() {
            queue.backlog.push_back(packet);
        } else {
            queue.ring.submit(&packet);
            self.ring_doorbell(id);
        }
        self.track(id);
        Some(number)
    }

    /// The queues for which `wanted` holds.
    pub(crate) fn queues_where(&self, wanted: impl Fn(&HardwareQueue) -> bool) -> Vec<QueueId> {
        self.queues.iter().filter(|(_, queue)| wanted(queue)).map(|(&id, _)| id).collect()
    }

    pub(crate) fn ring_doorbell(&mut self, id: QueueId) {
        let submit = self.model.submit;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if !queue.fetching {
            queue.fetching = true;
            self.event_queue.after(submit, SimEvent::Fetch { queue: id });
        }
    }

    /// The command processor reads a ring.
    pub(crate) fn fetch(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.fetching = false;
        }
        self.fetch_more(id);
        self.consider(id);
    }

    fn fetch_more(&mut self, id: QueueId) {
        let depth = u64::from(self.model.fetch_depth);
        let fetches = self.may_fetch(id);
        let (programs, waves_max) = (self.programs.len(), self.model.waves_per_unit);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        while fetches && queue.in_flight() < depth {
            let Some(bytes) = queue.ring.fetch() else { break };
            match queue.admit(&bytes, programs, waves_max) {
                Ok(packet) => queue.fetched.push_back(packet),
                Err(what) => {
                    self.failure = Some((id, format!("{id}: {what}")));
                    return;
                }
            }
        }
        if queue.ring.is_bad() {
            self.failure = Some((id, format!("{id}: the write index is not where it can be")));
            return;
        }
        let withheld = queue.stopped && self.machine == MachineKind::Reset;
        while !withheld && !queue.ring.is_full() {
            let Some(packet) = queue.backlog.pop_front() else { break };
            queue.ring.submit(&packet);
        }
        self.begin(id);
    }

    /// Whether the command processor reads that ring.
    fn may_fetch(&self, id: QueueId) -> bool {
        let Some(queue) = self.queues.get(&id).filter(|queue| !queue.is_closed_to_fetches()) else {
            return false;
        };
        match self.machine {
            MachineKind::None => true,
            // The host engine fetches even while another group is resident.
            MachineKind::Reset | MachineKind::Tsg => !queue.stopped,
            MachineKind::Cwsr => !queue.stopped && queue.mapped_at.is_some(),
        }
    }

    /// Begins the next fetched launch if the one before is complete.
    fn begin(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.execution.is_some() {
            return;
        }
        let Some(packet) = queue.fetched.pop_front() else { return };
        if let Some(record) = queue.launch_mut(packet.number) {
            record.begun += 1;
            self.reexecuted += u64::from(record.begun == 2);
        }
        let program = Arc::clone(&self.programs[packet.kernel as usize]);
        queue.execution = Some(Execution::new(packet, program));
    }

    /// A launch is complete: notifies the client and begins the next one.
    fn complete(&mut self, id: QueueId) {
        let after = self.model.complete;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let Some(execution) = queue.execution.take() else { return };
        let number = execution.packet.number;
        let double = execution.finished.iter().position(|&times| times != 1);
        if let Some(group) = double {
            let what = format!("{id}: work-group {group} of launch {number} ran twice");
            self.failure = Some((id, what));
        }
        let first = queue.launch_mut(number).is_none_or(|record| {
            record.completed += 1;
            record.completed == 1
        });
        if self.machine != MachineKind::Reset && number != queue.completed {
            let expected = queue.completed;
            let what = format!("{id}: launch {number} is complete before {expected}");
            self.failure = Some((id, what));
        }
        queue.completed = queue.completed.max(number + 1);
        if first {
            self.event_queue.after(after, SimEvent::Seen { queue: id, number });
        }
        self.fetch_more(id);
        self.consider(id);
    }

    /// Updates which queues may be on the units after a change of a queue.
    pub(crate) fn consider(&mut self, id: QueueId) {
        let Some(device) = self.queues.get(&id).map(|queue| queue.device) else { return };
        match self.machine {
            MachineKind::None | MachineKind::Reset => {}
            MachineKind::Cwsr => self.request_slot(id),
            MachineKind::Tsg => self.consider_runlist(device),
        }
        self.dispatch(device);
        self.track(id);
    }
}
