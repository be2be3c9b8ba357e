//! Bounds on the latency of high tasks, for which random scenarios are too coarse.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::{Arrivals, FaultKind, FaultSpec, RequestStep, Scenario};
use gpreempt_sim::simulation::{Options, run};

use crate::builder::{BACK_TO_BACK, HIGH, LOW, checked, kernel, launch, low_and_high, task, us};

/// Low kernels of 25 ms that fill the device, and periodically a short high one.
fn scenario(device: &str, interval: Duration, every: Duration) -> Scenario {
    let model = DeviceModel::built_in(device).unwrap();
    let arrivals = Arrivals::Periodic { every, phase: every };
    low_and_high(model, interval, [us(25_000), us(20)], arrivals)
}

fn worst(outcome: &Outcome) -> Duration {
    outcome.tasks[HIGH].latencies().into_iter().max().unwrap()
}

#[test]
fn a_high_request_waits_no_longer_than_an_interval_and_a_switch() {
    for interval in [1_000, 5_000, 10_000] {
        // No multiple of the interval, so that requests arrive at all phases of it.
        let worst = worst(&checked(&scenario("mi300x", us(interval), us(17_389))));
        // The switch, the kernel and the way to the client and back take less than 50 us.
        assert!(worst <= us(interval + 50), "{worst} with an interval of {interval} us");
        assert!(worst >= us(interval * 8 / 10), "{worst}: the phases do not meet the worst case");
    }
}

#[test]
fn a_hint_preempts_a_queue_that_began_to_run_since_the_last_reading() {
    let mut scenario = scenario("mi300x", us(10_000), us(17_389));
    // Low work comes shortly before each request, so that no reading has seen it yet.
    let early = us(17_389 - 300);
    scenario.tasks[LOW].arrivals = Arrivals::Periodic { every: us(17_389), phase: early };
    scenario.tasks[HIGH].hint = Some(Duration::ZERO);
    let worst = worst(&checked(&scenario));
    assert!(worst <= us(100), "{worst}");
}

#[test]
fn a_hold_outlasts_a_switch_that_is_longer_than_the_quiet_time() {
    let mut scenario = scenario("h200", us(5_000), us(60_173));
    scenario.model.context.save = us(900);
    scenario.tasks[HIGH].request[0].count = 20;
    scenario.tasks[HIGH].request[0].cpu = us(30);
    let worst = worst(&checked(&scenario));
    // One switch for all twenty kernels, not one for each.
    assert!(worst <= us(4_000), "{worst}");
}

#[test]
fn a_worker_does_not_wait_for_the_preempt_of_a_dead_task() {
    let mut scenario = scenario("mi300x", us(1_000), us(17_389));
    // A save of about 3 ms, in the middle of which its task dies.
    scenario.model.context.wave_bytes *= 600;
    let kind = FaultKind::TaskDeath(LOW);
    scenario.faults = vec![FaultSpec { at: us(17_389 + 2_500), lasts: us(1), kind }];
    let mut successor = task("successor", 2, BACK_TO_BACK, launch(0));
    successor.start = us(30_000);
    scenario.tasks.push(successor);
    let outcome = checked(&scenario);
    assert!(outcome.tasks[LOW].died);
    // The successor is still preempted in time.
    let late = outcome.tasks[HIGH].served.iter().filter(|served| {
        served.arrived > Instant::ZERO + us(40_000) && served.latency() > us(7_000)
    });
    assert_eq!(late.count(), 0);
}

#[test]
fn a_full_ring_blocks_its_client_and_loses_nothing() {
    for device in ["mi300x", "h200"] {
        let mut scenario = scenario(device, us(5_000), us(17_389));
        scenario.duration = us(10_000);
        scenario.kernels[0] = kernel("tiny", "mix", us(1), 1);
        // More than any ring has entries.
        let step = RequestStep { count: 17_000, sync: false, ..launch(0) };
        scenario.tasks = vec![task("low", 2, Arrivals::Trace(vec![Duration::ZERO]), step)];
        let outcome = run(&scenario, Options::default()).unwrap();
        assert_eq!((outcome.tasks[0].launches, outcome.lost, outcome.exact), (17_000, 0, true));
    }
}
