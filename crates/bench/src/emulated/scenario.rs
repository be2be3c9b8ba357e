//! What the simulator is told for a case in a mode.

use gpreempt_core::config::Config;
use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{
    Arrivals as SimArrivals, FaultKind, FaultSpec, KernelSpec, ProgramSource, RequestStep,
    Scenario, SchedulerSpec, TaskSpec,
};

use crate::plan::Step;
use crate::results::Role;
use crate::suite::{Arrivals, Load, Work};

/// A way of sharing the simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nobody beside.
    Alone,
    /// No preemption at all.
    None,
    /// The published design: kill, submit again.
    Reset,
    /// Slices as the driver sets them.
    Default,
    /// Slices as we set them.
    Slices,
    /// And the device held across gaps.
    Hold,
    /// And requests announced ahead.
    Hints,
    /// Nobody beside, on the device that saves waves.
    CwsrAlone,
    /// Waves saved on request.
    Cwsr,
    /// And requests announced.
    CwsrHints,
}

/// Into so many bundles the compute units of all models can be divided.
const BUNDLES: u32 = 4;
/// How long ahead a request is announced where slices change hands by themselves.
const AHEAD: Duration = Duration::from_micros(350);
/// A kernel's calibrated length contains some of its launch, which the model counts by itself.
const LAUNCH: Duration = Duration::from_micros(4);
/// Nobody's kernel is shorter.
const KERNEL_MIN: Duration = Duration::from_micros(1);
/// The simulator's longest kernel stands for one without end.
const ENDLESS: Duration = Duration::from_millis(4_000);
/// Requests of a load must not meet slices always at the same phase.
const ODD: Duration = Duration::from_nanos(7_919);
/// When the first request is due: everybody else is busy by then.
const FIRST: Duration = Duration::from_millis(20);

impl Mode {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Alone,
        Self::None,
        Self::Reset,
        Self::Default,
        Self::Slices,
        Self::Hold,
        Self::Hints,
        Self::CwsrAlone,
        Self::Cwsr,
        Self::CwsrHints,
    ];

    /// What people type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::None => "none",
            Self::Reset => "reset",
            Self::Default => "default",
            Self::Slices => "slices",
            Self::Hold => "hold",
            Self::Hints => "hints",
            Self::CwsrAlone => "cwsr-alone",
            Self::Cwsr => "cwsr",
            Self::CwsrHints => "cwsr-hints",
        }
    }

    /// A line about it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Alone => "nobody beside (tsg, h200)",
            Self::None => "no preemption: what came first runs first (none, h200)",
            Self::Reset => "running kernels killed and submitted again, as published (reset, h200)",
            Self::Default => "time slices as the driver sets them (tsg, h200)",
            Self::Slices => "ours: time slices by priority (tsg, h200)",
            Self::Hold => "ours: slices, and the device held across gaps (tsg, h200)",
            Self::Hints => "ours: slices and holds, requests announced 350 us ahead (tsg, h200)",
            Self::CwsrAlone => "nobody beside (cwsr, mi300x)",
            Self::Cwsr => "ours: waves saved and restored (cwsr, mi300x, not measured)",
            Self::CwsrHints => "the same, requests announced when they come (cwsr, mi300x)",
        }
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// Whether best-effort work runs beside.
    pub(super) fn is_alone(self) -> bool {
        matches!(self, Self::Alone | Self::CwsrAlone)
    }

    fn machine(self) -> MachineKind {
        match self {
            Self::None => MachineKind::None,
            Self::Reset => MachineKind::Reset,
            Self::Alone | Self::Default | Self::Slices | Self::Hold | Self::Hints => {
                MachineKind::Tsg
            }
            Self::CwsrAlone | Self::Cwsr | Self::CwsrHints => MachineKind::Cwsr,
        }
    }

    fn is_scheduled(self) -> bool {
        match self {
            Self::Alone | Self::None | Self::Default | Self::CwsrAlone => false,
            Self::Reset
            | Self::Slices
            | Self::Hold
            | Self::Hints
            | Self::Cwsr
            | Self::CwsrHints => true,
        }
    }

    fn hint(self) -> Option<Duration> {
        match self {
            Self::Hints => Some(AHEAD),
            // The runtime of the published design sees every launch.
            Self::Reset | Self::CwsrHints => Some(Duration::ZERO),
            Self::Alone
            | Self::None
            | Self::Default
            | Self::Slices
            | Self::Hold
            | Self::CwsrAlone
            | Self::Cwsr => None,
        }
    }
}

/// Whether the simulator can do what a load does.
pub(super) fn check(load: &Load) -> Result<(), String> {
    match &load.work {
        Work::Kernels | Work::Counter | Work::Endless => Ok(()),
        Work::Copies => Err(format!("{} copies, and no model has copy engines", load.name)),
        Work::Torch(_) => Err(format!("{} is a PyTorch program and needs a GPU", load.name)),
    }
}

