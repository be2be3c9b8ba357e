//! The GPU for clients outside of the simulation, driven by its owner's clock.
//!
//! Rings are in memory shared with clients ([`RingPage`]). A client that writes invalid packets
//! loses its queue and affects no other. The owner passes the time to [`ExternalGpu::advance_to`]
//! and asks [`ExternalGpu::next_at`] for the next event.

mod calls;
mod checkpoints;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gpreempt_core::backend::Capabilities;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};

use crate::event_queue::SimEvent;
use crate::gpu::Gpu;
use crate::hold::HoldWatcher;
use crate::isa::Program;
use crate::memory::Memory;
use crate::model::{DeviceModel, MachineKind};
use crate::process_memory::{CheckpointError, ProcessId};
use crate::ring::{Ring, RingPage};
use crate::track::Tracks;
use calls::CallQueue;
pub use calls::{Call, CallId};
pub use checkpoints::ProcessUsage;

#[derive(Debug)]
pub struct ExternalGpu {
    gpu: Gpu,
    holds: Vec<HoldWatcher>,
    calls: Vec<CallQueue>,
    /// The call that began the current step of each process.
    steps: BTreeMap<ProcessId, CallId>,
    events: VecDeque<ExternalGpuEvent>,
    /// Free indices of `gpu.memories`.
    free: Vec<usize>,
    /// When each queue got its last doorbell.
    rung_at: BTreeMap<QueueId, Instant>,
    /// The number of events at which superseded ones are removed.
    sweep_at: usize,
}

/// Identifies the memory of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(usize);

/// A report to the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalGpuEvent {
    Done(CallId),
    /// The queue of a call is gone.
    Gone(CallId),
    /// A client wrote invalid packets, or its kernel faulted: its queue is gone.
    Faulted {
        queue: QueueId,
        what: String,
    },
    StepEnded {
        call: CallId,
        process: ProcessId,
        result: Result<(), CheckpointError>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The requested time was reached.
    Reached,
    /// The number of steps was used up before.
    Behind,
}

/// The state and use of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Time with waves on compute units.
    pub busy: Duration,
    pub completed: u64,
    /// How often its running waves were saved.
    pub preemptions: u32,
    /// Preempted by a call.
    pub is_stopped: bool,
    /// Not fetched from.
    pub is_parked: bool,
    /// Its waves may be on compute units, or are being saved or restored.
    pub is_resident: bool,
    pub slice: Duration,
    pub priority: Priority,
    pub saved_waves: u64,
}

impl ExternalGpu {
    /// Devices of one kind, with the kernels that packets may name. None for machines that cannot
    /// be preempted without losing work.
    pub fn new(
        model: DeviceModel,
        machine: MachineKind,
        devices: u32,
        programs: Vec<Program>,
    ) -> Option<Self> {
        if matches!(machine, MachineKind::None | MachineKind::Reset) {
            return None;
        }
        let programs = programs.into_iter().map(Arc::new).collect();
        Some(Self {
            gpu: Gpu::new(model, machine, devices, programs, Tracks::default().metered()),
            holds: (0..devices).map(|_| HoldWatcher::sleeping()).collect(),
            calls: (0..devices).map(|_| CallQueue::default()).collect(),
            steps: BTreeMap::new(),
            events: VecDeque::new(),
            free: Vec::new(),
            rung_at: BTreeMap::new(),
            sweep_at: SWEEP_MIN,
        })
    }

