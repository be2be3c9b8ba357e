//! Random scenarios from a seed: small devices, many kinds of tasks, many faults.
//!
//! What a seed means is part of a bug report, so draw in a fixed order and add new choices at the
//! end of a function only.

use gpreempt_core::config::{Aging, Config, PolicyKind};
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use crate::model::{DeviceModel, MachineKind};
use crate::prng::Prng;
use crate::scenario::{
    Arrivals, FaultKind, FaultSpec, KernelSpec, PriorityChange, ProgramSource, RequestStep,
    Scenario, SchedulerSpec, TaskSpec,
};

pub fn scenario(seed: u64) -> Scenario {
    let mut prng = Prng::new(seed);
    let machine = *prng.pick(&[
        MachineKind::Cwsr,
        MachineKind::Cwsr,
        MachineKind::Cwsr,
        MachineKind::Tsg,
        MachineKind::Tsg,
        MachineKind::Reset,
        MachineKind::None,
    ]);
    let model = model(&mut prng, machine);
    let devices = if prng.chance(1, 4) { 2 } else { 1 };
    let duration = Duration::from_millis(prng.between(20, 80));
    let kernels = kernels(&mut prng, &model);
    let task_count = prng.between(1, 7);
    let gangs = devices > 1 && prng.chance(1, 2);
    let tasks: Vec<TaskSpec> = (0..task_count)
        .map(|index| task(&mut prng, index, devices, duration, &kernels, gangs))
        .collect();
    let mut scheduler = scheduler(&mut prng);
    if machine == MachineKind::Reset {
        // Killed kernels begin again, so with turns shorter than a kernel they would never finish.
        // That is a property of the reset design, not a fault of the scheduler.
        scheduler.config.policy = PolicyKind::Strict;
        scheduler.config.aging = None;
    }
    let faults = if prng.chance(2, 3) {
        (0..prng.between(1, 4)).map(|_| fault(&mut prng, duration, task_count, devices)).collect()
    } else {
        Vec::new()
    };
    Scenario {
        name: format!("seed {seed}"),
        model,
        machine,
        devices,
        seed,
        duration,
        scheduler: Some(scheduler),
        kernels,
        tasks,
        faults,
    }
}

/// What the seed of [`scenario`] means, with memory of its own draw: more than fits together, some
/// of it evictable, sometimes in turns.
pub fn scenario_with_memory(seed: u64) -> Scenario {
    let mut scenario = scenario(seed);
    let mut prng = Prng::new(seed).branch(MEMORY_DRAW);
    if !matches!(scenario.machine, MachineKind::Tsg | MachineKind::Cwsr) {
        scenario.machine = MachineKind::Tsg;
    }
    let memory = &mut scenario.model.memory;
    memory.bytes = 1_000;
    memory.lock = Duration::from_micros(prng.between(0, 100));
    memory.checkpoint = Duration::from_micros(prng.between(0, 300));
    memory.checkpoint_bytes_per_us = prng.between(1, 50);
    memory.restore = Duration::from_micros(prng.between(0, 200));
    memory.restore_bytes_per_us = prng.between(1, 50);
    memory.unlock = Duration::from_micros(prng.between(0, 100));
    for task in &mut scenario.tasks {
        task.memory = if prng.chance(4, 5) { prng.between(100, 900) } else { 0 };
        let may_be = task.memory > 0 && task.devices.len() == 1 && task.gang.is_none();
        task.is_evictable = may_be && prng.chance(3, 4);
    }
    if let Some(scheduler) = &mut scenario.scheduler {
        let turn = Duration::from_micros(prng.between(500, 5_000));
        scheduler.swap_turn = prng.chance(1, 2).then_some(turn);
    }
    scenario.name = format!("seed {seed} with memory");
    scenario
}

/// Distinguishes the draw from those of the simulation itself.
const MEMORY_DRAW: u64 = 1 << 32;

fn model(prng: &mut Prng, machine: MachineKind) -> DeviceModel {
    let name = if machine == MachineKind::Tsg { "h200" } else { "mi300x" };
    // PANIC: both models are built in, and a test reads them.
    let mut model = DeviceModel::built_in(name).expect("a built-in model");
    model.machine = machine;
    model.compute_units = u32_between(prng, 1, 6);
    model.waves_per_unit = u32_between(prng, 2, 4);
    model.fetch_depth = u32_between(prng, 1, 3);
    model.cwsr.queue_slots = u32_between(prng, 1, 6);
    model.cwsr.quantum = Duration::from_micros(prng.between(500, 5_000));
    model.control.preempt = Duration::from_micros(prng.between(1, 800));
    model.control.resume = Duration::from_micros(prng.between(1, 500));
    // So that a context of a few waves costs as much as that of a whole device.
    model.context.wave_bytes *= prng.between(1, 30);
    model
}

fn scheduler(prng: &mut Prng) -> SchedulerSpec {
    let policies = [PolicyKind::Strict, PolicyKind::Strict];
    let policy =
        if prng.chance(1, 2) { *prng.pick(&policies) } else { *prng.pick(&PolicyKind::ALL) };
    let aging = prng.chance(1, 4).then(|| Aging {
        after: Duration::from_millis(prng.between(5, 30)),
        grant: Duration::from_micros(prng.between(500, 3_000)),
    });
    let config = Config {
        policy,
        interval: Duration::from_millis(prng.between(1, 10)),
        slice: Duration::from_micros(prng.between(500, 10_000)),
        aging,
        preempt_timeout: Duration::from_millis(prng.between(2, 20)),
        hint_max: Duration::from_millis(prng.between(1, 50)),
        linger_max: Duration::from_micros(prng.between(0, 2_000)),
        min_share: Config::default().min_share,
    };
    SchedulerSpec { config, hold: prng.chance(3, 4), swap_turn: None }
}

