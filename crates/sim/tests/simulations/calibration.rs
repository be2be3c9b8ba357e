//! The simulated H200 against the measured one: p50 of every row within 15 %.
//!
//! Measured on an H200 machine (driver 580.159.04): LC is a latency-critical process, BE runs
//! kernels of 7.9 ms back to back. Times in microseconds, BE in kernels a second (126 alone).

use gpreempt_core::config::Config;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::outcome::{Outcome, percentile};
use gpreempt_sim::scenario::{Arrivals, RequestStep, Scenario, SchedulerSpec, TaskSpec};
use gpreempt_sim::simulation::{Options, run};

use crate::builder::{kernel, launch, task, us};

/// How the two processes are scheduled.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Alone,
    Defaults,
    Slice,
    Hold,
    Hint,
}

struct Row {
    load: Load,
    mode: Mode,
    lc_p50_us: u64,
    be_per_s: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// 20 kernels of about 22 us from launch to completion, 30 us of CPU after each, every 10 ms.
    Twenty,
    /// One kernel of 55 us every 5 ms.
    Single,
}

const MEASURED: [Row; 8] = [
    Row { load: Load::Twenty, mode: Mode::Alone, lc_p50_us: 1024, be_per_s: None },
    Row { load: Load::Twenty, mode: Mode::Defaults, lc_p50_us: 48_560, be_per_s: Some(104) },
    Row { load: Load::Twenty, mode: Mode::Slice, lc_p50_us: 7072, be_per_s: Some(38) },
    Row { load: Load::Twenty, mode: Mode::Hold, lc_p50_us: 1223, be_per_s: Some(104) },
    Row { load: Load::Twenty, mode: Mode::Hint, lc_p50_us: 1047, be_per_s: Some(105) },
    Row { load: Load::Single, mode: Mode::Alone, lc_p50_us: 68, be_per_s: None },
    Row { load: Load::Single, mode: Mode::Defaults, lc_p50_us: 1300, be_per_s: Some(115) },
    Row { load: Load::Single, mode: Mode::Slice, lc_p50_us: 252, be_per_s: Some(117) },
];

fn best_effort(name: &str) -> TaskSpec {
    task(name, 2, Arrivals::BackToBack { depth: 4 }, launch(0))
}

fn latency_critical(load: Load) -> TaskSpec {
    let (every, count, cpu) = match load {
        Load::Twenty => (10_000, 20, 30),
        Load::Single => (5_000, 1, 0),
    };
    let every = Duration::from_micros(every);
    // Not a multiple of anything else, so that requests meet slices at all phases.
    let every = Duration::from_nanos(every.as_nanos() + 7_919);
    let step = RequestStep { count, cpu: us(cpu), ..launch(1) };
    let arrivals = Arrivals::Periodic { every, phase: Duration::from_millis(20) };
    task("lc", 12, arrivals, step)
}

fn scenario(load: Load, mode: Mode) -> Scenario {
    let mut lc = latency_critical(load);
    if mode == Mode::Hint {
        lc.hint = Some(Duration::from_micros(400));
    }
    let tasks = if mode == Mode::Alone { vec![lc] } else { vec![lc, best_effort("be")] };
    let scheduled = matches!(mode, Mode::Slice | Mode::Hold | Mode::Hint);
    let hold = matches!(mode, Mode::Hold | Mode::Hint);
    let lc_us = if load == Load::Twenty { 14 } else { 55 };
    Scenario {
        name: format!("{load:?} {mode:?}"),
        model: DeviceModel::built_in("h200").unwrap(),
        machine: MachineKind::Tsg,
        devices: 1,
        seed: 1,
        duration: Duration::from_millis(1_000),
        scheduler: scheduled.then(|| SchedulerSpec {
            config: Config::default(),
            hold,
            swap_turn: None,
        }),
        kernels: vec![
            kernel("be", "counter", us(7_930), 264),
            kernel("lc", "counter", us(lc_us), 132),
        ],
        tasks,
        faults: vec![],
    }
}

/// The measured load began no request before the last was done, timed from that beginning, and
/// ended before the other load did.
fn p50_us(outcome: &Outcome) -> u64 {
    let end = Instant::ZERO + outcome.duration;
    let in_time = outcome.tasks[0].served.iter().filter(|served| served.ended < end);
    let mut times: Vec<Duration> = in_time.map(|s| s.ended.since(s.began)).collect();
    times.sort_unstable();
    percentile(&times, 500).unwrap().as_micros()
}

