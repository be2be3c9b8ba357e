//! The simulated backend: devices, processes, workers, and the faults that happen to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use gpreempt_core::backend::{Backend, Capabilities, Command};
use gpreempt_core::event::{Event, Fault, SchedAttr};
use gpreempt_core::id::{DeviceId, GangId, QueueId, TaskId};
use gpreempt_core::ring::RingView;
use gpreempt_core::time::{Duration, Instant};

use crate::client::{Client, ProcessState};
use crate::control::{Worker, failed};
use crate::event_queue::SimEvent;
use crate::eviction::Evictions;
use crate::gpu::Gpu;
use crate::hold::HoldWatcher;
use crate::isa::{AssembleError, LANES, Program};
use crate::memory::Memory;
use crate::prng::Prng;
use crate::ring::Ring;
use crate::scenario::{Arrivals, FaultKind, FaultSpec, KernelSpec, ProgramSource, Scenario};
use crate::track::Tracks;

/// The quiet time of rings that do not show running work: that of the AMD backend.
const HIDDEN_QUIET: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(crate) struct SimBackend {
    pub(crate) gpu: Gpu,
    pub(crate) clients: Vec<Client>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) holds: Vec<HoldWatcher>,
    pub(crate) kernels: Vec<KernelSpec>,
    pub(crate) faults: Vec<FaultSpec>,
    pub(crate) chance: Prng,
    /// When no more work arrives.
    pub(crate) duration: Duration,
    /// After how long a failing preempt is reported.
    pub(crate) preempt_timeout: Duration,
    /// Whether rings never show that fetched work runs.
    pub(crate) hides_running: bool,
    pub(crate) may_hold: bool,
    /// Bytes of each queue's part of its task's memory.
    pub(crate) region_bytes: Vec<u32>,
    /// Entries of each task's rings.
    ring_capacity: Vec<u32>,
    /// Events for the scheduler.
    reports: VecDeque<Event>,
    pub(crate) scheduler_up: bool,
    /// Whether the scheduler's loop should run now.
    pub(crate) wake: bool,
    /// Queues with a preempt or resume in flight.
    in_flight: BTreeSet<QueueId>,
    /// Past readings of the rings, for late observations.
    readings: BTreeMap<QueueId, VecDeque<(Instant, RingView)>>,
    next_queue: u64,
    pub(crate) evictions: Evictions,
    /// The first violation.
    pub(crate) violation: Option<String>,
    /// Task and device of every queue that ever existed.
    pub(crate) queue_owners: Vec<(QueueId, usize, usize)>,
}

impl SimBackend {
    pub(crate) fn new(scenario: &Scenario, tracks: Tracks) -> Result<Self, AssembleError> {
        let programs = load_programs(&scenario.kernels)?;
        let prng = Prng::new(scenario.seed);
        let (model, machine) = (scenario.model.clone(), scenario.machine);
        let mut gpu = Gpu::new(model, machine, scenario.devices, programs, tracks);
        let region_bytes: Vec<u32> =
            scenario.tasks.iter().map(|task| region_bytes(scenario, &task.request)).collect();
        for (task, region) in scenario.tasks.iter().zip(&region_bytes) {
            let queues = task.queues as usize * task.devices.len();
            gpu.memories.push(Memory::new(*region as usize * queues));
        }
        let clients = scenario
            .tasks
            .iter()
            .zip(1..)
            .map(|(task, purpose)| Client::new(task.clone(), prng.branch(purpose)))
            .collect();
        let devices = scenario.devices as usize;
        Ok(Self {
            gpu,
            clients,
            workers: (0..devices).map(|_| Worker::default()).collect(),
            holds: (0..devices).map(|_| HoldWatcher::default()).collect(),
            kernels: scenario.kernels.clone(),
            faults: scenario.faults.clone(),
            chance: prng.branch(0),
            duration: scenario.duration,
            preempt_timeout: scenario
                .scheduler
                .map_or(Duration::ZERO, |scheduler| scheduler.config.preempt_timeout),
            hides_running: false,
            may_hold: scenario.scheduler.is_some_and(|scheduler| scheduler.hold),
            ring_capacity: scenario.tasks.iter().map(ring_capacity).collect(),
            region_bytes,
            reports: VecDeque::new(),
            scheduler_up: false,
            wake: false,
            in_flight: BTreeSet::new(),
            readings: BTreeMap::new(),
            next_queue: 1,
            evictions: Evictions::new(scenario),
            violation: None,
            queue_owners: Vec::new(),
        })
    }

