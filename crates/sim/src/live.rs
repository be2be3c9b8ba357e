//! The same GPU for clients outside of the simulation: whoever owns it lets its time pass.
//!
//! Rings are in memory that clients share ([`RingPage`]), packets are whatever they wrote there,
//! and a queue whose client wrote nonsense is lost, and nothing else. Time is still a number that
//! comes from outside: [`LiveGpu::advance_to`] says how late it is and [`LiveGpu::next_at`] when
//! something happens next.

mod calls;
mod remap;

use std::collections::VecDeque;
use std::sync::Arc;

use gpreempt_core::capability::Capabilities;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};

use crate::agenda::What;
use crate::gpu::Gpu;
use crate::hold::HoldWatcher;
use crate::isa::Program;
use crate::memory::Memory;
use crate::model::{DeviceModel, MachineKind};
use crate::ring::{Ring, RingPage};
use crate::track::Tracks;
use calls::Calls;
pub use calls::{Call, CallId};

/// Devices whose clients, and whose time, are somebody else's.
#[derive(Debug)]
pub struct LiveGpu {
    gpu: Gpu,
    holds: Vec<HoldWatcher>,
    calls: Vec<Calls>,
    events: VecDeque<LiveEvent>,
    /// Places for memories of tasks that are free again.
    free: Vec<usize>,
    /// Appointments at which it is worth looking for those that nobody keeps.
    sweep_at: usize,
}

/// Where the memory of a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(usize);

/// Something the owner should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveEvent {
    /// A call is through.
    Done(CallId),
    /// A call was for a queue that is gone.
    Gone(CallId),
    /// A client wrote nonsense, or its kernel did something impossible: its queue is gone.
    Faulted {
        /// Whose.
        queue: QueueId,
        /// What was wrong, for people.
        what: String,
    },
}

/// How far the device got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// To the time it was told.
    Reached,
    /// To the number of steps it was allowed.
    Behind,
}

/// What a queue is given and has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// How long it has had waves on compute units.
    pub busy: Duration,
    /// Launches that are complete.
    pub completed: u64,
    /// Whether it is stopped from outside.
    pub is_stopped: bool,
    /// Whether nothing more is fetched from its ring.
    pub is_parked: bool,
    /// Whether its waves may be on compute units, or are on their way.
    pub is_resident: bool,
    /// Its slice.
    pub slice: Duration,
    /// Its priority, as it was told.
    pub priority: Priority,
    /// Waves in its save area.
    pub saved_waves: u64,
}

