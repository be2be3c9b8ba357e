//! The documents' scenario, for each design.

use gpreempt_core::config::Config;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{
    Arrivals, KernelSpec, ProgramSource, RequestStep, Scenario, SchedulerSpec, TaskSpec,
};

use crate::failure::Failure;

/// A way to let online work pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Design {
    None,
    Reset,
    TsgDefault,
    Tsg,
    TsgHint,
    CwsrDefault,
    Cwsr,
    CwsrHint,
}

impl Design {
    pub(crate) const ALL: [Self; 8] = [
        Self::None,
        Self::Reset,
        Self::TsgDefault,
        Self::Tsg,
        Self::TsgHint,
        Self::CwsrDefault,
        Self::Cwsr,
        Self::CwsrHint,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Reset => "reset",
            Self::TsgDefault => "tsg-default",
            Self::Tsg => "tsg",
            Self::TsgHint => "tsg-hint",
            Self::CwsrDefault => "cwsr-default",
            Self::Cwsr => "cwsr",
            Self::CwsrHint => "cwsr-hint",
        }
    }

    pub(crate) const fn explanation(self) -> &'static str {
        match self {
            Self::None => "no preemption and one line for everybody: what came first runs first",
            Self::Reset => {
                "flag, empty the ring, kill, submit again; its runtime sees every launch"
            }
            Self::TsgDefault => "time slices as the driver sets them (h200), nobody schedules",
            Self::Tsg => "time slices as we set them (h200): the hardware preempts by itself",
            Self::TsgHint => "the same, announced 400 us ahead: the switch is done when it arrives",
            Self::CwsrDefault => "queues share the units as the hardware likes (mi300x)",
            Self::Cwsr => "waves saved and restored, found by reading rings (mi300x, not measured)",
            Self::CwsrHint => "the same, announced when it arrives",
        }
    }

    pub(crate) fn machine(self) -> MachineKind {
        match self {
            Self::None => MachineKind::None,
            Self::Reset => MachineKind::Reset,
            Self::TsgDefault | Self::Tsg | Self::TsgHint => MachineKind::Tsg,
            Self::CwsrDefault | Self::Cwsr | Self::CwsrHint => MachineKind::Cwsr,
        }
    }

    /// Whether somebody schedules.
    pub(crate) fn preempts(self) -> bool {
        !matches!(self, Self::None | Self::TsgDefault | Self::CwsrDefault)
    }

    /// Whether it differs from another design by nothing but a hint.
    pub(crate) fn announces_only(self) -> bool {
        matches!(self, Self::TsgHint | Self::CwsrHint)
    }

    fn hint(self) -> Option<Duration> {
        match self {
            Self::None | Self::TsgDefault | Self::Tsg | Self::CwsrDefault | Self::Cwsr => None,
            Self::Reset | Self::CwsrHint => Some(Duration::ZERO),
            Self::TsgHint => Some(Duration::from_micros(400)),
        }
    }

    fn model(self) -> Result<DeviceModel, Failure> {
        let name = if self.machine() == MachineKind::Tsg { "h200" } else { "mi300x" };
        DeviceModel::built_in(name).ok_or_else(|| Failure::run("a built-in device is missing"))
    }
}

/// Kernels pending when offline work is resumed.
pub(crate) const PENDING: [u32; 4] = [10, 100, 1_000, 10_000];

/// When the request arrives: half an interval after the rings were read, so that detection takes
/// as long as it does on average.
pub(crate) fn arrival(interval_us: u64) -> Duration {
    let intervals = HEAD_START.as_micros().div_ceil(interval_us) + 1;
    Duration::from_micros(intervals * interval_us + interval_us / 2)
}

/// When the online task gets its next request: after everything else.
const LATER: Duration = Duration::from_millis(2_000);

/// Long enough that the hardware does not let others in between two kernels by itself.
const KERNEL: Duration = Duration::from_millis(8);

/// How long offline work has run when the request arrives: it is in its 25th kernel.
const HEAD_START: Duration = Duration::from_millis(196);

/// 100 kernels of 8 ms, and in the 25th a request of 20 ms.
pub(crate) fn hundred_kernels(design: Design, interval_us: u64) -> Result<Scenario, Failure> {
    build(design, interval_us, KERNEL, 100, Duration::from_millis(20))
}

/// The same offline work without the request.
pub(crate) fn undisturbed(design: Design) -> Result<Scenario, Failure> {
    let mut scenario = hundred_kernels(design, 5_000)?;
    scenario.tasks.truncate(1);
    Ok(scenario)
}

/// How often the rings are read where only the resume counts.
pub(crate) const RESUME_INTERVAL_US: u64 = 1_000;
const ONE_MILLISECOND: Duration = Duration::from_millis(1);

/// A long first kernel, preempted, with `pending` short ones behind it.
pub(crate) fn pending_kernels(design: Design, pending: u32) -> Result<Scenario, Failure> {
    let mut scenario =
        build(design, RESUME_INTERVAL_US, Duration::from_micros(1), pending, ONE_MILLISECOND)?;
    scenario.kernels.push(kernel(&scenario.model, "long", KERNEL));
    scenario.tasks[0].start = arrival(RESUME_INTERVAL_US).saturating_sub(ONE_MILLISECOND.times(4));
    let long = RequestStep { kernel: 2, count: 1, sync: false, cpu: Duration::ZERO };
    scenario.tasks[0].request.insert(0, long);
    // One group each: the number of packets is what matters here.
    scenario.kernels[0].groups = 1;
    Ok(scenario)
}

fn build(
    design: Design,
    interval_us: u64,
    offline: Duration,
    count: u32,
    online: Duration,
) -> Result<Scenario, Failure> {
    let model = design.model()?;
    let config = Config { interval: Duration::from_micros(interval_us), ..Config::default() };
    let async_step = RequestStep { kernel: 0, count, sync: false, cpu: Duration::ZERO };
    let sync_step = RequestStep { kernel: 1, count: 1, sync: true, cpu: Duration::ZERO };
    let arrival = arrival(interval_us);
    let mut request = task("online", 12, arrival, sync_step);
    let start = arrival.saturating_sub(HEAD_START);
    request.hint = design.hint();
    // A second request, when all is over: a server does not end with its first answer.
    request.arrivals = Arrivals::Trace(vec![arrival, arrival + LATER]);
    Ok(Scenario {
        name: format!("100 kernels, {}", design.name()),
        machine: design.machine(),
        devices: 1,
        seed: 1,
        duration: LATER + Duration::from_millis(500),
        scheduler: design.preempts().then_some(SchedulerSpec { config, hold: true }),
        kernels: vec![kernel(&model, "offline", offline), kernel(&model, "online", online)],
        tasks: vec![task("offline", 2, start, async_step), request],
        faults: Vec::new(),
        model,
    })
}

fn kernel(model: &DeviceModel, name: &str, work: Duration) -> KernelSpec {
    KernelSpec {
        name: name.into(),
        program: ProgramSource::BuiltIn("mix".into()),
        work,
        groups: model.compute_units * model.waves_per_unit,
        waves: 1,
    }
}

fn task(name: &str, priority: u8, at: Duration, step: RequestStep) -> TaskSpec {
    let priority = Priority::new(priority).unwrap_or(Priority::DEFAULT);
    TaskSpec::new(name, priority, Arrivals::Trace(vec![at]), vec![step])
}
