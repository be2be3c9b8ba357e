//! Turns among equals, and aging.

use alloc::vec::Vec;

use super::{SLICE, STOP, Testbed, ms, us, with};
use crate::backend::Capabilities;
use crate::config::{Aging, Config, PolicyKind};
use crate::decision::Reason;
use crate::event::{Event, SchedAttr};
use crate::id::{DeviceId, GangId, QueueId, TaskId};
use crate::queue::RunState;
use crate::time::Duration;

// Round robin and fair share.

fn config(policy: PolicyKind) -> Config {
    Config { policy, ..Config::default() }
}

fn weighing(weight: u32) -> SchedAttr {
    SchedAttr { weight, ..SchedAttr::default() }
}

/// The queues that run, sampled every `step`, without repetitions.
fn turns(bed: &mut Testbed, step: Duration, count: usize) -> Vec<u64> {
    let mut seen = Vec::new();
    for _ in 0..count {
        bed.run(step);
        seen.extend(bed.running());
    }
    seen.dedup();
    seen
}

#[test]
fn round_robin_gives_each_equal_a_slice() {
    let mut bed = Testbed::with_device(config(PolicyKind::RoundRobin), STOP);
    for task in 1..4 {
        bed.busy_task(task, with(5));
    }
    bed.busy_task(4, with(3));
    bed.run_then_on(ms(1), [1]);
    assert_eq!(turns(&mut bed, ms(1), 60), [1, 2, 3, 1, 2, 3, 1]);
    assert_eq!(bed.ran(4), us(20), "a lower level gets no turn");
    assert!(bed.texts(1).contains(&"its turn is over, queue2 is next".into()));
}

#[test]
fn turns_are_longer_where_a_switch_is_expensive() {
    let dear = Capabilities { preempt_cost: ms(2), resume_cost: ms(3), ..STOP };
    let mut bed = Testbed::with_device(config(PolicyKind::RoundRobin), dear);
    for task in 1..3 {
        bed.busy_task(task, with(5));
    }
    bed.run(ms(1000));
    let switches = bed.preempts();
    assert!((9..=11).contains(&switches), "{switches}: a slice is 20 round trips");
}

#[test]
fn an_interrupted_entity_keeps_its_turn() {
    let mut bed = Testbed::with_device(config(PolicyKind::RoundRobin), STOP);
    for task in 1..3 {
        bed.busy_task(task, with(5));
    }
    bed.task(9, with(9));
    bed.run_then_on(ms(13), [2]);
    bed.busy(9);
    bed.run_then_on(ms(20), [9]);
    bed.done(9);
    bed.run(ms(6));
    assert_eq!(bed.running(), [2], "it had not used up its slice");
}

#[test]
fn a_task_takes_its_turn_with_all_its_queues() {
    let mut bed = Testbed::with_device(config(PolicyKind::RoundRobin), STOP);
    for task in 1..3 {
        bed.task(task, with(5));
        bed.queue(10 + task, task, 0);
        bed.busy(task);
        bed.busy(10 + task);
    }
    bed.run_then_on(ms(5), [1, 11]);
    bed.run_then_on(ms(10), [2, 12]);
}

/// Runs for a while and returns how long each of the queues ran.
fn run_times<const N: usize>(bed: &mut Testbed, time: Duration, queues: [u64; N]) -> [Duration; N] {
    let before = queues.map(|queue| bed.ran(queue));
    bed.run(time);
    core::array::from_fn(|i| bed.ran(queues[i]).saturating_sub(before[i]))
}

/// Runs for a while and checks that queues 1 and 2 share the device time in this proportion.
#[track_caller]
fn run_and_expect_shares(bed: &mut Testbed, time: Duration, parts: [u64; 2]) {
    let [first, second] = run_times(bed, time, [1, 2]).map(Duration::as_micros);
    let (left, right) = (first * parts[1], second * parts[0]);
    let off = left.abs_diff(right) * 100 / left.max(right);
    assert!(off <= 10, "{first} : {second} us is not {parts:?}");
}

