//! Promises that random scenarios are too coarse to hold anybody to.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use gpreempt_core::config::Config;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::{
    Arrivals, FaultKind, FaultSpec, KernelSpec, ProgramSource, RequestStep, Scenario,
    SchedulerSpec, TaskSpec,
};
use gpreempt_sim::world::{Options, run};

const OFFLINE: usize = 0;
const ONLINE: usize = 1;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn kernel(name: &str, time: Duration, groups: u32) -> KernelSpec {
    let program = ProgramSource::BuiltIn("mix".into());
    KernelSpec { name: name.into(), program, work: time, groups, waves: 1 }
}

fn task(name: &str, priority: u8, arrivals: Arrivals, step: RequestStep) -> TaskSpec {
    let priority = Priority::new(priority).unwrap();
    TaskSpec::new(name, priority, arrivals, vec![step])
}

/// Offline kernels of 25 ms that fill the device, and every now and then a short online one.
fn scenario(device: &str, interval: Duration, every: Duration) -> Scenario {
    let model = DeviceModel::built_in(device).unwrap();
    let all = model.compute_units * model.waves_per_unit;
    let config = Config { interval, ..Config::default() };
    let step = |kernel| RequestStep { kernel, count: 1, sync: true, cpu: Duration::ZERO };
    let periodic = Arrivals::Periodic { every, phase: every };
    Scenario {
        name: "online beside offline".into(),
        machine: model.machine,
        devices: 1,
        seed: 1,
        duration: us(1_000_000),
        scheduler: Some(SchedulerSpec { config, hold: true }),
        kernels: vec![kernel("long", us(25_000), all), kernel("short", us(20), all)],
        tasks: vec![
            task("offline", 2, Arrivals::BackToBack { depth: 2 }, step(0)),
            task("online", 12, periodic, step(1)),
        ],
        faults: vec![],
        model,
    }
}

fn simulate(scenario: &Scenario) -> Outcome {
    run(scenario, Options { check: true, ..Options::default() }).unwrap()
}

fn worst(outcome: &Outcome, task: usize) -> Duration {
    outcome.tasks[task].latencies().into_iter().max().unwrap()
}

#[test]
fn nobody_important_waits_longer_than_an_interval_and_a_switch() {
    for interval in [1_000, 5_000, 10_000] {
        // No multiple of the interval, so that requests arrive at all phases of it.
        let outcome = simulate(&scenario("mi300x", us(interval), us(17_389)));
        let worst = worst(&outcome, ONLINE);
        // The switch, the kernel and the way to the client and back take less than 50 us.
        assert!(worst <= us(interval + 50), "{worst} with an interval of {interval} us");
        assert!(worst >= us(interval * 8 / 10), "{worst}: the phases do not meet the worst case");
    }
}

#[test]
fn a_hint_finds_those_who_began_to_run_since_the_last_reading() {
    let mut scenario = scenario("mi300x", us(10_000), us(17_389));
    // Offline work comes a little before each request, so that no reading has seen it yet.
    let early = us(17_389 - 300);
    let arrivals = Arrivals::Periodic { every: us(17_389), phase: early };
    scenario.tasks[OFFLINE].arrivals = arrivals;
    scenario.tasks[ONLINE].hint = Some(Duration::ZERO);
    let worst = worst(&simulate(&scenario), ONLINE);
    assert!(worst <= us(100), "{worst}");
}

#[test]
fn a_hold_outlasts_a_switch_that_is_longer_than_the_quiet_time() {
    let mut scenario = scenario("h200", us(5_000), us(60_173));
    scenario.model.context.save = us(900);
    scenario.tasks[ONLINE].request[0].count = 20;
    scenario.tasks[ONLINE].request[0].cpu = us(30);
    let outcome = simulate(&scenario);
    let worst = worst(&outcome, ONLINE);
    // One switch for all twenty kernels, not one for each.
    assert!(worst <= us(4_000), "{worst}");
}

#[test]
fn a_worker_does_not_wait_for_the_preempt_of_a_dead_task() {
    let mut scenario = scenario("mi300x", us(1_000), us(17_389));
    // A save of about 3 ms, in the middle of which its task dies.
    scenario.model.context.wave_bytes *= 600;
    scenario.faults = vec![FaultSpec {
        at: us(17_389 + 2_500),
        lasts: us(1),
        kind: FaultKind::TaskDeath(OFFLINE),
    }];
    let step = RequestStep { kernel: 0, count: 1, sync: true, cpu: Duration::ZERO };
    let mut heir = task("heir", 2, Arrivals::BackToBack { depth: 2 }, step);
    heir.start = us(30_000);
    scenario.tasks.push(heir);
    let outcome = simulate(&scenario);
    assert!(outcome.tasks[OFFLINE].died);
    // Whoever comes after the dead one is still preempted in time.
    let late = outcome.tasks[ONLINE].served.iter().filter(|served| {
        served.arrived > Instant::ZERO + us(40_000) && served.latency() > us(7_000)
    });
    assert_eq!(late.count(), 0);
}

#[test]
fn a_full_ring_holds_its_client_up_and_loses_nothing() {
    for device in ["mi300x", "h200"] {
        let mut scenario = scenario(device, us(5_000), us(17_389));
        scenario.duration = us(10_000);
        scenario.kernels[0] = kernel("tiny", us(1), 1);
        // More than any ring has entries.
        let step = RequestStep { kernel: 0, count: 17_000, sync: false, cpu: Duration::ZERO };
        scenario.tasks = vec![task("offline", 2, Arrivals::Trace(vec![Duration::ZERO]), step)];
        let options = Options::default();
        let outcome = run(&scenario, options).unwrap();
        assert_eq!((outcome.tasks[0].launches, outcome.lost, outcome.exact), (17_000, 0, true));
    }
}
