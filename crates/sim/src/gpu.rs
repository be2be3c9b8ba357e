//! The emulated GPU: rings in, memory out, virtual time in between.
//!
//! A command processor fetches packets from rings, a dispatcher places work-groups on compute
//! units, waves execute their program and serve busy time. What differs between machines is who may
//! be on the units and how work gets off them: one file each ([`none`], [`reset`], [`cwsr`],
//! [`tsg`]). Nothing in here knows about priorities.

mod abilities;
mod cwsr;
mod dispatch;
mod execution;
mod none;
pub(crate) mod queue;
mod reset;
mod stop;
mod tsg;
mod units;
mod waves;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;

use crate::agenda::{Agenda, What};
use crate::isa::Program;
use crate::memory::Memory;
use crate::model::{DeviceModel, MachineKind};
use crate::packet::Packet;
use crate::ring::Ring;
use crate::track::Tracks;
use execution::Execution;
use queue::{HardwareQueue, LaunchRecord, Residency};
use tsg::Runlist;
use units::Units;

/// All devices of a simulation, with their queues and the memory of the tasks.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) agenda: Agenda,
    pub(crate) model: DeviceModel,
    pub(crate) machine: MachineKind,
    pub(crate) devices: Vec<Device>,
    pub(crate) queues: BTreeMap<QueueId, HardwareQueue>,
    /// Queues whose client is gone, for the checks at the end.
    pub(crate) closed: Vec<(QueueId, HardwareQueue)>,
    /// The memory of each task, by its index.
    pub(crate) memories: Vec<Memory>,
    /// Loaded programs, by the number packets use.
    pub(crate) programs: Vec<Arc<Program>>,
    /// What the hardware finished and somebody waits for, oldest first.
    pub(crate) notices: VecDeque<Notice>,
    pub(crate) tracks: Tracks,
    /// A queue's kernel did something impossible: whose, and what.
    pub(crate) failure: Option<(QueueId, String)>,
    /// Launches whose execution was begun more than once.
    pub(crate) reexecuted: u64,
    /// Times that running waves were taken off the device.
    pub(crate) preemptions: u64,
}

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) units: Units,
    runlist: Runlist,
    /// Queues that want a hardware slot, longest waiting first.
    slot_waiters: VecDeque<QueueId>,
    slot_turn: bool,
    /// Whose work-group was placed last.
    served: QueueId,
}

/// Something the hardware finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The queue is off.
    Stopped(QueueId),
    /// The queue is on.
    Resumed(QueueId),
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
            agenda: Agenda::default(),
            devices: (0..devices).map(|_| device()).collect(),
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
        }
    }

    /// A client opens a queue.
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
        let now = self.agenda.now();
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

    pub(crate) fn ring_doorbell(&mut self, id: QueueId) {
        let submit = self.model.submit;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if !queue.fetching {
            queue.fetching = true;
            self.agenda.after(submit, What::Fetch { queue: id });
        }
    }

    /// The command processor looks into a ring.
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

    /// Whether the device looks into that ring at all.
    fn may_fetch(&self, id: QueueId) -> bool {
        let Some(queue) = self.queues.get(&id).filter(|queue| !queue.parked) else { return false };
        match self.machine {
            MachineKind::None => true,
            // The host part fetches even while another group is on the engine.
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

    /// A launch is complete: tell the client, go on with the next.
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
            self.agenda.after(after, What::Seen { queue: id, number });
        }
        self.fetch_more(id);
        self.consider(id);
    }

    /// Something about a queue changed: let the machine decide who may be on the units.
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