    pub(crate) fn now(&self) -> Instant {
        self.gpu.event_queue.now()
    }

    /// Reports an event to the scheduler, if there is one.
    pub(crate) fn report(&mut self, event: Event) {
        if let Event::Preempted { queue }
        | Event::PreemptFailed { queue, .. }
        | Event::Resumed { queue }
        | Event::ResumeFailed { queue, .. } = event
        {
            self.in_flight.remove(&queue);
        }
        if self.scheduler_up {
            self.reports.push_back(event);
            self.wake = true;
        }
    }

    /// Discards the calls and reports of a scheduler that died.
    pub(crate) fn scheduler_died(&mut self) {
        self.scheduler_up = false;
        self.reports.clear();
        self.in_flight.clear();
        for worker in &mut self.workers {
            worker.orphan();
        }
        for device in 0..self.holds.len() {
            self.forbid_hold(device);
        }
        self.abandon_evictions();
    }

    /// Reports all devices, tasks and queues to a new scheduler.
    pub(crate) fn announce_all(&mut self) {
        self.scheduler_up = true;
        let capabilities = self.capabilities();
        for device in 0..self.gpu.devices.len() {
            self.report(Event::DeviceAppeared { device: device_id(device), capabilities });
        }
        for task in 0..self.clients.len() {
            if self.clients[task].state == ProcessState::Running && !self.evictions.is_away(task) {
                self.announce_task(task);
            }
        }
        self.memory_changed();
    }

    pub(crate) fn announce_task(&mut self, task: usize) {
        let attr = self.attr_of(task);
        self.report(Event::TaskAppeared { task: task_id(task), attr });
        let queues: Vec<QueueId> = self.clients[task].queues().collect();
        for queue in queues {
            let Some(hardware) = self.gpu.queues.get(&queue) else { continue };
            let (device, stopped) = (device_id(hardware.device), hardware.stopped);
            self.report(Event::QueueAppeared { queue, task: task_id(task), device, stopped });
        }
    }

    pub(crate) fn attr_of(&self, task: usize) -> SchedAttr {
        let client = &self.clients[task];
        let gangs: BTreeSet<&str> =
            self.clients.iter().filter_map(|client| client.spec.gang.as_deref()).collect();
        let gang = client.spec.gang.as_deref();
        SchedAttr {
            priority: client.priority,
            weight: client.spec.weight,
            deadline: client.spec.deadline,
            has_min_share: false,
            latency_budget: client.spec.latency_budget,
            gang: gang.and_then(|gang| {
                gangs.iter().zip(0..).find(|(name, _)| **name == gang).map(|(_, id)| GangId(id))
            }),
        }
    }

    pub(crate) fn open_queues(&mut self, task: usize) {
        let (devices, queues, priority) = {
            let client = &self.clients[task];
            (client.spec.devices.clone(), client.spec.queues, client.priority)
        };
        let mut turns = Vec::new();
        for _ in 0..queues {
            let mut turn = Vec::new();
            for &device in &devices {
                let id = QueueId(self.next_queue);
                self.next_queue += 1;
                let device = device as usize;
                let ring = Ring::new(self.ring_capacity[task]);
                self.gpu.open_queue(id, device, task, priority, ring);
                self.queue_owners.push((id, task, device));
                turn.push(id);
            }
            turns.push(turn);
        }
        self.clients[task].turns = turns;
    }