    /// The time on the device.
    pub fn now(&self) -> Instant {
        self.gpu.event_queue.now()
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Instant> {
        self.gpu.event_queue.next_at()
    }

    /// Advances the time, in at most that many steps.
    pub fn advance_to(&mut self, to: Instant, steps_max: u32) -> Progress {
        self.sweep();
        for _ in 0..steps_max {
            if self.next_at().is_none_or(|at| at > to) {
                self.gpu.event_queue.pass_to(to);
                return Progress::Reached;
            }
            let Some(event) = self.gpu.event_queue.pop() else { return Progress::Reached };
            self.handle(event);
            self.handle_results();
        }
        Progress::Behind
    }

    /// The oldest report.
    pub fn poll_event(&mut self) -> Option<ExternalGpuEvent> {
        self.events.pop_front()
    }

    pub fn capabilities(&self) -> Capabilities {
        self.gpu.capabilities(true)
    }

    /// Whether a reading of a ring shows that fetched work still runs.
    pub fn can_tell_running(&self) -> bool {
        self.gpu.can_tell_running()
    }

    pub fn model(&self) -> &DeviceModel {
        &self.gpu.model
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.gpu.devices.len()
    }

    /// Memory for a new task, all zero.
    pub fn open_memory(&mut self, bytes: usize) -> MemoryId {
        let memory = Memory::new(bytes);
        match self.free.pop() {
            Some(at) => {
                self.gpu.memories[at] = memory;
                MemoryId(at)
            }
            None => {
                self.gpu.memories.push(memory);
                MemoryId(self.gpu.memories.len() - 1)
            }
        }
    }

    /// Frees the memory of a task whose queues are closed.
    pub fn close_memory(&mut self, id: MemoryId) {
        self.gpu.end_task_memory(id.0);
        self.gpu.memories[id.0] = Memory::new(0);
        self.free.push(id.0);
        self.handle_notices();
    }

    pub fn memory(&self, id: MemoryId) -> &[u8] {
        self.gpu.memories[id.0].bytes()
    }

    /// Opens a queue on a device. Identifiers are never reused.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn open_queue(
        &mut self,
        id: QueueId,
        device: usize,
        memory: MemoryId,
        page: Box<dyn RingPage>,
    ) {
        self.gpu.open_queue(id, device, memory.0, Priority::DEFAULT, Ring::mapped(page));
    }

    /// Removes a queue and all its state on the device.
    pub fn close_queue(&mut self, id: QueueId) {
        for watcher in self.holds.iter_mut().filter(|watcher| watcher.permits(id)) {
            watcher.forbid(&mut self.gpu);
        }
        self.gpu.close_queue(id);
        // Only simulations check closed queues.
        self.gpu.closed.clear();
        self.gpu.tracks.forget(id);
        self.rung_at.remove(&id);
        self.gpu.settle_locks();
        self.handle_notices();
        self.end_calls_of(id);
    }

    pub fn ring_doorbell(&mut self, id: QueueId) {
        let Some(queue) = self.gpu.queues.get_mut(&id) else { return };
        let device = queue.device;
        queue.ring.look();
        // The watcher may have read the index before the doorbell; the packet is still to be
        // fetched.
        if queue.ring.pending() == 0 && !queue.ring.is_bad() {
            return;
        }
        self.gpu.ring_doorbell(id);
        self.gpu.track(id);
        self.rung_at.insert(id, self.now());
        if self.holds[device].permits(id) {
            self.holds[device].wake(&mut self.gpu, device);
        }
    }

    /// Permits holds for this queue alone on its device.
    pub fn permit_hold(&mut self, id: QueueId) {
        let Some(device) = self.gpu.queues.get(&id).map(|queue| queue.device) else { return };
        if self.gpu.machine == MachineKind::Tsg {
            self.holds[device].permit(&mut self.gpu, device, id);
        }
    }

    pub fn forbid_hold(&mut self, id: QueueId) {
        for watcher in self.holds.iter_mut().filter(|watcher| watcher.permits(id)) {
            watcher.forbid(&mut self.gpu);
        }
    }

    /// Records a queue's priority, which has no effect here.
    pub fn set_priority(&mut self, id: QueueId, priority: Priority) {
        if let Some(queue) = self.gpu.queues.get_mut(&id) {
            queue.priority = priority;
        }
    }

