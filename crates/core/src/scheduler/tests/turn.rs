//! Equals take turns: round robin and fair share.

use super::world::{STOP, World, ms, us, with};
use crate::capability::Capabilities;
use crate::config::{Config, PolicyKind};
use crate::event::{Event, TaskTraits};
use crate::id::TaskId;
use crate::time::Duration;

fn config(policy: PolicyKind) -> Config {
    Config { policy, ..Config::default() }
}

fn weighing(weight: u32) -> TaskTraits {
    TaskTraits { weight, ..TaskTraits::default() }
}

/// Who runs, every `step`, without repetitions.
fn turns(world: &mut World, step: Duration, count: usize) -> alloc::vec::Vec<u64> {
    let mut seen = alloc::vec::Vec::new();
    for _ in 0..count {
        world.run(step);
        seen.extend(world.running());
    }
    seen.dedup();
    seen
}

#[test]
fn round_robin_gives_each_equal_a_slice() {
    let mut world = World::with_device(config(PolicyKind::RoundRobin), STOP);
    for task in 1..4 {
        world.task(task, with(5));
        world.busy(task);
    }
    world.task(4, with(3));
    world.busy(4);
    world.run(ms(1));
    assert_eq!(world.running(), [1]);
    assert_eq!(turns(&mut world, ms(1), 60), [1, 2, 3, 1, 2, 3, 1]);
    assert_eq!(world.ran(4), us(20), "a lower level gets no turn");
    assert!(world.told(1).contains(&"its turn is over, queue2 is next".into()));
}

#[test]
fn slices_are_stretched_where_a_switch_is_dear() {
    let dear = Capabilities { preempt_cost: ms(2), resume_cost: ms(3), ..STOP };
    let mut world = World::with_device(config(PolicyKind::RoundRobin), dear);
    for task in 1..3 {
        world.task(task, with(5));
        world.busy(task);
    }
    world.run(ms(1000));
    let switches = world.preempts();
    assert!((9..=11).contains(&switches), "{switches}: a slice is 20 round trips");
}

#[test]
fn who_is_interrupted_keeps_its_turn() {
    let mut world = World::with_device(config(PolicyKind::RoundRobin), STOP);
    for task in 1..3 {
        world.task(task, with(5));
        world.busy(task);
    }
    world.task(9, with(9));
    world.run(ms(13));
    assert_eq!(world.running(), [2]);
    world.busy(9);
    world.run(ms(20));
    assert_eq!(world.running(), [9]);
    world.done(9);
    world.run(ms(6));
    assert_eq!(world.running(), [2], "it had not used up its slice");
}

#[test]
fn a_task_takes_its_turn_with_all_its_queues() {
    let mut world = World::with_device(config(PolicyKind::RoundRobin), STOP);
    for task in 1..3 {
        world.task(task, with(5));
        world.queue(10 + task, task, 0);
        world.busy(task);
        world.busy(10 + task);
    }
    world.run(ms(5));
    assert_eq!(world.running(), [1, 11]);
    world.run(ms(10));
    assert_eq!(world.running(), [2, 12]);
}

#[track_caller]
fn assert_share(world: &World, since: &[Duration; 2], parts: [u64; 2]) {
    let ran = [1, 2].map(|queue| world.ran(queue).as_micros());
    let [first, second] = [0, 1].map(|i| ran[i] - since[i].as_micros());
    let (left, right) = (first * parts[1], second * parts[0]);
    let off = left.abs_diff(right) * 100 / left.max(right);
    assert!(off <= 10, "{first} : {second} us is not {parts:?}");
}

#[test]
fn device_time_is_shared_by_weight_whatever_the_priorities_of_a_class() {
    let mut world = World::with_device(config(PolicyKind::Fair), STOP);
    let priority = with(7).priority;
    world.task(1, weighing(3));
    world.task(2, TaskTraits { priority, ..weighing(1) });
    world.busy(1);
    world.busy(2);
    world.run(ms(2000));
    assert_share(&world, &[Duration::ZERO; 2], [3, 1]);

    let since = [1, 2].map(|queue| world.ran(queue));
    let (task, traits) = (TaskId(2), weighing(9));
    world.tell(Event::TaskChanged { task, traits });
    world.run(ms(2000));
    assert_share(&world, &since, [1, 3]);
}

#[test]
fn who_slept_comes_back_without_credit() {
    let mut world = World::with_device(config(PolicyKind::Fair), STOP);
    world.task(1, weighing(3));
    world.task(2, weighing(1));
    world.busy(1);
    world.busy(2);
    world.run(ms(500));
    world.done(2);
    world.run(ms(5000));
    let since = [1, 2].map(|queue| world.ran(queue));
    world.busy(2);
    world.run(ms(2000));
    assert_share(&world, &since, [3, 1]);
}

#[test]
fn who_sleeps_often_gets_no_more_than_its_part() {
    let mut world = World::with_device(config(PolicyKind::Fair), STOP);
    world.task(1, weighing(1));
    world.task(2, weighing(1));
    world.busy(1);
    for _ in 0..100 {
        world.busy(2);
        world.run(ms(15));
        world.done(2);
        world.run(ms(15));
    }
    let (steady, sleeper) = (world.ran(1), world.ran(2));
    assert!(sleeper <= steady, "{sleeper} > {steady}");
    assert!(sleeper > ms(300), "{sleeper}");
}

#[test]
fn what_was_had_under_another_policy_is_no_debt() {
    let mut world = World::with_device(config(PolicyKind::RoundRobin), STOP);
    world.task(1, with(6));
    world.task(2, with(2));
    world.busy(1);
    world.busy(2);
    world.run(ms(3000));
    world.reconfigure(config(PolicyKind::Fair));
    let since = [1, 2].map(|queue| world.ran(queue));
    world.run(ms(1000));
    assert_share(&world, &since, [1, 1]);
}

#[test]
fn no_weight_of_the_low_class_takes_from_the_high_one() {
    let mut world = World::with_device(config(PolicyKind::Fair), STOP);
    world.task(1, weighing(1000));
    let high = |weight| TaskTraits { priority: with(8).priority, ..weighing(weight) };
    world.task(2, high(1));
    world.busy(1);
    world.busy(2);
    world.run(ms(500));
    assert!(world.ran(1) < ms(10), "{}", world.ran(1));
    // Newcomers of a class begin where that class is, whatever the other had.
    world.task(3, high(1));
    world.busy(3);
    let since = [2, 3].map(|queue| world.ran(queue));
    world.run(ms(500));
    for (queue, since) in [2, 3].into_iter().zip(since) {
        let ran = world.ran(queue).saturating_sub(since);
        assert!(ran > ms(200), "queue {queue} had {ran}");
    }
    world.done(2);
    world.done(3);
    world.task(4, weighing(1000));
    world.busy(4);
    let since = [1, 4].map(|queue| world.ran(queue));
    world.run(ms(500));
    for (queue, since) in [1, 4].into_iter().zip(since) {
        let ran = world.ran(queue).saturating_sub(since);
        assert!(ran > ms(200), "queue {queue} had {ran}");
    }
    // Who joins a class is a newcomer there.
    world.busy(2);
    world.tell(Event::TaskChanged { task: TaskId(1), traits: high(1) });
    let since = [1, 2].map(|queue| world.ran(queue));
    world.run(ms(500));
    for (queue, since) in [1, 2].into_iter().zip(since) {
        let ran = world.ran(queue).saturating_sub(since);
        assert!(ran > ms(200), "queue {queue} had {ran}");
    }
}
