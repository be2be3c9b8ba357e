//! Tasks that do not fit into the memory of the simulated H200 together: refused by the device's
//! driver, evicted for a task of a higher priority, in whole turns.

use gpreempt_core::config::Config;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::{
    Arrivals, FaultKind, FaultSpec, Scenario, SchedulerSpec, TaskSpec, read_scenario,
};

use crate::builder::{BACK_TO_BACK, checked, kernel, launch, task, us};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000;

/// A task that trains, with memory that may be moved.
fn job(name: &str, priority: u8, gib: u64) -> TaskSpec {
    let job = task(name, priority, BACK_TO_BACK, launch(0));
    TaskSpec { memory: gib * GIB, is_evictable: true, ..job }
}

/// On a device of 24 GiB.
fn scenario(tasks: Vec<TaskSpec>, seconds: u64, swap_turn: Option<Duration>) -> Scenario {
    let mut model = DeviceModel::built_in("h200").unwrap();
    model.memory.bytes = 24 * GIB;
    Scenario {
        name: "memory".into(),
        model,
        machine: MachineKind::Tsg,
        devices: 1,
        seed: 1,
        duration: us(seconds * SECOND),
        scheduler: Some(SchedulerSpec { config: Config::default(), hold: true, swap_turn }),
        kernels: vec![kernel("train", "mix", us(20_000), 4), kernel("serve", "mix", us(2_000), 4)],
        tasks,
        faults: vec![],
    }
}

/// The launches of a task, as a part of those that it makes alone.
fn share(outcome: &Outcome, task: usize) -> f64 {
    let alone = outcome.duration.as_nanos() / us(20_000).as_nanos();
    outcome.tasks[task].launches_in_time as f64 / alone as f64
}

#[test]
fn without_a_scheduler_the_second_task_gets_no_memory() {
    let mut tasks = vec![job("first", 4, 16), job("second", 4, 16), job("small", 4, 8)];
    tasks[1].start = us(SECOND);
    tasks[2].start = us(2 * SECOND);
    for task in &mut tasks {
        task.is_evictable = false;
    }
    for is_scheduled in [true, false] {
        let mut scenario = scenario(tasks.clone(), 4, None);
        scenario.scheduler = scenario.scheduler.filter(|_| is_scheduled);
        let outcome = checked(&scenario);
        let refused: Vec<bool> = outcome.tasks.iter().map(|task| task.refused).collect();
        assert_eq!((refused, outcome.evictions), (vec![false, true, false], 0));
    }
}

#[test]
fn a_task_is_evicted_for_a_higher_one_and_comes_back_exactly() {
    let serve = Arrivals::Periodic { every: us(10_000), phase: us(0) };
    let mut high = task("serve", 12, serve, launch(1));
    high.memory = 16 * GIB;
    high.start = us(10 * SECOND);
    high.requests_max = Some(1_000);
    let outcome = checked(&scenario(vec![job("train", 2, 16), high], 60, None));
    assert_eq!((outcome.evictions, outcome.exact), (1, true));
    let first = outcome.tasks[1].served[0].arrived.since(Instant::ZERO);
    // 16 GiB are out in 0.7 s and 8.6 s, after a lock of 75 ms.
    assert!(first > us(19 * SECOND) && first < us(20 * SECOND), "{first}");
    assert_eq!(outcome.tasks[1].served.len(), 1_000);
    // It ran for 10 s, and again from about 33 s on.
    let share = share(&outcome, 0);
    assert!((0.58..0.64).contains(&share), "{share}");
}

#[test]
fn what_cannot_be_evicted_is_not_and_the_task_that_needs_room_is_refused() {
    let serve = Arrivals::Periodic { every: us(10_000), phase: us(0) };
    let mut high = task("serve", 12, serve, launch(1));
    (high.memory, high.start) = (16 * GIB, us(SECOND));
    for (priority, is_evictable) in [(2, false), (12, true), (13, true)] {
        let mut low = job("train", priority, 16);
        low.is_evictable = is_evictable;
        let outcome = checked(&scenario(vec![low, high.clone()], 3, None));
        assert!(outcome.tasks[1].refused && outcome.evictions == 0, "{priority}");
    }
}

#[test]
fn jobs_that_do_not_fit_together_take_whole_turns() {
    let jobs = vec![job("a", 4, 16), job("b", 4, 16)];
    let outcome = checked(&scenario(jobs, 600, Some(us(60 * SECOND))));
    assert!(outcome.exact && outcome.evictions >= 5, "{}", outcome.evictions);
    for task in 0..2 {
        let share = share(&outcome, task);
        assert!((0.38..0.55).contains(&share), "{share}");
    }
}

#[test]
fn a_program_with_memory_interrupts_a_turn() {
    let serve = Arrivals::Periodic { every: us(10_000), phase: us(0) };
    let mut high = task("serve", 12, serve, launch(1));
    (high.memory, high.start) = (16 * GIB, us(30 * SECOND));
    high.requests_max = Some(500);
    let jobs = vec![job("a", 4, 16), job("b", 4, 16), high];
    let outcome = checked(&scenario(jobs, 200, Some(us(60 * SECOND))));
    let first = outcome.tasks[2].served[0].arrived.since(Instant::ZERO);
    assert!(first < us(42 * SECOND), "{first}");
    assert!(outcome.exact && outcome.tasks.iter().all(|task| !task.refused));
}

#[test]
fn what_a_dead_scheduler_evicted_comes_back() {
    let serve = Arrivals::Periodic { every: us(10_000), phase: us(0) };
    let mut high = task("serve", 12, serve, launch(1));
    (high.memory, high.start) = (16 * GIB, us(SECOND));
    high.requests_max = Some(100);
    // In the lock, in the checkpoint, while it is out, in the restore.
    for at_ms in [1_030, 5_000, 10_600, 13_000] {
        let mut scenario = scenario(vec![job("train", 2, 16), high.clone()], 40, None);
        scenario.faults.push(FaultSpec {
            at: Duration::from_millis(at_ms),
            lasts: Duration::from_millis(12_000),
            kind: FaultKind::SchedulerCrash,
        });
        let outcome = checked(&scenario);
        assert!(outcome.exact && outcome.evictions >= 1, "{at_ms} ms: {}", outcome.evictions);
        assert_eq!(outcome.tasks[1].served.len(), 100, "{at_ms} ms");
    }
}

#[test]
fn the_example_scenario_does_what_its_comment_says() {
    let text = include_str!("../../../../scenarios/memory.toml");
    let scenario = read_scenario("memory.toml", text, &mut |_| Err(String::new())).unwrap();
    let outcome = checked(&scenario);
    assert!(outcome.exact && outcome.evictions >= 4, "{}", outcome.evictions);
    assert!(outcome.tasks.iter().all(|task| !task.refused));
    let server = &outcome.tasks[3];
    let first = server.served[0].arrived.since(Instant::ZERO);
    assert!(first < us(82 * SECOND) && server.served.len() == 2_000, "{first}");
}