impl LiveGpu {
    /// Devices of one kind, with the kernels that packets may name. None for a machine that
    /// cannot be preempted without losing work: whatever is the point of it, it is not this one.
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
            gpu: Gpu::new(model, machine, devices, programs, Tracks::metered()),
            holds: (0..devices).map(|_| HoldWatcher::sleeping()).collect(),
            calls: (0..devices).map(|_| Calls::default()).collect(),
            events: VecDeque::new(),
            free: Vec::new(),
            sweep_at: SWEEP_MIN,
        })
    }

    /// How late it is on the device.
    pub fn now(&self) -> Instant {
        self.gpu.agenda.now()
    }

    /// When something happens next by itself.
    pub fn next_at(&self) -> Option<Instant> {
        self.gpu.agenda.next_at()
    }

    /// Lets time pass, in at most that many steps.
    pub fn advance_to(&mut self, to: Instant, steps_max: u32) -> Progress {
        self.sweep();
        for _ in 0..steps_max {
            if self.next_at().is_none_or(|at| at > to) {
                self.gpu.agenda.pass_to(to);
                return Progress::Reached;
            }
            let Some(what) = self.gpu.agenda.pop() else { return Progress::Reached };
            self.handle(what);
            self.settle();
        }
        Progress::Behind
    }

    /// The next thing the owner should know, oldest first.
    pub fn poll_event(&mut self) -> Option<LiveEvent> {
        self.events.pop_front()
    }

    /// What each device can do.
    pub fn capabilities(&self) -> Capabilities {
        self.gpu.capabilities(true)
    }

    /// Whether a look at a ring's indices can tell that fetched work still runs.
    pub fn can_tell_running(&self) -> bool {
        self.gpu.can_tell_running()
    }

    /// What the devices are.
    pub fn model(&self) -> &DeviceModel {
        &self.gpu.model
    }

    /// How many devices there are.
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

    /// A task's memory is gone. Its queues must be gone before.
    pub fn close_memory(&mut self, id: MemoryId) {
        self.gpu.memories[id.0] = Memory::new(0);
        self.free.push(id.0);
    }

    /// The bytes of a task's memory.
    pub fn memory(&self, id: MemoryId) -> &[u8] {
        self.gpu.memories[id.0].bytes()
    }

    /// A task opens a queue on a device. Names are never used twice.
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

    /// A queue is gone, and so is everything it had on its device.
    pub fn close_queue(&mut self, id: QueueId) {
        for watcher in self.holds.iter_mut().filter(|watcher| watcher.permits(id)) {
            watcher.forbid(&mut self.gpu);
        }
        self.gpu.close_queue(id);
        // Only simulations look at what was.
        self.gpu.closed.clear();
        self.gpu.tracks.forget(id);
        self.take_notices();
        self.end_calls_of(id);
    }

    /// A client has rung a queue's doorbell.
    pub fn ring_doorbell(&mut self, id: QueueId) {
        let Some(queue) = self.gpu.queues.get_mut(&id) else { return };
        let device = queue.device;
        queue.ring.look();
        // The device may have seen the packet before it heard the bell; it has to fetch it still.
        if queue.ring.pending() == 0 && !queue.ring.is_bad() {
            return;
        }
        self.gpu.ring_doorbell(id);
        self.gpu.track(id);
        if self.holds[device].permits(id) {
            self.holds[device].wake(&mut self.gpu, device);
        }
    }

    /// This queue alone may be held across its gaps on its device.
    pub fn permit_hold(&mut self, id: QueueId) {
        let Some(device) = self.gpu.queues.get(&id).map(|queue| queue.device) else { return };
        if self.gpu.machine == MachineKind::Tsg {
            self.holds[device].permit(&mut self.gpu, device, id);
        }
    }

    /// This queue may no longer be held.
    pub fn forbid_hold(&mut self, id: QueueId) {
        for watcher in self.holds.iter_mut().filter(|watcher| watcher.permits(id)) {
            watcher.forbid(&mut self.gpu);
        }
    }

    /// Notes a queue's priority, which no machine here looks at.
    pub fn set_priority(&mut self, id: QueueId, priority: Priority) {
        if let Some(queue) = self.gpu.queues.get_mut(&id) {
            queue.priority = priority;
        }
    }

    /// What a queue is given and has got.
    pub fn usage(&self, id: QueueId) -> Option<Usage> {
        let queue = self.gpu.queues.get(&id)?;
        Some(Usage {
            busy: self.gpu.tracks.busy(id, self.now()),
            completed: queue.completed,
            is_stopped: queue.stopped,
            is_parked: queue.parked,
            is_resident: queue.residency != crate::gpu::queue::Residency::Out,
            slice: queue.slice,
            priority: queue.priority,
            saved_waves: queue.saved_waves(),
        })
    }

    /// Times that running waves were taken off a device.
    pub fn preemptions(&self) -> u64 {
        self.gpu.preemptions
    }

    fn handle(&mut self, what: What) {
        let gpu = &mut self.gpu;
        match what {
            What::WaveReady { queue, group, wave, epoch } => {
                gpu.wave_ready(queue, group, wave, epoch);
            }
            What::Fetch { queue } => gpu.fetch(queue),
            What::Seen { queue, number } => {
                if let Some(queue) = gpu.queues.get(&queue) {
                    queue.ring.complete(number + 1);
                }
            }
            What::Saved { queue, epoch } => gpu.finish_save(queue, epoch),
            What::Restored { queue, epoch } => gpu.finish_restore(queue, epoch),
            What::Switched { device, epoch } => gpu.switched(device, epoch),
            What::SliceOver { device, epoch } => gpu.slice_over(device, epoch),
            What::SlotTurn { device } => gpu.slot_turn(device),
            What::CallReaches { device, epoch } => self.call_reaches(device, epoch),
            What::HoldPoll { device, epoch } => self.holds[device].poll(gpu, device, epoch),
            What::HoldSeen { queue, placed } => gpu.hold_seen(queue, placed),
            // Processes, schedulers, faults and the papers' design are simulated only.
            What::Resubmitted { .. }
            | What::TaskStart { .. }
            | What::Arrive { .. }
            | What::Announce { .. }
            | What::CpuDone { .. }
            | What::EndNoticed { .. }
            | What::PriorityChange { .. }
            | What::FaultBegins { .. }
            | What::SchedulerStep { .. }
            | What::SchedulerStart
            | What::KeeperActs => {}
        }
    }

    /// Sees to what a step left behind.
    fn settle(&mut self) {
        self.take_notices();
        while let Some((queue, what)) = self.gpu.failure.take() {
            self.close_queue(queue);
            self.events.push_back(LiveEvent::Faulted { queue, what });
        }
    }

    /// Forgets appointments of waves that were taken off meanwhile: a long kernel that is switched
    /// often would leave many.
    fn sweep(&mut self) {
        if self.gpu.agenda.len() < self.sweep_at {
            return;
        }
        let queues = &self.gpu.queues;
        self.gpu.agenda.retain(|what| {
            let What::WaveReady { queue, epoch, .. } = what else { return true };
            queues.get(queue).is_some_and(|queue| queue.epoch == *epoch)
        });
        self.sweep_at = (self.gpu.agenda.len() * 2).max(SWEEP_MIN);
    }
}

/// Fewer appointments than this are not worth a sweep.
const SWEEP_MIN: usize = 1 << 14;

#[cfg(test)]
mod tests;