    /// What the devices can do, as their backend reports it.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let shown = self.gpu.capabilities(self.may_hold);
        if self.hides_running { Capabilities { quiet: HIDDEN_QUIET, ..shown } } else { shown }
    }

    fn reading(&self, queue: QueueId) -> Option<RingView> {
        let hardware = self.gpu.queues.get(&queue)?;
        let running = if self.hides_running {
            None
        } else if self.gpu.can_tell_running() {
            Some(hardware.has_work())
        } else {
            hardware.known_running()
        };
        Some(hardware.ring.view(running))
    }
}

impl SimBackend {
    /// From now on: the simulator measures exactly, whether the queue is held or not.
    fn measure_slowdown(&mut self, queue: QueueId) {
        if let Some(queue) = self.gpu.queues.get_mut(&queue) {
            queue.is_measured = true;
        }
    }
}

impl Backend for SimBackend {
    fn submit(&mut self, command: Command) {
        let queue = command.queue();
        let Some(hardware) = self.gpu.queues.get(&queue) else {
            // A command for a queue that is gone is answered too.
            if let Some(event) = failed(&command, Fault::Gone) {
                self.report(event);
            }
            return;
        };
        let device = hardware.device;
        match command {
            Command::Preempt { .. } | Command::Resume { .. } => {
                if !self.in_flight.insert(queue) {
                    self.violation =
                        Some(format!("{queue} was given a command while one is in flight"));
                }
                self.call(device, command);
            }
            Command::SetSlice { .. } => self.call(device, command),
            Command::PermitHold { queue } => {
                self.measure_slowdown(queue);
                self.permit_hold(device, queue);
            }
            Command::ForbidHold { .. } => self.forbid_hold(device),
            Command::MeasureSlowdown { .. } => self.measure_slowdown(queue),
            // A hint to firmware that this device does not have.
            Command::SetHardwarePriority { .. } => {}
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        if self.reading_is_lost() {
            return None;
        }
        let now = self.now();
        let view = self.reading(queue)?;
        let late = self.readings_late_by();
        let past = self.readings.entry(queue).or_default();
        past.push_back((now, view));
        if past.len() > READINGS_MAX {
            past.pop_front();
        }
        let Some(by) = late else { return Some(view) };
        past.iter().rev().find(|(at, _)| now.since(*at) >= by).map(|(_, view)| *view)
    }

    fn poll_event(&mut self) -> Option<Event> {
        let measured = self.gpu.measured.drain(..);
        let measured = measured.map(|(queue, time)| Event::SlowdownMeasured { queue, time });
        self.reports.extend(measured);
        self.reports.pop_front()
    }
}

/// Past readings that are kept: enough for the longest delay at the shortest interval.
const READINGS_MAX: usize = 64;

pub(crate) fn task_id(task: usize) -> TaskId {
    TaskId(task as u64)
}

pub(crate) fn device_id(device: usize) -> DeviceId {
    // PANIC: a scenario has at most sixteen devices.
    DeviceId(u32::try_from(device).expect("few devices"))
}

fn load_programs(kernels: &[KernelSpec]) -> Result<Vec<Arc<Program>>, AssembleError> {
    kernels
        .iter()
        .map(|kernel| {
            let text = match &kernel.program {
                ProgramSource::BuiltIn(name) => crate::kernels::built_in(name).unwrap_or_default(),
                ProgramSource::Assembly(text) => text,
            };
            Program::assemble(&kernel.name, text).map(Arc::new)
        })
        .collect()
}

/// Every work-item of every kernel of a task owns one word; one power of two holds them all.
fn region_bytes(scenario: &Scenario, request: &[crate::scenario::RequestStep]) -> u32 {
    let items = request
        .iter()
        .map(|step| &scenario.kernels[step.kernel])
        .map(|kernel| u64::from(kernel.groups) * u64::from(kernel.waves) * LANES as u64)
        .max()
        .unwrap_or(1);
    u32::try_from((items * 4).next_power_of_two()).unwrap_or(1 << 31)
}

/// A ring as large as drivers make them, or as the task needs.
fn ring_capacity(task: &crate::scenario::TaskSpec) -> u32 {
    let launches: u64 = task.request.iter().map(|step| u64::from(step.count)).sum();
    let requests = match task.arrivals {
        Arrivals::BackToBack { depth } => u64::from(depth),
        Arrivals::Periodic { .. } | Arrivals::Poisson { .. } | Arrivals::Trace(_) => 1,
    };
    let needed = launches.saturating_mul(requests).next_power_of_two();
    u32::try_from(needed.clamp(64, 16_384)).unwrap_or(16_384)
}

impl SimBackend {
    /// Every queue, open or closed.
    pub(crate) fn all_queues(
        &self,
    ) -> impl Iterator<Item = (QueueId, &crate::gpu::queue::HardwareQueue)> {
        let open = self.gpu.queues.iter().map(|(&id, queue)| (id, queue));
        open.chain(self.gpu.closed.iter().map(|(id, queue)| (*id, queue)))
    }
}

impl FaultSpec {
    fn is_active(&self, now: Instant) -> bool {
        let start = Instant::ZERO + self.at;
        now >= start && now < start + self.lasts
    }