fn within(percent: u64, actual: u64, expected: u64) -> bool {
    actual.abs_diff(expected) * 100 <= expected * percent
}

#[test]
fn every_measured_row_is_reproduced() {
    let mut off = Vec::new();
    for row in MEASURED {
        let outcome = run(&scenario(row.load, row.mode), Options::default()).unwrap();
        let p50 = p50_us(&outcome);
        println!("{:?} {:?}: p50 {p50} us, measured {}", row.load, row.mode, row.lc_p50_us);
        if !within(15, p50, row.lc_p50_us) {
            off.push(format!("{:?} {:?}: {p50} us", row.load, row.mode));
        }
        if let Some(measured) = row.be_per_s {
            let rate = outcome.tasks[1].launches_in_time;
            println!("    BE {rate} kernels/s, measured {measured}");
            if !within(15, rate, measured) {
                off.push(format!("{:?} {:?}: BE {rate}/s", row.load, row.mode));
            }
        }
        assert!(outcome.exact);
    }
    assert!(off.is_empty(), "{off:?}");
}

/// Not measured on a GPU.
#[test]
fn periodic_single_kernels_wait_for_no_switch() {
    let p50_and_rate = |mode, every_ms: Option<u64>| {
        let mut scenario = scenario(Load::Single, mode);
        scenario.duration = Duration::from_millis(3_000);
        if let Some(ms) = every_ms {
            let every = Duration::from_millis(ms);
            scenario.tasks[0].arrivals = Arrivals::Poisson { mean: every };
        }
        let outcome = run(&scenario, Options::default()).unwrap();
        let rate = outcome.tasks.get(1).map_or(0, |task| task.launches_in_time);
        (p50_us(&outcome), rate)
    };
    let (alone, _) = p50_and_rate(Mode::Alone, None);
    let (slices, rate_beside_slices) = p50_and_rate(Mode::Slice, None);
    let (held, rate) = p50_and_rate(Mode::Hold, None);
    println!("alone {alone} us, slices {slices} us, held {held} us; {rate_beside_slices}, {rate}");
    assert!(slices > alone * 3 && held * 10 <= alone * 14, "{alone}, {slices}, {held} us");
    assert!(rate * 100 >= rate_beside_slices * 90, "{rate_beside_slices}, {rate} kernels");
    // At random times nothing is predicted, and holds cost the others little.
    let (slices, rate_beside_slices) = p50_and_rate(Mode::Slice, Some(5));
    let (held, rate) = p50_and_rate(Mode::Hold, Some(5));
    println!("random: slices {slices} us, held {held} us; {rate_beside_slices}, {rate}");
    assert!(held * 100 <= slices * 110, "{slices}, {held} us");
    assert!(rate * 100 >= rate_beside_slices * 95, "{rate_beside_slices}, {rate} kernels");
}

#[test]
fn two_tiny_slices_starve_each_other_unless_the_scheduler_rotates_them() {
    // Both at 1 us without a scheduler: measured 0.0 kernels/s each.
    let mut both = scenario(Load::Single, Mode::Defaults);
    both.tasks = vec![best_effort("one"), best_effort("two")];
    both.model.tsg.slice = Duration::from_micros(1);
    both.duration = Duration::from_millis(200);
    // The rest would take minutes at this rate: one request each is enough.
    for task in &mut both.tasks {
        task.arrivals = Arrivals::BackToBack { depth: 1 };
        task.requests_max = Some(1);
    }
    let outcome = run(&both, Options::default()).unwrap();
    let done: u64 = outcome.tasks.iter().map(|task| task.launches_in_time).sum();
    assert_eq!(done, 0, "two groups at 1 us make no progress");

    // The scheduler preempts one of them at any time, and both make progress.
    let mut rotated = scenario(Load::Single, Mode::Slice);
    rotated.tasks.push(best_effort("two"));
    let outcome = run(&rotated, Options::default()).unwrap();
    let rates: Vec<u64> = outcome.tasks[1..].iter().map(|t| t.launches_in_time).collect();
    println!("rotated: {rates:?} kernels/s");
    assert!(rates.iter().all(|&rate| rate > 30), "{rates:?}");
}
