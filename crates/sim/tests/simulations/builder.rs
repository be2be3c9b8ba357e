//! Builders of scenarios.

use gpreempt_core::config::Config;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::{
    Arrivals, KernelSpec, ProgramSource, RequestStep, Scenario, SchedulerSpec, TaskSpec,
};
use gpreempt_sim::simulation::{Options, run};

pub(crate) const BACK_TO_BACK: Arrivals = Arrivals::BackToBack { depth: 2 };

pub(crate) fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

/// A built-in kernel whose work-groups have one wave.
pub(crate) fn kernel(name: &str, program: &str, work: Duration, groups: u32) -> KernelSpec {
    let program = ProgramSource::BuiltIn(program.into());
    KernelSpec { name: name.into(), program, work, groups, waves: 1 }
}

/// One launch of a kernel, which is waited for.
pub(crate) fn launch(kernel: usize) -> RequestStep {
    RequestStep { kernel, count: 1, sync: true, cpu: Duration::ZERO }
}

pub(crate) fn task(name: &str, priority: u8, arrivals: Arrivals, step: RequestStep) -> TaskSpec {
    TaskSpec::new(name, Priority::new(priority).unwrap(), arrivals, vec![step])
}

/// Two tasks on one device of that model, which fills: low (2) back to back with long kernels, and
/// high (12) with short ones.
pub(crate) fn low_and_high(
    model: DeviceModel,
    interval: Duration,
    [long, short]: [Duration; 2],
    arrivals: Arrivals,
) -> Scenario {
    let groups = model.compute_units * model.waves_per_unit;
    let config = Config { interval, ..Config::default() };
    Scenario {
        name: "low and high".into(),
        machine: model.machine,
        devices: 1,
        seed: 1,
        duration: us(1_000_000),
        scheduler: Some(SchedulerSpec { config, hold: true, swap_turn: None }),
        kernels: vec![kernel("long", "mix", long, groups), kernel("short", "mix", short, groups)],
        tasks: vec![task("low", 2, BACK_TO_BACK, launch(0)), task("high", 12, arrivals, launch(1))],
        faults: vec![],
        model,
    }
}

/// Index of the low task of [`low_and_high`].
pub(crate) const LOW: usize = 0;
/// Index of the high task.
pub(crate) const HIGH: usize = 1;

/// Runs a scenario with all checkers.
pub(crate) fn checked(scenario: &Scenario) -> Outcome {
    run(scenario, Options { check: true, ..Options::default() }).unwrap()
}
