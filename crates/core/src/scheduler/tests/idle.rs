//! When a queue counts as idle, and when it pays to give its device away.

use alloc::vec;

use super::world::{STOP, World, ms, us, with};
use crate::capability::Capabilities;
use crate::config::Config;
use crate::decision::Reason;
use crate::event::Event;
use crate::id::DeviceId;

/// Rings are read every millisecond here.
fn world(capabilities: Capabilities) -> World {
    let config = Config { interval: ms(1), ..Config::default() };
    let mut world = World::with_device(config, capabilities);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.busy(2);
    world.run(us(1500));
    assert_eq!((world.running(), world.stopped()), (vec![2], vec![1]));
    world
}

#[test]
fn an_empty_ring_is_not_an_idle_queue_before_the_quiet_time() {
    let mut world = world(Capabilities { quiet: ms(3), ..STOP });
    world.fetched(2);
    world.run(us(500) + ms(2));
    assert_eq!(world.running(), [2], "fetched is not finished");
    world.run(ms(2));
    assert_eq!(world.running(), [1]);
}

#[test]
fn a_device_that_can_tell_needs_no_quiet_time() {
    let mut world = world(Capabilities { quiet: ms(3), ..STOP });
    world.done(2);
    world.run(us(600));
    assert_eq!(world.running(), [1]);
}

#[test]
fn work_that_comes_and_goes_between_two_readings_is_work() {
    let mut world = world(Capabilities { quiet: us(1500), ..STOP });
    for _ in 0..10 {
        world.busy(2);
        world.fetched(2);
        world.run(ms(1));
        assert_eq!(world.running(), [2]);
    }
}

#[test]
fn a_queue_that_is_off_cannot_show_that_it_is_done() {
    let mut world = world(STOP);
    world.done(1);
    world.run(ms(10));
    assert!(world.view(1).active, "its kernel may be saved half-way");
    world.done(2);
    world.run(us(1500));
    assert_eq!(world.stopped(), [] as [u64; 0]);
    world.run(ms(2));
    assert!(!world.view(1).active);
}

/// Queue 2 has work for a millisecond, then none for a millisecond, and so on.
fn pulse(world: &mut World, count: usize) {
    for _ in 0..count {
        world.done(2);
        world.run(ms(1));
        world.busy(2);
        world.run(ms(1));
    }
}

#[test]
fn a_device_is_not_given_away_for_a_gap_that_does_not_pay() {
    let mut dear = world(Capabilities { preempt_cost: us(600), resume_cost: us(400), ..STOP });
    pulse(&mut dear, 3);
    let before = dear.preempts();
    pulse(&mut dear, 10);
    assert_eq!(dear.preempts(), before, "the gaps are shorter than a switch");
    let lingers = |reason: &Reason| matches!(reason, Reason::Linger { .. });
    assert!(dear.reasons(2).iter().any(lingers));
    dear.done(2);
    dear.run(ms(5));
    assert_eq!(dear.running(), [1], "nobody waits longer than the limit");
}

#[test]
fn a_cost_that_changes_counts_from_then_on() {
    let mut world = world(STOP);
    pulse(&mut world, 3);
    let device = DeviceId(0);
    let (preempt_cost, resume_cost) = (us(600), us(400));
    world.tell(Event::DeviceCost { device, preempt_cost, resume_cost });
    pulse(&mut world, 3);
    let before = world.preempts();
    pulse(&mut world, 10);
    assert_eq!(world.preempts(), before, "now the gaps are shorter than a switch");
}

#[test]
fn a_device_is_given_away_where_a_switch_is_cheap() {
    let mut cheap = world(STOP);
    pulse(&mut cheap, 3);
    let before = cheap.preempts();
    pulse(&mut cheap, 10);
    assert_eq!(cheap.preempts(), before + 10, "once for every gap");
}

#[test]
fn the_time_a_queue_was_kept_off_is_not_one_of_its_gaps() {
    let dear = Capabilities { preempt_cost: us(600), resume_cost: us(400), ..STOP };
    let mut world = world(dear);
    pulse(&mut world, 3);
    world.task(3, with(15));
    // Queue 2 pauses, and before it goes on somebody more important comes for a long time.
    world.fetched(2);
    world.run(us(1200));
    world.busy(3);
    world.run(ms(1000));
    assert_eq!(world.running(), [3]);
    world.busy(2);
    world.run(ms(5));
    world.done(3);
    world.run(ms(5));
    let before = world.preempts();
    pulse(&mut world, 5);
    assert_eq!(world.preempts(), before, "its gaps are as short as ever");
}

#[test]
fn a_linger_ends_when_it_was_said_to_end_and_never_later_than_the_limit() {
    // The gaps of a millisecond ask for two, but only a quarter of one is allowed.
    let config = Config { interval: ms(1), linger_max: us(250), ..Config::default() };
    let dear = Capabilities { preempt_cost: us(600), resume_cost: us(400), ..STOP };
    let mut world = world(dear);
    world.reconfigure(config);
    pulse(&mut world, 3);
    assert!(world.view(2).active);
    // The next reading, which shows that it is done, is half a millisecond away.
    world.done(2);
    world.run(us(500));
    let told = world.now;
    assert!(world.view(2).active, "it lingers");
    world.run(us(250));
    assert!(!world.view(2).active, "still lingers {}", world.now.since(told));
}
