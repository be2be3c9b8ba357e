//! The simulator's device in virtual time, for tests in one program: time advances while a call
//! waits, and every result can be checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpreempt_core::id::QueueId;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::block::CreateQueue;
use gpreempt_sim::external_gpu::{Call, CallId, ExternalGpu, ExternalGpuEvent, MemoryId, Progress};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::ring::Packet;
use gpreempt_wire::emulated_kfd::{device_of, gpu_id};
use gpreempt_wire::emulator::client::MixedWord;
use gpreempt_wire::emulator::ring_page::QueuePage;
use rustix::io::Errno;

use super::driver_env::Devices;
use super::in_process::LocalDevices;
use crate::server::load_kernels;
use crate::server::queue::DevicePage;

const CAPACITY: u32 = 64;
const GROUPS: u32 = 2;
/// Eight words per wave.
const MEMORY_BYTES: u32 = GROUPS * 32;
/// The kernel whose result depends on every launch and their order.
const MIX: u32 = 1;
const STEPS_MAX: u32 = 10_000;

/// Clones share the devices.
#[derive(Clone)]
pub struct VirtualDevices {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    gpu: ExternalGpu,
    queues: BTreeMap<QueueId, VirtualQueue>,
    last_queue: u64,
    /// Calls that have not completed.
    begun: BTreeSet<CallId>,
    done: Vec<CallId>,
    faults: u64,
}

struct VirtualQueue {
    page: Arc<QueuePage>,
    memory: MemoryId,
    expected: MixedWord,
    put: u64,
}

impl VirtualDevices {
    /// None if the model cannot preempt.
    pub fn new(model: DeviceModel, count: u32) -> Option<Self> {
        let gpu = ExternalGpu::new(model, MachineKind::Cwsr, count, load_kernels())?;
        let queues = BTreeMap::new();
        let (begun, done) = (BTreeSet::new(), Vec::new());
        let inner = Inner { gpu, queues, last_queue: 0, begun, done, faults: 0 };
        Some(Self { inner: Arc::new(Mutex::new(inner)) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn run_for(&self, time: Duration) {
        let mut inner = self.inner();
        let until = inner.gpu.now() + time;
        while inner.gpu.advance_to(until, STEPS_MAX) == Progress::Behind {}
        inner.take_events();
    }

    /// Submits a kernel of this duration. False if the ring is full or the queue is gone.
    pub fn submit(&self, queue: QueueId, work_ns: u32) -> bool {
        let mut inner = self.inner();
        let Some(found) = inner.queues.get_mut(&queue) else { return false };
        if found.put - found.page.read().get >= u64::from(CAPACITY) {
            return false;
        }
        let arguments = [0, found.expected.next_number(), work_ns, MEMORY_BYTES];
        let (number, rung_at) = (found.put, Instant::ZERO);
        let packet = Packet { kernel: MIX, groups: GROUPS, waves: 1, arguments, number, rung_at };
        found.expected.launch();
        found.put += 1;
        if found.page.write(number, &packet.encode()) {
            inner.gpu.ring_doorbell(queue);
        }
        true
    }

    /// The numbers of submitted and completed kernels. None if the queue is gone.
    pub fn progress(&self, queue: QueueId) -> Option<(u64, u64)> {
        let inner = self.inner();
        let found = inner.queues.get(&queue)?;
        Some((found.put, found.page.read().completed))
    }

    /// Whether every submitted kernel ran completely, exactly once and in order. None if the queue
    /// is gone.
    pub fn is_exact(&self, queue: QueueId) -> Option<bool> {
        let inner = self.inner();
        let found = inner.queues.get(&queue)?;
        let all = found.put == found.page.read().completed;
        let memory = inner.gpu.memory(found.memory);
        Some(all && (found.put == 0 || found.expected.fills(memory)))
    }

    /// Whether a queue's waves may be on compute units.
    pub fn is_resident(&self, queue: QueueId) -> Option<bool> {
        Some(self.inner().gpu.usage(queue)?.is_resident)
    }

    /// How often running waves were saved.
    pub fn preemptions(&self) -> u64 {
        self.inner().gpu.preemptions()
    }

    pub fn faults(&self) -> u64 {
        self.inner().faults
    }

    pub fn gpu_ids(&self) -> Vec<u32> {
        (0..self.inner().gpu.devices()).filter_map(gpu_id).collect()
    }
}

impl Inner {
    fn take_events(&mut self) {
        while let Some(event) = self.gpu.poll_event() {
            match event {
                ExternalGpuEvent::Done(call) | ExternalGpuEvent::Gone(call) => {
                    self.begun.remove(&call);
                    self.done.push(call);
                }
                ExternalGpuEvent::Faulted { queue, .. } => {
                    self.faults += 1;
                    self.queues.remove(&queue);
                }
                // A KFD checkpoints no process.
                ExternalGpuEvent::StepEnded { .. } => {}
            }
        }
    }
}

impl Devices for VirtualDevices {
    fn open_queue(
        &mut self,
        _pid: u32,
        block: &CreateQueue,
        _ring: Option<OwnedFd>,
    ) -> Result<QueueId, Errno> {
        let mut inner = self.inner();
        let device = device_of(block.gpu_id).filter(|device| *device < inner.gpu.devices());
        let device = device.ok_or(Errno::INVAL)?;
        let (page, _file) = QueuePage::create(CAPACITY)?;
        let page = Arc::new(page);
        inner.last_queue += 1;
        let queue = QueueId(inner.last_queue);
        let bytes = usize::try_from(MEMORY_BYTES).map_err(|_| Errno::INVAL)?;
        let memory = inner.gpu.open_memory(bytes);
        let shared = Box::new(DevicePage(Arc::clone(&page)));
        inner.gpu.open_stopped_queue(queue, device, memory, shared);
        let expected = MixedWord::default();
        inner.queues.insert(queue, VirtualQueue { page, memory, expected, put: 0 });
        Ok(queue)
    }

    fn close_queue(&mut self, queue: QueueId) {
        let mut inner = self.inner();
        inner.gpu.close_queue(queue);
        if let Some(queue) = inner.queues.remove(&queue) {
            inner.gpu.close_memory(queue.memory);
        }
        inner.take_events();
    }

    fn remap(&mut self, call: CallId, gpu_id: u32, runlist: BTreeSet<QueueId>) -> bool {
        let Some(device) = device_of(gpu_id) else { return true };
        let mut inner = self.inner();
        inner.begun.insert(call);
        inner.gpu.remap(call, device, runlist);
        false
    }

    fn ring(&self, queue: QueueId) -> Option<RingView> {
        Some(self.inner().queues.get(&queue)?.page.read().view(false))
    }

    fn move_queue(&mut self, call: CallId, queue: QueueId, on: bool) -> bool {
        let mut inner = self.inner();
        inner.begun.insert(call);
        inner.gpu.call(call, queue, if on { Call::Resume } else { Call::Stop });
        false
    }
}

impl LocalDevices for VirtualDevices {
    fn advance(&mut self) -> Vec<CallId> {
        let mut inner = self.inner();
        inner.take_events();
        // Time only advances while a call waits.
        while inner.done.is_empty() && !inner.begun.is_empty() {
            let Some(next) = inner.gpu.next_at() else { break };
            inner.gpu.advance_to(next, 1);
            inner.take_events();
        }
        std::mem::take(&mut inner.done)
    }
}

impl fmt::Debug for VirtualDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VirtualDevices")
    }
}