/// The scenario. Tasks are those loads for which `keep` holds, in order.
///
/// # Errors
/// If a model is missing, or the simulator cannot do what is asked.
pub fn scenario(
    step: &Step<'_>,
    mode: Mode,
    keep: impl Fn(&Load) -> bool,
) -> Result<Scenario, String> {
    let machine = mode.machine();
    let device = if machine == MachineKind::Cwsr { "mi300x" } else { "h200" };
    let model = DeviceModel::built_in(device).ok_or("a built-in model is missing")?;
    let model = bundled(model);
    let duration = step.case.simulated.length(step.is_short);
    let mut kernels = Vec::new();
    let mut tasks = Vec::new();
    let mut faults = Vec::new();
    for (index, load) in step.case.loads.iter().enumerate().filter(|(_, load)| keep(load)) {
        check(load)?;
        kernels.push(kernel(load, &model));
        let task = task(load, kernels.len() - 1, mode, duration, step.seed_of(index));
        if let (Role::Be, Some(lasts)) = (load.role, load.lasts) {
            let kind = FaultKind::TaskDeath(tasks.len());
            faults.push(FaultSpec { at: load.start + lasts, lasts: Duration::ZERO, kind });
        }
        tasks.push(task);
    }
    let config = Config { policy: step.case.policy, ..Config::default() };
    let hold = matches!(mode, Mode::Hold | Mode::Hints);
    Ok(Scenario {
        name: step.case.name.clone(),
        model,
        machine,
        devices: 1,
        seed: step.seed,
        duration,
        scheduler: mode.is_scheduled().then_some(SchedulerSpec { config, hold }),
        kernels,
        tasks,
        faults,
    })
}

/// The same device with its compute units in a few bundles, each as large as many: what is saved
/// and how long that takes is the same, and simulating it is that much faster. Every kernel here
/// uses all units alike, so nobody can tell.
fn bundled(model: DeviceModel) -> DeviceModel {
    let units = model.compute_units / BUNDLES;
    let mut context = model.context;
    context.wave_bytes *= u64::from(units);
    DeviceModel { compute_units: BUNDLES, context, ..model }
}

/// Best-effort kernels fill the device and what it saves; requests fill every unit once.
fn kernel(load: &Load, model: &DeviceModel) -> KernelSpec {
    let units = model.compute_units;
    let groups = match load.role {
        Role::Lc => units,
        Role::Be => units * model.waves_per_unit,
    };
    let work = match (&load.work, load.role) {
        (Work::Endless, _) => ENDLESS,
        (_, Role::Lc) => load.kernel.saturating_sub(LAUNCH).max(KERNEL_MIN),
        (_, Role::Be) => load.kernel.max(KERNEL_MIN),
    };
    let program = ProgramSource::BuiltIn("counter".into());
    KernelSpec { name: load.name.clone(), program, work, groups, waves: 1 }
}

fn task(load: &Load, kernel: usize, mode: Mode, duration: Duration, seed: u64) -> TaskSpec {
    let first = FIRST.saturating_sub(load.start);
    let arrivals = match load.arrivals {
        Arrivals::Periodic { every, phase } => {
            SimArrivals::Periodic { every: every + ODD, phase: phase + first }
        }
        // The same times that a GPU gets, not only the same kind.
        Arrivals::Poisson { .. } | Arrivals::Bursty { .. } => {
            SimArrivals::Trace(load.arrivals.times(duration, seed).unwrap_or_default())
        }
        Arrivals::BackToBack { depth } => SimArrivals::BackToBack { depth: depth.min(4) },
    };
    // A graph's kernels follow each other without anybody waiting for each.
    let sync = !load.graph;
    let request = RequestStep { kernel, count: load.kernels, sync, cpu: load.gap };
    let mut task = TaskSpec::new(&load.name, load.priority, arrivals, vec![request]);
    task.weight = load.weight;
    task.deadline = load.deadline;
    task.queues = load.streams;
    task.start = load.start;
    if load.role == Role::Lc {
        task.hint = mode.hint();
        task.requests_max = load
            .lasts
            .zip(load.arrivals.mean())
            .map(|(lasts, mean)| (lasts.as_nanos() / mean.as_nanos().max(1)).max(1));
    }
    task
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundles_save_as_much_as_the_whole_device() {
        for name in DeviceModel::built_in_names() {
            let whole = DeviceModel::built_in(name).unwrap();
            assert!(whole.compute_units.is_multiple_of(BUNDLES), "{name}");
            let bytes = |model: &DeviceModel| {
                u64::from(model.compute_units * model.waves_per_unit) * model.context.wave_bytes
            };
            assert_eq!(bytes(&bundled(whole.clone())), bytes(&whole), "{name}");
        }
    }
}
