//! Checkers: what must be true of the simulated hardware, whatever the scheduler assumes.
//!
//! At any time: packets are neither lost nor run twice, requests are not answered too early, and
//! closed queues leave nothing behind. Over time ([`TimedChecker`]): a dead scheduler's changes are
//! reverted, no device idles beside work, and no high queue waits longer than its bound behind a
//! low one. At the end: the memory is that of an undisturbed run.

use gpreempt_core::config::Config;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Class;
use gpreempt_core::time::{Duration, Instant};

use crate::client::{Client, ProcessState};
use crate::control::Worker;
use crate::gpu::queue::{HardwareQueue, Residency};
use crate::memory::Memory;
use crate::model::MachineKind;
use crate::process_memory::{CheckpointState, ProcessMemory};
use crate::reference::{Grid, run_reference};
use crate::scenario::{FaultKind, FaultSpec, KernelSpec, ProgramSource, Scenario};
use crate::sim_backend::SimBackend;

/// What the control path may take beyond the model, for example a call that is under way.
const SLACK: Duration = Duration::from_millis(1);

/// After failed preempts, queues are not retried for up to 200 ms.
const RECOVERY: Duration = Duration::from_millis(250);

/// The keeper acts within 1.7 ms; after that, killed launches have to be submitted again.
const KEEPER_MAX: Duration = Duration::from_millis(5);

/// Checks the state at one time.
///
/// # Errors
/// The first violation.
pub(crate) fn check_state(backend: &SimBackend) -> Result<(), String> {
    for (&id, queue) in &backend.gpu.queues {
        if backend.clients[queue.task].state != ProcessState::Running {
            return Err(format!("{id} is still on the device although its task is gone"));
        }
        // The reset design moves packets; there only the totals at the end count.
        if backend.gpu.machine != MachineKind::Reset {
            check_packets(id, queue)?;
        }
        check_stopped(backend, id, queue)?;
        check_locked(backend, id, queue)?;
    }
    check_memory(backend)?;
    for (id, queue) in &backend.gpu.closed {
        let permitted = backend.holds.iter().any(|watcher| watcher.permits(*id));
        if queue.execution.is_some() || !queue.leaving.0.is_empty() || permitted {
            return Err(format!("{id} is closed, but parts of it are still on the device"));
        }
    }
    check_units(backend)?;
    backend.clients.iter().try_for_each(|client| check_last_request(client, &backend.kernels))
}

/// Every packet is in exactly one place.
fn check_packets(id: QueueId, queue: &HardwareQueue) -> Result<(), String> {
    let view = queue.ring.view(None);
    let launched = queue.launches.len() as u64;
    let backlog = queue.backlog.len() as u64;
    if view.put + backlog != launched {
        return Err(format!(
            "{id}: its client launched {launched}, but its ring has seen {} and {backlog} wait",
            view.put
        ));
    }
    let (completed, in_flight) = (queue.completed, queue.in_flight());
    if completed + in_flight != view.get {
        return Err(format!(
            "{id}: {} were fetched, but {completed} are complete and {in_flight} in flight",
            view.get
        ));
    }
    Ok(())
}

/// A preempt is not reported as done before the waves are saved.
fn check_stopped(backend: &SimBackend, id: QueueId, queue: &HardwareQueue) -> Result<(), String> {
    let reported = queue.stopped && backend.workers[queue.device].is_idle();
    let there = queue.residency == Residency::Saving || queue.resident_waves() > 0;
    if reported && there {
        let residency = queue.residency;
        return Err(format!("the preempt of {id} is over, but its context is {residency:?}"));
    }
    Ok(())
}

/// A task that is locked or out runs nothing.
fn check_locked(backend: &SimBackend, id: QueueId, queue: &HardwareQueue) -> Result<(), String> {
    let is_of = |(_, process): &(_, &ProcessMemory)| process.tasks.contains(&queue.task);
    let Some((_, process)) = backend.gpu.memory_table.processes().find(is_of) else {
        return Ok(());
    };
    if process.state != CheckpointState::Running && (queue.in_flight() > 0 || !queue.locked) {
        let state = process.state;
        return Err(format!("{id} has {} launches on the device: {state:?}", queue.in_flight()));
    }
    Ok(())
}

