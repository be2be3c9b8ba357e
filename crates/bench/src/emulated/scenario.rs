//! The scenario that the simulator runs for one case in one mode.

use gpreempt_core::config::Config;
use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{
    Arrivals as SimArrivals, FaultKind, FaultSpec, KernelSpec, ProgramSource, RequestStep,
    Scenario, SchedulerSpec, TaskSpec,
};

use super::{Emulated, Mode};
use crate::plan::Step;
use crate::results::Role;
use crate::suite::{Arrivals, Load, Work};

/// The compute units of a model are simulated as this many bundles.
const BUNDLES: u32 = 4;
/// A kernel's calibrated length contains a part of its launch, which the model adds separately.
const LAUNCH: Duration = Duration::from_micros(4);
const KERNEL_MIN: Duration = Duration::from_micros(1);
/// The longest kernel of the simulator stands for an endless one.
const ENDLESS: Duration = Duration::from_millis(4_000);
/// Added to a period, so that requests do not always arrive at the same phase of a time slice.
const ODD: Duration = Duration::from_nanos(7_919);
/// The first request is due when best-effort work keeps the device busy.
pub(crate) const FIRST: Duration = Duration::from_millis(20);

/// Whether the simulator can simulate a load.
pub(super) fn check(load: &Load) -> Result<(), String> {
    match &load.work {
        Work::Kernels | Work::Counter | Work::Endless => Ok(()),
        Work::Copies => Err(format!("{} copies, and no model has copy engines", load.name)),
        Work::Torch(_) => Err(format!("{} is a PyTorch program and needs a GPU", load.name)),
    }
}

impl Emulated {
    /// The scenario of a step; its tasks are the loads that `keep` selects, in order.
    pub(super) fn scenario(
        &self,
        step: &Step<'_>,
        mode: &Mode,
        keep: impl Fn(&Load) -> bool,
    ) -> Result<Scenario, String> {
        let built_in = || DeviceModel::built_in(mode.device);
        let model = self.device.clone().or_else(built_in).ok_or("a built-in model is missing")?;
        let machine = match (mode.machine, &self.device) {
            (MachineKind::Tsg | MachineKind::Cwsr, Some(device)) => device.machine,
            (machine, _) => machine,
        };
        let model = bundled(model);
        let duration = step.case.simulated.length(step.is_short);
        let mut kernels = Vec::new();
        let mut tasks = Vec::new();
        let mut faults = Vec::new();
        for (index, load) in step.case.loads.iter().enumerate().filter(|(_, load)| keep(load)) {
            check(load)?;
            kernels.push(kernel(load, &model));
            let mut task = task(load, kernels.len() - 1, mode, duration, step.seed_of(index));
            if self.has_one_request {
                limit_to_one_request(&mut task, load);
            }
            if let (Role::Be, Some(lasts)) = (load.role, load.lasts) {
                let kind = FaultKind::TaskDeath(tasks.len());
                faults.push(FaultSpec { at: load.start + lasts, lasts: Duration::ZERO, kind });
            }
            tasks.push(task);
        }
        let config =
            Config { policy: step.case.policy, interval: self.interval, ..Config::default() };
        Ok(Scenario {
            name: step.case.name.clone(),
            model,
            machine,
            devices: 1,
            seed: step.seed,
            duration,
            scheduler: mode.is_scheduled.then_some(SchedulerSpec {
                config,
                hold: mode.holds,
                swap_turn: mode.swap_turn,
            }),
            kernels,
            tasks,
            faults,
        })
    }
}

/// See [`Emulated::has_one_request`].
fn limit_to_one_request(task: &mut TaskSpec, load: &Load) {
    match (load.role, &task.arrivals) {
        (Role::Lc, SimArrivals::Periodic { every, phase }) => {
            task.arrivals = SimArrivals::Trace(vec![*phase, *phase + *every]);
        }
        _ => task.requests_max = Some(1),
    }
}

/// The same device with its compute units in a few bundles: the saved state and the time to save it
/// stay the same, and simulating it is faster. Every kernel here uses all units alike, so the
/// results do not depend on it.
fn bundled(model: DeviceModel) -> DeviceModel {
    if !model.compute_units.is_multiple_of(BUNDLES) {
        return model;
    }
    let units = model.compute_units / BUNDLES;
    let mut context = model.context;
    context.wave_bytes *= u64::from(units);
    DeviceModel { compute_units: BUNDLES, context, ..model }
}

/// Best-effort kernels fill the device and the state that it saves; requests fill every unit once.
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

fn task(load: &Load, kernel: usize, mode: &Mode, duration: Duration, seed: u64) -> TaskSpec {
    let first = FIRST.saturating_sub(load.start);
    let arrivals = match load.arrivals {
        Arrivals::Periodic { every, phase } => {
            SimArrivals::Periodic { every: every + ODD, phase: phase + first }
        }
        // The same times that a GPU gets, not only the same distribution.
        Arrivals::Poisson { .. } | Arrivals::Bursty { .. } => {
            SimArrivals::Trace(load.arrivals.times(duration, seed).unwrap_or_default())
        }
        Arrivals::BackToBack { depth } => SimArrivals::BackToBack { depth: depth.min(4) },
    };
    // The kernels of a graph follow each other without a synchronisation after each.
    let sync = !load.graph;
    let request = RequestStep { kernel, count: load.kernels, sync, cpu: load.gap };
    let mut task = TaskSpec::new(&load.name, load.priority, arrivals, vec![request]);
    task.weight = load.weight;
    task.deadline = load.deadline;
    task.queues = load.streams;
    task.start = load.start;
    task.memory = load.memory_mib << 20;
    // Without a scheduler nothing is evicted.
    task.is_evictable = load.is_evictable && mode.is_scheduled;
    if load.role == Role::Lc {
        task.hint = mode.hint;
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
