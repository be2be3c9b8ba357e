//! Nobody waits for ever, if so configured.

use alloc::vec::Vec;

use super::world::{SLICE, STOP, World, ms, us, with};
use crate::capability::Capabilities;
use crate::config::{Aging, Config};
use crate::decision::Reason;
use crate::event::{Event, TaskTraits};
use crate::id::{GangId, QueueId, TaskId};

fn world(capabilities: Capabilities) -> World {
    let aging = Some(Aging { after: ms(100), grant: ms(10) });
    let config = Config { aging, ..Config::default() };
    World::with_device(config, capabilities)
}

#[test]
fn who_waited_long_runs_for_a_short_while() {
    let mut world = world(STOP);
    world.task(1, with(0));
    world.task(2, with(15));
    world.busy(1);
    world.busy(2);
    world.run(ms(99));
    assert_eq!(world.running(), [2]);
    world.run(ms(2));
    assert_eq!((world.running(), world.stopped()), (alloc::vec![1], alloc::vec![2]));
    world.run(ms(11));
    assert_eq!(world.running(), [2]);
    assert!(world.reasons(1).contains(&Reason::Aged { waited: ms(100) }));
    world.run(ms(1000));
    let share = world.ran(1).as_micros() * 100 / 1_112_000;
    assert!((8..=10).contains(&share), "{share}% for the lowest");
}

#[test]
fn without_aging_the_lowest_waits_for_ever() {
    let mut world = World::with_device(Config::default(), STOP);
    world.task(1, with(0));
    world.task(2, with(15));
    world.busy(1);
    world.busy(2);
    world.run(ms(5000));
    assert_eq!(world.ran(1), us(20));
    assert!(world.view(1).starving > ms(4900));
}

#[test]
fn everybody_who_waits_is_helped_in_turn() {
    let mut world = world(STOP);
    for task in 0..5 {
        world.task(task, with(u8::try_from(task).unwrap()));
        world.busy(task);
    }
    world.run(ms(2000));
    for task in 0..4 {
        assert!(world.ran(task) > ms(50), "{task}: {}", world.ran(task));
    }
}

#[test]
fn aging_can_be_switched_off_in_the_middle_of_a_grant() {
    let mut world = world(STOP);
    world.task(1, with(0));
    world.task(2, with(15));
    world.busy(1);
    world.busy(2);
    world.run(ms(102));
    assert_eq!(world.running(), [1]);
    world.reconfigure(Config::default());
    world.run(ms(11));
    assert_eq!(world.running(), [2], "the grant ends as promised");
    world.run(ms(1000));
    assert_eq!(world.running(), [2], "and there is no other");
}

/// A device with slices: one important task and `count` unimportant ones, all at work.
fn shadowed(count: u64) -> World {
    let mut world = world(SLICE);
    for task in 1..=count {
        world.task(task, with(3));
        world.busy(task);
    }
    world.task(99, with(12));
    world.busy(99);
    world
}

#[test]
fn the_low_class_gets_a_turn_while_the_high_class_is_stopped() {
    let mut world = shadowed(1);
    world.run(ms(99));
    assert_eq!(world.running(), [1, 99], "the hardware prefers queue 99 by itself");
    world.run(ms(2));
    assert_eq!((world.running(), world.stopped()), (alloc::vec![1], alloc::vec![99]));
    assert!(world.reasons(99).contains(&Reason::LowTurn));
    world.run(ms(11));
    assert_eq!(world.running(), [1, 99]);
}

#[test]
fn many_unimportant_queues_in_the_shadow_do_not_keep_each_other_there() {
    // One of them has always waited too long; a turn among themselves would be worth nothing.
    let mut world = shadowed(30);
    world.run(ms(2000));
    let turns: Vec<_> =
        (world.reasons(99).into_iter()).filter(|reason| *reason == Reason::LowTurn).collect();
    assert!(turns.len() >= 8, "the high class was stopped {} times", turns.len());
}

#[test]
fn the_high_class_returns_when_the_low_class_has_had_enough() {
    let mut world = shadowed(1);
    world.run(ms(101));
    assert_eq!(world.stopped(), [99]);
    world.done(1);
    world.run(ms(6));
    assert_eq!(world.running(), [99], "before the grant is over");
}

#[test]
fn a_gang_that_starves_is_helped_on_all_its_devices() {
    let mut world = world(STOP);
    world.device(1, STOP);
    let gang = Some(GangId(7));
    let traits = TaskTraits { gang, ..with(1) };
    world.task(1, traits);
    world.queue(11, 1, 1);
    world.task(2, with(9));
    let task = TaskId(3);
    let traits = with(9);
    world.tell(Event::TaskAppeared { task, traits });
    world.queue(3, 3, 1);
    for queue in [1, 11, 2, 3] {
        world.busy(queue);
    }
    // It is off on device 1 later than on device 0, but starves as a whole.
    world.slow.insert(QueueId(11), ms(20));
    world.run(ms(101));
    assert_eq!(world.running(), [1, 11]);
    world.run(ms(40));
    assert_eq!(world.running(), [2, 3]);
}
