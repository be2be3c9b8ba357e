//! Latency budgets on the simulated H200: a process that submits ahead of the device gives up time
//! for another one and stays within its budget; one that waits for each kernel is not interrupted,
//! because no other process would gain from that.

use gpreempt_core::config::Config;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{Arrivals, RequestStep, Scenario, SchedulerSpec};

use crate::builder::{checked, kernel, launch, task, us};

/// Requests of 300 kernels of 14 us, each of which takes the processor 30 us, beside kernels of
/// 8 ms.
/// Returns the average time of a request in us and the best-effort kernels.
fn run(budget: Option<u16>, sync: bool) -> (u64, u64) {
    let step = RequestStep { count: 300, cpu: us(30), sync, ..launch(1) };
    let every = Duration::from_nanos(30_007_919);
    let arrivals = Arrivals::Periodic { every, phase: Duration::from_millis(20) };
    let mut lc = task("lc", 12, arrivals, step);
    lc.latency_budget = LatencyBudget::from_percent(budget.unwrap_or(0)).unwrap();
    let be = task("be", 2, Arrivals::BackToBack { depth: 4 }, launch(0));
    let outcome = checked(&Scenario {
        name: "budget".into(),
        model: DeviceModel::built_in("h200").unwrap(),
        machine: MachineKind::Tsg,
        devices: 1,
        seed: 1,
        duration: Duration::from_millis(2_500),
        scheduler: Some(SchedulerSpec { config: Config::default(), hold: true, swap_turn: None }),
        kernels: vec![
            kernel("be", "counter", us(7_930), 264),
            kernel("lc", "counter", us(14), 132),
        ],
        tasks: if budget.is_some() { vec![lc, be] } else { vec![lc] },
        faults: vec![],
    });
    assert!(outcome.exact);
    let end = Instant::ZERO + outcome.duration;
    let in_time = outcome.tasks[0].served.iter().filter(|served| served.ended < end);
    let times: Vec<u64> = in_time.map(|each| each.ended.since(each.began).as_micros()).collect();
    let be = outcome.tasks.get(1).map_or(0, |task| task.launches_in_time);
    (times.iter().sum::<u64>() / times.len() as u64, be)
}

#[test]
fn a_budget_of_a_process_that_submits_ahead_is_kept_and_gives_others_more() {
    let (alone, _) = run(None, false);
    let results = [0, 60, 400].map(|budget| {
        let (time, be) = run(Some(budget), false);
        println!("{budget} %: {time} us, {alone} alone; {be} kernels");
        assert!(
            time * 100 <= alone * (105 + u64::from(budget)),
            "{budget} %: {time} us of {alone}"
        );
        be
    });
    assert!(results[2] * 100 >= results[0] * 104, "{results:?}");
    assert!(results[1] >= results[0], "{results:?}");
}

#[test]
fn a_process_that_waits_for_each_kernel_keeps_the_device() {
    let (alone, be_strict) = run(Some(0), true);
    let (time, be) = run(Some(200), true);
    println!("{time} us, {alone} strict; {be} kernels, {be_strict} strict");
    // Some plans were tried.
    assert!(time * 100 <= alone * 110 && be * 100 >= be_strict * 97, "{time} us, {be} kernels");
}