/// Runs for half a second and checks that each of the queues gets its part.
#[track_caller]
fn run_and_expect_progress(bed: &mut Testbed, queues: [u64; 2]) {
    for (queue, ran) in queues.into_iter().zip(run_times(bed, ms(500), queues)) {
        assert!(ran > ms(200), "queue {queue} had {ran}");
    }
}

#[test]
fn device_time_is_shared_by_weight_whatever_the_priorities_of_a_class() {
    let mut bed = Testbed::with_device(config(PolicyKind::Fair), STOP);
    let priority = with(7).priority;
    bed.busy_task(1, weighing(3));
    bed.busy_task(2, SchedAttr { priority, ..weighing(1) });
    run_and_expect_shares(&mut bed, ms(2000), [3, 1]);
    bed.change(2, weighing(9));
    run_and_expect_shares(&mut bed, ms(2000), [1, 3]);
}

#[test]
fn an_entity_that_was_idle_gets_no_credit() {
    let mut bed = Testbed::with_device(config(PolicyKind::Fair), STOP);
    bed.busy_task(1, weighing(3));
    bed.busy_task(2, weighing(1));
    bed.run(ms(500));
    bed.done(2);
    bed.run(ms(5000));
    bed.busy(2);
    run_and_expect_shares(&mut bed, ms(2000), [3, 1]);
}

#[test]
fn an_entity_that_is_often_idle_gets_no_more_than_its_share() {
    let mut bed = Testbed::with_device(config(PolicyKind::Fair), STOP);
    bed.busy_task(1, weighing(1));
    bed.task(2, weighing(1));
    for _ in 0..100 {
        bed.busy(2);
        bed.run(ms(15));
        bed.done(2);
        bed.run(ms(15));
    }
    let (steady, sleeper) = (bed.ran(1), bed.ran(2));
    assert!(sleeper <= steady, "{sleeper} > {steady}");
    assert!(sleeper > ms(300), "{sleeper}");
}

#[test]
fn time_charged_under_another_policy_does_not_count() {
    let mut bed = Testbed::with_device(config(PolicyKind::RoundRobin), STOP);
    bed.busy_task(1, with(6));
    bed.busy_task(2, with(2));
    bed.run(ms(3000));
    bed.reconfigure(config(PolicyKind::Fair));
    run_and_expect_shares(&mut bed, ms(1000), [1, 1]);
}

#[test]
fn no_weight_of_the_low_class_takes_time_from_the_high_class() {
    let mut bed = Testbed::with_device(config(PolicyKind::Fair), STOP);
    bed.task(1, weighing(1000));
    let high = |weight| SchedAttr { priority: with(8).priority, ..weighing(weight) };
    bed.busy_task(2, high(1));
    bed.busy(1);
    bed.run(ms(500));
    assert!(bed.ran(1) < ms(10), "{}", bed.ran(1));
    // A new task of a class starts where that class is, not where the other one is.
    bed.busy_task(3, high(1));
    run_and_expect_progress(&mut bed, [2, 3]);
    bed.done(2);
    bed.done(3);
    bed.busy_task(4, weighing(1000));
    run_and_expect_progress(&mut bed, [1, 4]);
    // A task that joins a class starts where that class is.
    bed.busy(2);
    bed.change(1, high(1));
    run_and_expect_progress(&mut bed, [1, 2]);
}

// Aging.

fn with_aging(capabilities: Capabilities) -> Testbed {
    let aging = Some(Aging { after: ms(100), grant: ms(10) });
    let config = Config { aging, ..Config::default() };
    Testbed::with_device(config, capabilities)
}

#[test]
fn a_starved_queue_runs_for_the_granted_time() {
    let mut bed = with_aging(STOP);
    bed.busy_task(1, with(0));
    bed.busy_task(2, with(15));
    bed.run_then_on(ms(99), [2]);
    bed.run_then(ms(2), [1], [2]);
    bed.run_then_on(ms(11), [2]);
    assert!(bed.reasons(1).contains(&Reason::Aged { waited: ms(100) }));
    bed.run(ms(1000));
    let share = bed.ran(1).as_micros() * 100 / 1_112_000;
    assert!((8..=10).contains(&share), "{share}% for the lowest");
}