/// The allocations that count on a device are those of the processes in its memory, and fit.
fn check_memory(backend: &SimBackend) -> Result<(), String> {
    let table = &backend.gpu.memory_table;
    for device in 0..backend.gpu.devices.len() {
        let resident = table.processes().filter(|(_, process)| process.is_on_device());
        let sum: u64 = resident.map(|(_, process)| process.bytes_of(device)).sum();
        let (used, size) = (table.used(device), table.size());
        if used != sum || used > size {
            return Err(format!("device{device}: {used} of {size} bytes are used, not {sum}"));
        }
    }
    Ok(())
}

fn check_units(backend: &SimBackend) -> Result<(), String> {
    for (index, device) in backend.gpu.devices.iter().enumerate() {
        let here = || backend.gpu.queues.values().filter(|queue| queue.device == index);
        let resident: u64 = here().map(HardwareQueue::resident_waves).sum();
        let leaving: u64 =
            here().map(|queue| queue.leaving.0.len() as u64 * u64::from(queue.leaving.1)).sum();
        let used = u64::from(device.units.used());
        if resident + leaving != used {
            return Err(format!(
                "device{index}: {used} wave slots are taken by {resident} waves and {leaving} \
                 that leave"
            ));
        }
    }
    Ok(())
}

/// No request is answered before its kernels can have run: its launches run one after the other,
/// and their waves work for the kernel's time, also if they are preempted.
fn check_last_request(client: &Client, kernels: &[KernelSpec]) -> Result<(), String> {
    let Some(served) = client.served.last() else { return Ok(()) };
    let mut least = Duration::ZERO;
    for step in &client.spec.request {
        let kernel = &kernels[step.kernel];
        if matches!(kernel.program, ProgramSource::BuiltIn(_)) {
            least += kernel.work.times(u64::from(step.count));
        }
    }
    let took = served.ended.since(served.began);
    if took < least {
        let name = &client.spec.name;
        return Err(format!("a request of `{name}` took {took}; its kernels need {least}"));
    }
    Ok(())
}

/// Launches of surviving tasks that never completed.
pub(crate) fn lost_launches(backend: &SimBackend) -> u64 {
    backend
        .all_queues()
        .filter(|(_, queue)| backend.clients[queue.task].state != ProcessState::Killed)
        .map(|(_, queue)| queue.launches.iter().filter(|launch| launch.completed == 0).count())
        .sum::<usize>() as u64
}

/// The first surviving task whose memory differs from an undisturbed run, and where.
pub(crate) fn first_memory_difference(backend: &SimBackend) -> Option<String> {
    let survived = |task: &usize| {
        let state = backend.clients[*task].state;
        matches!(state, ProcessState::Running | ProcessState::Finished)
    };
    (0..backend.clients.len()).filter(survived).find_map(|task| memory_difference(backend, task))
}

fn memory_difference(backend: &SimBackend, task: usize) -> Option<String> {
    let actual = &backend.gpu.memories[task];
    let mut expected = Memory::new(actual.bytes().len());
    for (id, queue) in backend.all_queues().filter(|(_, queue)| queue.task == task) {
        for launch in &queue.launches {
            let packet = &launch.packet;
            let program = &backend.gpu.programs[packet.kernel as usize];
            let grid = Grid { groups: packet.groups, waves: packet.waves };
            if let Err(fault) = run_reference(program, grid, packet.arguments, &mut expected) {
                return Some(format!("{id}: launch {} cannot run: {fault}", packet.number));
            }
        }
    }
    let name = &backend.clients[task].spec.name;
    let at = actual.bytes().iter().zip(expected.bytes()).position(|(a, e)| a != e)?;
    let word = u32::try_from(at & !3).unwrap_or(u32::MAX);
    let (is, should) = (actual.load(word).unwrap_or(0), expected.load(word).unwrap_or(0));
    Some(format!("the memory of `{name}` has {is:#x} at {word:#x} instead of {should:#x}"))
}

