//! Devices with time slices: what is set, who may be runnable, who may be held.

use super::world::{SLICE, World, level, ms, us, with};
use crate::config::Config;
use crate::decision::Reason;
use crate::event::Event;
use crate::id::{DeviceId, QueueId, TaskId};
use crate::time::Duration;

const ALONE: Option<Option<Duration>> = Some(Some(Duration::from_millis(1_000)));
const AMONG: Option<Option<Duration>> = Some(Some(Duration::from_millis(5)));
const TINY: Option<Option<Duration>> = Some(Some(Duration::from_micros(1)));
const AS_IT_CAME: Option<Option<Duration>> = Some(None);
const UNTOUCHED: Option<Option<Duration>> = None;

fn world() -> World {
    World::with_device(Config::default(), SLICE)
}

#[track_caller]
fn assert_slices<const N: usize>(world: &World, expected: [Option<Option<Duration>>; N]) {
    for (queue, slice) in (1..).zip(expected) {
        assert_eq!(world.slices.get(&queue).copied(), slice, "queue {queue}");
    }
}

#[test]
fn slices_follow_the_mixture_of_priorities() {
    let mut world = world();
    world.task(1, with(4));
    world.task(2, with(4));
    assert_slices(&world, [UNTOUCHED; 2]);
    world.task(3, with(12));
    assert_slices(&world, [TINY, TINY, ALONE]);
    world.task(4, with(9));
    assert_slices(&world, [TINY, TINY, AMONG, AMONG]);
    world.forget(4);
    world.tell(Event::TaskVanished { task: TaskId(4) });
    assert_slices(&world, [TINY, TINY, ALONE]);
    let (task, traits) = (TaskId(3), with(4));
    world.tell(Event::TaskChanged { task, traits });
    assert_slices(&world, [AS_IT_CAME; 3]);
}

#[test]
fn equals_are_left_alone_even_if_all_are_important() {
    let mut world = world();
    world.task(1, with(12));
    world.task(2, with(12));
    world.busy(1);
    world.busy(2);
    world.run(ms(500));
    assert_slices(&world, [UNTOUCHED; 2]);
    assert_eq!(world.running(), [1, 2]);
}

#[test]
fn unimportant_levels_without_an_important_one_are_ordered_by_stopping() {
    let mut world = world();
    world.task(1, with(2));
    world.task(2, with(5));
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    assert_slices(&world, [UNTOUCHED; 2]);
    assert_eq!((world.running(), world.stopped()), (alloc::vec![2], alloc::vec![1]));
}

#[test]
fn the_high_class_is_ordered_by_stopping_and_one_low_queue_runs_beside_it() {
    let mut world = world();
    for (task, priority) in [(1, 2), (2, 2), (3, 12), (4, 9)] {
        world.task(task, with(priority));
        world.busy(task);
    }
    world.run(ms(6));
    assert_eq!((world.running(), world.stopped()), (alloc::vec![1, 3], alloc::vec![2, 4]));
}

#[test]
fn unimportant_queues_are_rotated_slowly() {
    let mut world = world();
    world.task(9, with(12));
    for task in 1..4 {
        world.task(task, with(3));
        world.busy(task);
    }
    world.queue(11, 1, 0);
    world.busy(11);
    let mut seen = alloc::vec::Vec::new();
    world.run(ms(1));
    for _ in 0..500 {
        world.run(ms(1));
        assert!(world.running().len() <= 1, "two tiny slices starve each other");
        seen.extend(world.running());
    }
    seen.dedup();
    assert_eq!(seen, [1, 2, 3, 11, 1, 2], "two queues of one task are two as well");
    assert_eq!(world.preempts(), 3 + 5, "a hundred milliseconds each");
}

#[test]
fn a_queue_that_becomes_important_leaves_its_turn_behind() {
    let mut world = world();
    world.task(9, with(12));
    for task in 1..3 {
        world.task(task, with(3));
        world.busy(task);
    }
    world.run(ms(20));
    assert_eq!(world.running(), [1]);
    let (queue, priority) = (QueueId(1), Some(level(8)));
    world.tell(Event::QueueChanged { queue, priority });
    world.run(us(100));
    assert_eq!(world.running(), [1, 2]);
    let priority = None;
    world.tell(Event::QueueChanged { queue, priority });
    world.run(us(100));
    assert_eq!(world.running().len(), 1);
}

#[test]
fn the_one_that_works_may_be_held_and_nobody_else() {
    let device = DeviceId(0);
    let mut world = world();
    world.task(1, with(3));
    assert_eq!(world.held.get(&device), None, "nobody important is there");
    world.task(2, with(9));
    world.task(3, with(12));
    assert_eq!(world.held.get(&device), Some(&3), "the most important one");
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.held.get(&device), Some(&2), "the one that works");
    world.done(2);
    world.run(ms(20));
    assert_eq!(world.held.get(&device), Some(&2), "across its gap too");
    world.busy(2);
    world.run(ms(6));
    world.busy(3);
    world.run(ms(6));
    assert_eq!(world.held.get(&device), Some(&3), "the more important one");
    world.forget(3);
    let queue = QueueId(3);
    world.held.clear();
    world.tell(Event::QueueVanished { queue });
    assert_eq!(world.held.get(&device), Some(&2));
    let (task, traits) = (TaskId(2), with(3));
    world.tell(Event::TaskChanged { task, traits });
    assert_eq!(world.held.get(&device), None);
}

#[test]
fn a_device_without_slices_holds_the_one_that_works_too() {
    let stop = super::world::STOP;
    let mut world = World::with_device(
        Config::default(),
        crate::capability::Capabilities { hold: true, ..stop },
    );
    world.task(2, with(9));
    world.task(3, with(12));
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.held.get(&DeviceId(0)), Some(&2));
}

#[test]
fn a_low_queue_that_only_looks_idle_is_stopped_before_another_may_run() {
    let mut world = world();
    world.task(1, with(2));
    world.task(2, with(2));
    world.task(3, with(12));
    world.busy(1);
    world.run(ms(20));
    // Its kernel was fetched and takes longer than any quiet time.
    world.fetched(1);
    world.run(ms(50));
    assert!(!world.view(1).active);
    world.busy(2);
    for _ in 0..400 {
        world.run(ms(1));
        let low: alloc::vec::Vec<u64> =
            world.running().into_iter().filter(|queue| *queue < 3).collect();
        assert!(low.len() < 2, "both may run: {low:?}");
    }
    assert!(world.reasons(1).contains(&Reason::InDoubt));
    assert!(world.ran(1) > ms(20), "what may be a long kernel gets turns");
}

#[test]
fn a_low_queue_that_is_found_to_be_idle_is_left_alone() {
    let mut world = world();
    world.task(1, with(2));
    world.task(2, with(2));
    world.task(3, with(12));
    world.busy(1);
    world.run(ms(20));
    world.fetched(1);
    world.run(ms(50));
    world.busy(2);
    world.run(ms(10));
    world.done(1);
    world.run(ms(20));
    let preempts = world.preempts();
    world.run(ms(1_000));
    assert_eq!(world.preempts(), preempts, "nobody is moved any more");
    assert_eq!(world.stopped(), []);
    assert!(world.view(2).active && !world.view(1).active);
}