#[test]
fn without_aging_the_lowest_queue_waits_for_ever() {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.busy_task(1, with(0));
    bed.busy_task(2, with(15));
    bed.run(ms(5000));
    assert_eq!(bed.ran(1), us(20));
    assert!(bed.view(1).starving > ms(4900));
}

#[test]
fn every_starved_queue_is_boosted_in_turn() {
    let mut bed = with_aging(STOP);
    for task in 0..5 {
        bed.busy_task(task, with(u8::try_from(task).unwrap()));
    }
    bed.run(ms(2000));
    for task in 0..4 {
        assert!(bed.ran(task) > ms(50), "{task}: {}", bed.ran(task));
    }
}

#[test]
fn aging_can_be_switched_off_during_a_boost() {
    let mut bed = with_aging(STOP);
    bed.busy_task(1, with(0));
    bed.busy_task(2, with(15));
    bed.run_then_on(ms(102), [1]);
    bed.reconfigure(Config::default());
    bed.run(ms(11));
    assert_eq!(bed.running(), [2], "the boost ends on time");
    bed.run(ms(1000));
    assert_eq!(bed.running(), [2], "and there is no other boost");
}

/// A device with slices: one high task and `count` low ones, all with work.
fn with_blocked_low_class(count: u64) -> Testbed {
    let mut bed = with_aging(SLICE);
    for task in 1..=count {
        bed.busy_task(task, with(3));
    }
    bed.busy_task(99, with(12));
    bed
}

#[test]
fn a_starved_low_class_runs_while_the_high_class_is_preempted() {
    let mut bed = with_blocked_low_class(1);
    bed.run(ms(99));
    assert_eq!(bed.running(), [1, 99], "the hardware prefers queue 99 by itself");
    bed.run_then(ms(2), [1], [99]);
    assert!(bed.reasons(99).contains(&Reason::LowTurn));
    bed.run_then_on(ms(11), [1, 99]);
}

#[test]
fn many_low_queues_do_not_prevent_the_turn_of_their_class() {
    // One of them is always starved; a boost within the blocked class would have no effect.
    let mut bed = with_blocked_low_class(30);
    bed.run(ms(2000));
    let turns: Vec<_> =
        (bed.reasons(99).into_iter()).filter(|reason| *reason == Reason::LowTurn).collect();
    assert!(turns.len() >= 8, "the high class was stopped {} times", turns.len());
}

#[test]
fn the_high_class_is_resumed_when_the_low_class_is_done() {
    let mut bed = with_blocked_low_class(1);
    bed.run_then_off(ms(101), [99]);
    bed.done(1);
    bed.run(ms(6));
    assert_eq!(bed.running(), [99], "before the boost is over");
}

#[test]
fn a_starved_gang_is_boosted_on_all_its_devices() {
    let mut bed = with_aging(STOP);
    bed.device(1, STOP);
    let gang = Some(GangId(7));
    let attr = SchedAttr { gang, ..with(1) };
    bed.task(1, attr);
    bed.queue(11, 1, 1);
    bed.task(2, with(9));
    let task = TaskId(3);
    let attr = with(9);
    bed.deliver(Event::TaskAppeared { task, attr });
    bed.queue(3, 3, 1);
    for queue in [1, 11, 2, 3] {
        bed.busy(queue);
    }
    // It is off on device 1 later than on device 0, but starves as a whole.
    bed.slow.insert(QueueId(11), ms(20));
    bed.run_then_on(ms(101), [1, 11]);
    bed.run_then_on(ms(40), [2, 3]);
}

// The minimum share.

/// A share of 5 % for tasks 1 to `count` of priority 4, and task 99 of priority 12.
fn with_min_share(capabilities: Capabilities, count: u64) -> Testbed {
    let min_share = Some(Aging { after: ms(950), grant: ms(50) });
    let config = Config { min_share, ..Config::default() };
    let mut bed = Testbed::with_device(config, capabilities);
    for task in 1..=count {
        bed.busy_task(task, SchedAttr { has_min_share: true, ..with(4) });
    }
    bed.busy_task(99, with(12));
    bed
}