/// Checks for states that may last only so long.
#[derive(Debug)]
pub(crate) struct TimedChecker {
    config: Config,
    /// Whether the scenario guarantees a bound for inversions.
    bounds_inversions: bool,
    /// Whether the scenario guarantees a bound for idle devices.
    bounds_idleness: bool,
    /// Whether requests are announced, and devices kept free for them.
    hints: bool,
    /// Intervals in which faults excuse every violation.
    excused: Vec<(Instant, Instant)>,
    /// Since when there has been no scheduler and no call of one under way.
    orphaned_since: Option<Instant>,
    /// Since when each device has idled beside work.
    idle_since: Vec<Option<Instant>>,
    /// Since when each device has been inverted.
    inverted_since: Vec<Option<Instant>>,
}

impl TimedChecker {
    /// A checker, if the scenario has a scheduler. Inversions are bounded under strict order
    /// without gangs, whose members wait for each other, and without aging, which is an inversion
    /// on purpose. Idleness is bounded without gangs, which leave one device idle while they wait
    /// for another.
    pub(crate) fn new(scenario: &Scenario) -> Option<Self> {
        let config = scenario.scheduler.as_ref()?.config;
        let strict = config.policy.policy().orders_by_priority();
        let preempts = matches!(scenario.machine, MachineKind::Tsg | MachineKind::Cwsr);
        let gangs = scenario.tasks.iter().any(|task| task.gang.is_some());
        let devices = scenario.devices as usize;
        Some(Self {
            config,
            bounds_inversions: strict && preempts && !gangs && config.aging.is_none(),
            bounds_idleness: !gangs,
            hints: scenario.tasks.iter().any(|task| task.hint.is_some()),
            excused: scenario.faults.iter().map(|fault| excuse(fault, &config)).collect(),
            orphaned_since: None,
            idle_since: vec![None; devices],
            inverted_since: vec![None; devices],
        })
    }

    /// Checks every device after an event.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check(&mut self, backend: &SimBackend) -> Result<(), String> {
        let now = backend.now();
        let excused = self.excused.iter().any(|&(from, to)| from <= now && now < to);
        self.check_orphans(backend)?;
        for device in 0..self.idle_since.len() {
            self.check_idleness(backend, device, excused)?;
            self.check_inversion(backend, device, excused)?;
        }
        Ok(())
    }

    /// What a dead scheduler stopped, slowed or held is reverted, by the keeper at the latest.
    fn check_orphans(&mut self, backend: &SimBackend) -> Result<(), String> {
        if backend.scheduler_up || !backend.workers.iter().all(Worker::is_idle) {
            self.orphaned_since = None;
            return Ok(());
        }
        let now = backend.now();
        if now.since(*self.orphaned_since.get_or_insert(now)) < KEEPER_MAX {
            return Ok(());
        }
        let slice = backend.gpu.model.tsg.slice;
        let changed = |queue: &HardwareQueue| queue.stopped || queue.held || queue.slice != slice;
        match backend.gpu.queues.iter().find(|(_, queue)| changed(queue)) {
            Some((id, _)) => Err(format!("{id} is still as a dead scheduler left it")),
            None => Ok(()),
        }
    }

    fn check_idleness(
        &mut self,
        backend: &SimBackend,
        device: usize,
        excused: bool,
    ) -> Result<(), String> {
        let here = || backend.gpu.queues.iter().filter(|(_, queue)| queue.device == device);
        let works = |queue: &HardwareQueue| {
            let moves = matches!(queue.residency, Residency::Saving | Residency::Restoring);
            moves || queue.resident_waves() > 0
        };
        let bounded = self.bounds_idleness && !excused;
        let is_due = |queue: &HardwareQueue| {
            (queue.has_work() || !queue.backlog.is_empty()) && !queue.locked
        };
        let waits = here().find(|(_, queue)| is_due(queue));
        let Some((id, _)) = waits.filter(|_| bounded && !here().any(|(_, q)| works(q))) else {
            self.idle_since[device] = None;
            return Ok(());
        };
        let now = backend.now();
        let idle = now.since(*self.idle_since[device].get_or_insert(now));
        let bound = self.idleness_bound(backend, here().count() as u64);
        if idle > bound {
            return Err(format!(
                "device{device} has idled for {idle} while {id} has work; {bound} is the most"
            ));
        }
        Ok(())
    }

    /// To see that a queue is done takes a reading, a quiet time and perhaps the wait for its next
    /// request; then the others are resumed.
    fn idleness_bound(&self, backend: &SimBackend, queues: u64) -> Duration {
        let capabilities = backend.capabilities();
        let quiet = capabilities.quiet.max(self.config.interval);
        let mut bound = self.config.interval.times(2) + quiet + self.config.linger_max;
        bound += capabilities.round_trip().times(queues) + SLACK;
        if self.hints {
            bound += self.config.hint_max;
        }
        if backend.gpu.machine == MachineKind::Tsg {
            let model = &backend.gpu.model;
            bound += model.control.set_slice.times(queues) + model.tsg.hold_max;
        }
        bound
    }

    fn check_inversion(
        &mut self,
        backend: &SimBackend,
        device: usize,
        excused: bool,
    ) -> Result<(), String> {
        let bounded = self.bounds_inversions && !excused;
        let Some((waits, runs)) = find_inversion(backend, device).filter(|_| bounded) else {
            self.inverted_since[device] = None;
            return Ok(());
        };
        let now = backend.now();
        let lasted = now.since(*self.inverted_since[device].get_or_insert(now));
        let bound = self.inversion_bound(backend, device);
        if lasted > bound {
            return Err(format!(
                "{waits} has waited {lasted} while the less important {runs} runs on \
                 device{device}; {bound} is the most"
            ));
        }
        Ok(())
    }

    /// One interval to notice, then the cost of preempting all other queues.
    fn inversion_bound(&self, backend: &SimBackend, device: usize) -> Duration {
        let capabilities = backend.capabilities();
        let queues = backend.gpu.queues.values();
        let others = queues.filter(|queue| queue.device == device).count() as u64;
        let mut bound = self.config.interval + capabilities.round_trip().times(others) + SLACK;
        if backend.gpu.machine == MachineKind::Tsg {
            // Until the slices are set, every other queue may use up a default one.
            let each = backend.gpu.model.control.set_slice + backend.gpu.model.tsg.slice;
            bound += each.times(others);
        }
        bound
    }
}