    /// The state and use of a queue.
    pub fn usage(&self, id: QueueId) -> Option<Usage> {
        let queue = self.gpu.queues.get(&id)?;
        Some(Usage {
            busy: self.gpu.tracks.busy(id, self.now()),
            completed: queue.completed,
            preemptions: queue.preemptions,
            is_stopped: queue.stopped,
            is_parked: queue.parked,
            is_resident: queue.residency != crate::gpu::queue::Residency::Out,
            slice: queue.slice,
            priority: queue.priority,
            saved_waves: queue.saved_waves(),
        })
    }

    /// Time in which at least one queue of a device had waves on compute units.
    pub fn device_busy(&self, device: usize) -> Duration {
        self.gpu.tracks.device_busy(device, self.now())
    }

    /// How often running waves were preempted.
    pub fn preemptions(&self) -> u64 {
        self.gpu.preemptions
    }

    fn handle(&mut self, event: SimEvent) {
        let gpu = &mut self.gpu;
        match event {
            SimEvent::WaveReady { queue, group, wave, epoch } => {
                gpu.wave_ready(queue, group, wave, epoch);
            }
            SimEvent::Fetch { queue } => gpu.fetch(queue),
            SimEvent::Seen { queue, number } => {
                let rung_at = self.rung_at.get(&queue).copied().unwrap_or_default();
                let latency = gpu.event_queue.now().since(rung_at);
                if let Some(queue) = gpu.queues.get(&queue) {
                    queue.ring.complete(number + 1, latency);
                }
            }
            SimEvent::Saved { queue, epoch } => gpu.finish_save(queue, epoch),
            SimEvent::Restored { queue, epoch } => gpu.finish_restore(queue, epoch),
            SimEvent::Switched { device, epoch } => gpu.switched(device, epoch),
            SimEvent::SliceOver { device, epoch } => gpu.slice_over(device, epoch),
            SimEvent::SlotTurn { device } => gpu.slot_turn(device),
            SimEvent::CallReaches { device, epoch } => self.call_reaches(device, epoch),
            SimEvent::HoldPoll { device, epoch } => self.holds[device].poll(gpu, device, epoch),
            SimEvent::HoldSeen { queue, placed } => gpu.hold_seen(queue, placed),
            SimEvent::StepReaches { process, epoch } => gpu.step_reaches(process, epoch),
            // Processes, schedulers, faults and the reset design exist in simulations only.
            SimEvent::Resubmitted { .. }
            | SimEvent::MemoryDue
            | SimEvent::TaskStart { .. }
            | SimEvent::Arrive { .. }
            | SimEvent::Announce { .. }
            | SimEvent::CpuDone { .. }
            | SimEvent::EndNoticed { .. }
            | SimEvent::PriorityChange { .. }
            | SimEvent::FaultBegins { .. }
            | SimEvent::SchedulerStep { .. }
            | SimEvent::SchedulerStart
            | SimEvent::KeeperRuns => {}
        }
    }

    fn handle_results(&mut self) {
        self.gpu.settle_locks();
        self.handle_notices();
        while let Some((queue, what)) = self.gpu.failure.take() {
            self.close_queue(queue);
            self.events.push_back(ExternalGpuEvent::Faulted { queue, what });
        }
    }

    /// Removes superseded events of waves: a long kernel that is preempted often leaves many.
    fn sweep(&mut self) {
        if self.gpu.event_queue.len() < self.sweep_at {
            return;
        }
        let queues = &self.gpu.queues;
        self.gpu.event_queue.retain(|event| {
            let SimEvent::WaveReady { queue, epoch, .. } = event else { return true };
            queues.get(queue).is_some_and(|queue| queue.epoch == *epoch)
        });
        self.sweep_at = (self.gpu.event_queue.len() * 2).max(SWEEP_MIN);
    }
}

/// With fewer events than this, superseded ones are not removed.
const SWEEP_MIN: usize = 1 << 14;

#[cfg(test)]
mod tests;
