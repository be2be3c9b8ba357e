//! Tasks that run on all of their devices, or on none.

use alloc::vec;

use super::world::{STOP, World, ms, us, with};
use crate::capability::{Capabilities, Mechanism};
use crate::config::{Config, PolicyKind};
use crate::decision::Reason;
use crate::event::{Event, TaskTraits};
use crate::id::{DeviceId, GangId, TaskId};
use crate::time::Duration;

/// Two devices.
fn world(policy: PolicyKind) -> World {
    let config = Config { policy, ..Config::default() };
    let mut world = World::with_device(config, STOP);
    world.device(1, STOP);
    world
}

/// A task with one queue of the same number.
fn task(world: &mut World, number: u64, device: u32, traits: TaskTraits) {
    let task = TaskId(number);
    world.tell(Event::TaskAppeared { task, traits });
    world.queue(number, number, device);
    world.busy(number);
}

fn in_gang(gang: u64, priority: u8) -> TaskTraits {
    TaskTraits { gang: Some(GangId(gang)), ..with(priority) }
}

#[test]
fn a_gang_that_cannot_run_somewhere_is_off_everywhere() {
    let mut world = world(PolicyKind::Strict);
    task(&mut world, 1, 0, in_gang(7, 5));
    task(&mut world, 2, 1, in_gang(7, 5));
    task(&mut world, 3, 0, with(2));
    world.run(ms(6));
    assert_eq!((world.running(), world.stopped()), (vec![1, 2], vec![3]));

    task(&mut world, 4, 1, with(9));
    world.run(ms(6));
    assert_eq!(world.stopped(), [1, 2]);
    assert_eq!(world.running(), [3, 4], "device 0 is not wasted");
    let gang = GangId(7);
    assert!(world.reasons(1).contains(&Reason::GangBlocked { gang }));

    world.done(4);
    world.run(ms(6));
    assert_eq!((world.running(), world.stopped()), (vec![1, 2], vec![3]));
}

#[test]
fn a_device_that_goes_away_no_longer_blocks_a_gang() {
    let mut world = world(PolicyKind::Strict);
    task(&mut world, 1, 0, in_gang(7, 5));
    task(&mut world, 2, 1, in_gang(7, 5));
    task(&mut world, 4, 1, with(9));
    world.run(ms(6));
    assert_eq!(world.stopped(), [1, 2]);
    world.forget(2);
    world.forget(4);
    let device = DeviceId(1);
    world.tell(Event::DeviceVanished { device });
    world.run(us(100));
    assert_eq!(world.running(), [1], "at once");
}

#[test]
fn a_device_that_is_only_watched_blocks_nobody() {
    let mut world = world(PolicyKind::RoundRobin);
    world.device(2, Capabilities { mechanism: Mechanism::Watch, ..STOP });
    task(&mut world, 3, 2, with(9));
    task(&mut world, 1, 0, in_gang(7, 5));
    task(&mut world, 2, 2, in_gang(7, 5));
    world.run(ms(50));
    assert_eq!((world.running(), world.commands.len()), (vec![1, 2, 3], 0));
}

#[test]
fn the_more_important_gang_wins_whoever_came_first() {
    // Gang 8 comes first on device 1, but gang 7 has the most important member of all.
    for order in [[7, 8], [8, 7]] {
        let mut world = world(PolicyKind::Strict);
        for gang in order {
            let priorities = if gang == 7 { [12, 3] } else { [2, 9] };
            for (device, priority) in (0..).zip(priorities) {
                let number = gang * 10 + u64::from(device);
                task(&mut world, number, device, in_gang(gang, priority));
                world.run(ms(6));
            }
        }
        assert_eq!(world.running(), [70, 71], "{order:?}");
        assert_eq!(world.stopped(), [80, 81], "{order:?}");
    }
}

#[test]
fn two_gangs_with_opposite_interests_never_block_each_other() {
    for policy in PolicyKind::ALL {
        let mut world = world(policy);
        for (gang, deadlines) in [(7, [50, 90]), (8, [90, 50])] {
            for (device, deadline) in (0..).zip(deadlines) {
                let number = gang * 10 + u64::from(device);
                let priority = if deadline == 50 { 10 } else { 5 };
                let deadline = Some(ms(deadline));
                let traits = in_gang(gang, priority);
                task(&mut world, number, device, TaskTraits { deadline, ..traits });
            }
        }
        // Not in the middle of a switch.
        world.run(us(500));
        for _ in 0..100 {
            world.run(ms(3));
            let running = world.running();
            let whole = running == [70, 71] || running == [80, 81];
            assert!(whole, "{policy}: {running:?} runs");
        }
    }
}

/// Everybody's time on the device so far.
fn ran<const N: usize>(world: &World, queues: [u64; N]) -> [Duration; N] {
    queues.map(|queue| world.ran(queue))
}

#[test]
fn gangs_take_turns_as_a_whole() {
    for policy in [PolicyKind::RoundRobin, PolicyKind::Fair] {
        let mut world = world(policy);
        for (number, device) in [(70, 0), (80, 1), (81, 0), (71, 1)] {
            task(&mut world, number, device, in_gang(number / 10, 5));
        }
        world.run(ms(1000));
        for time in ran(&world, [70, 71, 80, 81]) {
            assert!(time > ms(450), "{policy}: {time} of a second");
        }
    }
}

#[test]
fn a_gang_is_not_starved_by_turns_that_end_at_different_times() {
    for policy in [PolicyKind::RoundRobin, PolicyKind::Fair] {
        let mut world = world(policy);
        task(&mut world, 1, 0, with(5));
        world.run(ms(1));
        task(&mut world, 2, 1, with(5));
        world.run(ms(6));
        task(&mut world, 70, 0, in_gang(7, 5));
        task(&mut world, 71, 1, in_gang(7, 5));
        world.run(ms(2000));
        let [first, second, gang, rest] = ran(&world, [1, 2, 70, 71]);
        assert!(gang > ms(500) && rest > ms(500), "{policy}: {gang} {rest}");
        assert!(first > ms(500) && second > ms(500), "{policy}: {first} {second}");
    }
}

#[test]
fn members_of_a_gang_on_one_device_have_their_turn_together() {
    let mut world = world(PolicyKind::RoundRobin);
    task(&mut world, 70, 0, in_gang(7, 5));
    task(&mut world, 1, 0, with(5));
    task(&mut world, 71, 0, in_gang(7, 5));
    world.run(us(500));
    for _ in 0..50 {
        world.run(ms(3));
        let running = world.running();
        assert!(running == [70, 71] || running == [1], "{running:?}");
    }
    assert!(world.ran(1) > ms(50) && world.ran(71) > ms(50));
}

#[test]
fn a_member_that_wakes_and_sleeps_does_not_prolong_its_gangs_turn() {
    let mut world = world(PolicyKind::RoundRobin);
    task(&mut world, 70, 0, in_gang(7, 5));
    task(&mut world, 71, 1, in_gang(7, 5));
    task(&mut world, 1, 0, with(5));
    for _ in 0..100 {
        world.done(71);
        world.run(ms(5));
        world.busy(71);
        world.run(ms(5));
    }
    assert!(world.ran(1) > ms(300), "{} of a second", world.ran(1));
}