/// From the start of a fault until everything must be in order again.
fn excuse(fault: &FaultSpec, config: &Config) -> (Instant, Instant) {
    let at = Instant::ZERO + fault.at;
    let recovery = config.interval.times(2);
    let over = match fault.kind {
        FaultKind::PreemptTimeout => fault.over_at() + config.preempt_timeout + RECOVERY,
        FaultKind::TaskDeath(_) | FaultKind::DeviceReset(_) => at + recovery,
        FaultKind::ObservationLost
        | FaultKind::ObservationLate(_)
        | FaultKind::SchedulerCrash
        | FaultKind::ClockAhead(_)
        | FaultKind::ClockBehind(_) => fault.over_at() + recovery,
    };
    (at, over)
}

/// A queue that waits, and a lower one that runs.
fn find_inversion(backend: &SimBackend, device: usize) -> Option<(QueueId, QueueId)> {
    // The scheduler has no say over a task that is being moved.
    let is_scheduled = |queue: &HardwareQueue| !backend.evictions.is_away(queue.task);
    let here = || {
        let queues = backend.gpu.queues.iter();
        queues.filter(|(_, queue)| queue.device == device && is_scheduled(queue))
    };
    let tsg = backend.gpu.machine == MachineKind::Tsg;
    let waits = |queue: &HardwareQueue| {
        queue.has_work() && queue.resident_waves() == 0 && queue.residency != Residency::Restoring
    };
    let (&high, waiting) =
        here().filter(|(_, queue)| waits(queue)).max_by_key(|(_, queue)| queue.priority)?;
    // Where the ring does not show whether work waits or is done, only the hardware's own
    // preference of the high class is guaranteed.
    if tsg && waiting.priority.class() != Class::High {
        return None;
    }
    let lower = |queue: &HardwareQueue| {
        let beneath = if tsg {
            queue.priority.class() == Class::Low
        } else {
            queue.priority < waiting.priority
        };
        beneath && queue.resident_waves() > 0
    };
    let (&low, _) = here().find(|(_, queue)| lower(queue))?;
    Some((high, low))
}