fn kernels(prng: &mut Prng, model: &DeviceModel) -> Vec<KernelSpec> {
    let names: Vec<&'static str> = crate::kernels::built_in_names().collect();
    (0..prng.between(1, 4))
        .map(|index| KernelSpec {
            name: format!("kernel{index}"),
            program: ProgramSource::BuiltIn((*prng.pick(&names)).to_owned()),
            // Mostly short, sometimes much longer than everything else.
            work: Duration::from_micros(if prng.chance(1, 4) {
                prng.between(500, 6_000)
            } else {
                prng.between(1, 300)
            }),
            groups: u32_between(prng, 1, 12),
            waves: u32_between(prng, 1, u64::from(model.waves_per_unit.min(3))),
        })
        .collect()
}

fn task(
    prng: &mut Prng,
    index: u64,
    devices: u32,
    duration: Duration,
    kernels: &[KernelSpec],
    gangs: bool,
) -> TaskSpec {
    let arrivals = arrivals(prng, duration);
    let request = (0..prng.between(1, 3))
        .map(|_| RequestStep {
            kernel: index_below(prng, kernels.len()),
            count: u32_between(prng, 1, 5),
            sync: prng.chance(1, 2),
            cpu: Duration::from_micros(prng.between(0, 60)),
        })
        .collect();
    let all: Vec<u32> = (0..devices).collect();
    let one = vec![u32_between(prng, 0, u64::from(devices) - 1)];
    let wide = devices > 1 && prng.chance(1, 2);
    let change = |prng: &mut Prng, part: u64| PriorityChange {
        at: Duration::from_nanos(duration.as_nanos() * part / 3),
        priority: priority(prng),
    };
    TaskSpec {
        name: format!("task{index}"),
        priority: priority(prng),
        weight: u32_between(prng, 1, 8),
        deadline: prng.chance(1, 2).then(|| Duration::from_micros(prng.between(200, 20_000))),
        latency_budget: LatencyBudget::ZERO,
        gang: (gangs && prng.chance(1, 2)).then(|| format!("gang{}", prng.below(2))),
        devices: if wide { all } else { one },
        memory: 0,
        is_evictable: false,
        queues: u32_between(prng, 1, 3),
        start: Duration::from_micros(prng.below(duration.as_micros() / 2)),
        after: None,
        arrivals,
        requests_max: prng.chance(1, 3).then(|| prng.between(1, 40)),
        request,
        hint: prng.chance(1, 4).then(|| Duration::from_micros(prng.between(0, 1_000))),
        changes: if prng.chance(1, 4) { vec![change(prng, 1), change(prng, 2)] } else { vec![] },
    }
}

fn arrivals(prng: &mut Prng, duration: Duration) -> Arrivals {
    let mean = Duration::from_micros(prng.between(2_000, 30_000));
    match prng.below(5) {
        0 => Arrivals::Poisson { mean },
        1 => {
            let latest = duration.as_micros();
            let mut times: Vec<Duration> = (0..prng.between(1, 8))
                .map(|_| Duration::from_micros(prng.below(latest)))
                .collect();
            times.sort_unstable();
            Arrivals::Trace(times)
        }
        2 | 3 => Arrivals::BackToBack { depth: u32_between(prng, 1, 3) },
        _ => Arrivals::Periodic { every: mean, phase: Duration::from_micros(prng.below(5_000)) },
    }
}

fn fault(prng: &mut Prng, duration: Duration, tasks: u64, devices: u32) -> FaultSpec {
    let micros = duration.as_micros();
    let at = Duration::from_micros(prng.below(micros));
    let lasts = Duration::from_micros(prng.between(100, micros / 2));
    let by = Duration::from_micros(prng.between(100, 20_000));
    let leap = Duration::from_millis(prng.between(1, 3_600_000));
    let kind = match prng.below(11) {
        0 | 1 => FaultKind::PreemptTimeout,
        2 => FaultKind::ObservationLost,
        3 => FaultKind::ObservationLate(by),
        4 | 5 => FaultKind::TaskDeath(index_below(prng, usize::try_from(tasks).unwrap_or(1))),
        6 | 7 => FaultKind::SchedulerCrash,
        8 => FaultKind::DeviceReset(u32_between(prng, 0, u64::from(devices) - 1)),
        9 => FaultKind::ClockAhead(leap),
        _ => FaultKind::ClockBehind(leap.min(CLOCK_BACK_MAX)),
    };
    FaultSpec { at, lasts, kind }
}

/// The scheduler's clock starts at one hour and cannot jump back further.
const CLOCK_BACK_MAX: Duration = Duration::from_millis(3_600_000);

fn priority(prng: &mut Prng) -> Priority {
    let level = u8::try_from(prng.below(u64::from(Priority::LEVELS))).unwrap_or(0);
    // PANIC: the level is below the number of levels.
    Priority::new(level).expect("a level that exists")
}

fn u32_between(prng: &mut Prng, low: u64, high: u64) -> u32 {
    u32::try_from(prng.between(low, high)).unwrap_or(u32::MAX)
}

fn index_below(prng: &mut Prng, length: usize) -> usize {
    usize::try_from(prng.below(length as u64)).unwrap_or(0)
}