    /// When the fault ends; the scheduler may need longer to recover.
    pub(crate) fn over_at(&self) -> Instant {
        Instant::ZERO + self.at + self.lasts
    }
}

impl SimBackend {
    fn active(&self) -> impl Iterator<Item = FaultKind> + '_ {
        let now = self.now();
        self.faults.iter().filter(move |fault| fault.is_active(now)).map(|fault| fault.kind)
    }

    pub(crate) fn preempts_fail(&self) -> bool {
        self.active().any(|kind| kind == FaultKind::PreemptTimeout)
    }

    /// During such a fault, every second reading is lost.
    pub(crate) fn reading_is_lost(&mut self) -> bool {
        self.active().any(|kind| kind == FaultKind::ObservationLost) && self.chance.chance(1, 2)
    }

    pub(crate) fn readings_late_by(&self) -> Option<Duration> {
        self.active()
            .filter_map(|kind| {
                let FaultKind::ObservationLate(by) = kind else { return None };
                Some(by)
            })
            .max()
    }

    /// The reading of the scheduler's clock.
    pub(crate) fn clock(&self) -> Instant {
        // The clock starts late enough to be able to jump back.
        let mut shown = self.now() + CLOCK_START;
        for kind in self.active() {
            if let FaultKind::ClockAhead(by) = kind {
                shown += by;
            } else if let FaultKind::ClockBehind(by) = kind {
                shown = Instant::from_nanos(shown.as_nanos().saturating_sub(by.as_nanos()));
            }
        }
        shown
    }

    /// Ends a process and removes its queues from the devices.
    pub(crate) fn end_task(&mut self, task: usize, state: ProcessState) {
        if self.clients[task].state != ProcessState::Running {
            return;
        }
        self.clients[task].state = state;
        let queues: Vec<_> = self.clients[task].queues().collect();
        for queue in queues {
            for device in 0..self.holds.len() {
                if self.holds[device].permits(queue) {
                    self.forbid_hold(device);
                }
            }
            self.gpu.close_queue(queue);
            self.handle_notices();
            self.abandon_calls(queue);
        }
        self.free_memory(task);
        self.gpu.event_queue.after(NOTICE_DELAY, SimEvent::EndNoticed { task });
        self.start_successors(task);
    }

    /// Resets a device, which kills every process that uses it.
    pub(crate) fn reset_device(&mut self, device: u32) {
        for task in 0..self.clients.len() {
            if self.clients[task].spec.devices.contains(&device) {
                self.end_task(task, ProcessState::Killed);
            }
        }
        let capabilities = self.capabilities();
        let device = DeviceId(device);
        self.report(Event::DeviceVanished { device });
        self.report(Event::DeviceAppeared { device, capabilities });
    }
}

/// How long after a process's end the scheduler learns of it.
const NOTICE_DELAY: Duration = Duration::from_micros(50);

/// The first reading of the scheduler's clock.
const CLOCK_START: Duration = Duration::from_millis(3_600_000);