/// How long the high queue was off during that time, and how long each of tasks 1 to `count` ran
/// meanwhile.
fn off_times(bed: &mut Testbed, time: Duration, count: u64) -> (Duration, Vec<Duration>) {
    let step = ms(1);
    let (mut off, mut ran) = (Duration::ZERO, alloc::vec![Duration::ZERO; 0]);
    ran.resize(usize::try_from(count).unwrap(), Duration::ZERO);
    let end = bed.now + time;
    while bed.now < end {
        bed.run(step);
        if bed.view(99).run_state == RunState::Off {
            off += step;
            for task in bed.running() {
                ran[usize::try_from(task).unwrap() - 1] += step;
            }
        }
    }
    (off, ran)
}

#[test]
fn tasks_with_a_minimum_share_get_it_together_and_each_has_a_turn() {
    for capabilities in [STOP, SLICE] {
        for count in [1, 3] {
            let mut bed = with_min_share(capabilities, count);
            let (off, ran) = off_times(&mut bed, ms(12_000), count);
            let percent = off.as_micros() * 100 / 12_000_000;
            assert!((4..=6).contains(&percent), "{count}: {percent} %");
            assert!(ran.iter().all(|ran| *ran > ms(500 / count / 2)), "{count}: {ran:?}");
        }
    }
}

#[test]
fn a_task_without_a_minimum_share_gets_none() {
    for capabilities in [STOP, SLICE] {
        let mut bed = with_min_share(capabilities, 0);
        bed.busy_task(1, with(4));
        assert_eq!(off_times(&mut bed, ms(3_000), 1).0, Duration::ZERO);
    }
}

#[test]
fn a_higher_low_priority_task_does_not_take_the_minimum_share() {
    for capabilities in [STOP, SLICE] {
        let mut bed = with_min_share(capabilities, 1);
        bed.busy_task(2, with(7));
        let (_, ran) = off_times(&mut bed, ms(4_200), 2);
        assert!(ran[0] >= ms(150), "{ran:?}");
    }
}

#[test]
fn pauses_of_the_high_queue_count_by_their_length() {
    // Idle for 10 ms of every 510 ms: 2 % of the time, so the rest of the share is owed.
    let mut bed = with_min_share(SLICE, 1);
    let mut low_turns = 0;
    for _ in 0..40 {
        bed.busy(99);
        bed.run(ms(500));
        bed.done(99);
        bed.run(ms(10));
    }
    low_turns += bed.reasons(99).iter().filter(|reason| **reason == Reason::LowTurn).count();
    assert!((6..=16).contains(&low_turns), "{low_turns} boosts in 20 s");
    // Idle for a tenth of the time: nothing is owed.
    let mut bed = with_min_share(SLICE, 1);
    for _ in 0..40 {
        bed.busy(99);
        bed.run(ms(450));
        bed.done(99);
        bed.run(ms(60));
    }
    assert!(!bed.reasons(99).contains(&Reason::LowTurn));
}

#[test]
fn the_last_work_of_high_queues_is_known() {
    let mut bed = Testbed::with_device(Config::default(), SLICE);
    bed.task(1, with(4));
    bed.task(2, with(12));
    let work = |bed: &Testbed| bed.scheduler.high_work(DeviceId(0)).collect::<Vec<_>>();
    assert_eq!(work(&bed), [(TaskId(2), None)]);
    bed.busy(2);
    bed.run(ms(20));
    assert_eq!(work(&bed), [(TaskId(2), Some(bed.scheduler.now))]);
    bed.done(2);
    bed.run(ms(10));
    let ended = work(&bed)[0].1.unwrap();
    bed.run(ms(500));
    assert_eq!(work(&bed), [(TaskId(2), Some(ended))]);
    assert!(ended < bed.now);
    bed.busy(2);
    bed.run(ms(10));
    let begun = bed.now;
    bed.suspend(2, true);
    bed.run(ms(500));
    assert!(work(&bed)[0].1.unwrap() <= begun, "a suspended queue has no work");
}
