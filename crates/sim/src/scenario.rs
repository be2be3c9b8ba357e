//! Scenarios: the devices, kernels, tasks, scheduler settings and faults of one simulation.

mod checks;
mod read;

use gpreempt_core::config::Config;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use crate::model::{DeviceModel, MachineKind};

pub use read::read_scenario;

/// One whole simulation. All times count from its beginning.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    /// The model of every device.
    pub model: DeviceModel,
    pub machine: MachineKind,
    pub devices: u32,
    /// The seed of every random choice.
    pub seed: u64,
    /// How long work arrives. What is submitted by then is finished.
    pub duration: Duration,
    /// Without a scheduler the device runs work as the hardware does.
    pub scheduler: Option<SchedulerSpec>,
    pub kernels: Vec<KernelSpec>,
    pub tasks: Vec<TaskSpec>,
    pub faults: Vec<FaultSpec>,
}

/// The scheduler and what its backend may use.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerSpec {
    pub config: Config,
    /// Whether the backend may hold the device between the kernels of a high-priority queue.
    pub hold: bool,
    /// How long evictable tasks that do not fit together stay in memory in turn; without it, none
    /// is evicted for another one.
    pub swap_turn: Option<Duration>,
}

/// A kernel: a program and how much of it.
#[derive(Clone, Debug)]
pub struct KernelSpec {
    pub name: String,
    /// What its waves execute.
    pub program: ProgramSource,
    /// Busy time handed to the program, which decides where in its life it is spent.
    pub work: Duration,
    pub groups: u32,
    /// Waves in each work-group.
    pub waves: u32,
}

/// Where a program comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramSource {
    /// One of the built-in ones, by name.
    BuiltIn(String),
    /// Assembly text in the scenario.
    Assembly(String),
}

/// One process.
#[derive(Clone, Debug)]
pub struct TaskSpec {
    pub name: String,
    /// Its priority at the start.
    pub priority: Priority,
    /// Its weight under the fair policy: 1 to 1000.
    pub weight: u32,
    /// How long after its arrival each request should be done.
    pub deadline: Option<Duration>,
    /// How much slower it may become.
    pub latency_budget: LatencyBudget,
    /// The gang it belongs to; tasks of one gang name the same.
    pub gang: Option<String>,
    /// The devices it uses; every launch goes to all of them.
    pub devices: Vec<u32>,
    /// Bytes that it allocates on each of its devices before it begins; without enough it ends.
    pub memory: u64,
    /// Whether its memory may be moved to the host.
    pub is_evictable: bool,
    /// Queues on each device; requests take them in turn.
    pub queues: u32,
    /// When it appears.
    pub start: Duration,
    /// The task (by index) after whose end it appears, `start` later.
    pub after: Option<usize>,
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// Ends after that many requests.
    pub requests_max: Option<u64>,
    /// What one request does.
    pub request: Vec<RequestStep>,
    /// How long before each request the task announces it.
    pub hint: Option<Duration>,
    /// Priorities it is given later, in order of time.
    pub changes: Vec<PriorityChange>,
}

impl TaskSpec {
    /// A task on the first device with one queue, from the beginning, without anything special.
    pub fn new(
        name: &str,
        priority: Priority,
        arrivals: Arrivals,
        request: Vec<RequestStep>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            priority,
            weight: 1,
            deadline: None,
            latency_budget: LatencyBudget::ZERO,
            gang: None,
            devices: vec![0],
            memory: 0,
            is_evictable: false,
            queues: 1,
            start: Duration::ZERO,
            after: None,
            arrivals,
            requests_max: None,
            request,
            hint: None,
            changes: Vec::new(),
        }
    }
}

/// When requests arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Always the same time apart, the first at `phase`.
    Periodic {
        every: Duration,
        /// From the task's start to the first.
        phase: Duration,
    },
    /// Memoryless, `mean` apart on average.
    Poisson { mean: Duration },
    /// At these times after the task's start.
    Trace(Vec<Duration>),
    /// As soon as there is room: `depth` requests are always under way.
    BackToBack { depth: u32 },
}

/// A part of a request: the same kernel some times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStep {
    /// The index of the kernel.
    pub kernel: usize,
    pub count: u32,
    /// Whether the task waits for each launch before the next.
    pub sync: bool,
    /// CPU time of the task after each launch.
    pub cpu: Duration,
}

/// A new priority at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityChange {
    pub at: Duration,
    pub priority: Priority,
}

/// Something that goes wrong, from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSpec {
    pub at: Duration,
    /// For how long (kinds that happen at one instant ignore it).
    pub lasts: Duration,
    pub kind: FaultKind,
}

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Preempts do not finish: after the time-out they are reported as failed.
    PreemptTimeout,
    /// Readings of the rings come back empty.
    ObservationLost,
    /// Readings of the rings show what was true that long ago.
    ObservationLate(Duration),
    TaskDeath(usize),
    /// The scheduler dies and a new one starts `lasts` later.
    SchedulerCrash,
    /// A device loses everything; processes that use it die.
    DeviceReset(u32),
    /// The clock the scheduler reads leaps ahead by that much while the fault lasts, then back.
    ClockAhead(Duration),
    /// The same, backwards.
    ClockBehind(Duration),
}

#[cfg(test)]
mod tests;
