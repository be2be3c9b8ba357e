//! Commands that fail or take too long.

use super::world::{STOP, World, ms, us, with};
use crate::command::Command;
use crate::config::{Config, PolicyKind};
use crate::decision::Reason;
use crate::event::Fault;
use crate::id::QueueId;
use crate::queue::Standing;
use crate::time::Duration;

const REFUSED: Fault = Fault::Refused(0x65);

fn world() -> World {
    let mut world = World::with_device(Config::default(), STOP);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.run(ms(6));
    world.busy(2);
    world
}

/// The times from each command for a queue to the next.
fn pauses(world: &World, queue: u64) -> alloc::vec::Vec<Duration> {
    let about = |command: &Command| command.queue() == QueueId(queue);
    let times = world.commands.iter().filter(|(_, command)| about(command));
    let times: alloc::vec::Vec<_> = times.map(|&(at, _)| at).collect();
    times.windows(2).map(|pair| pair[1].since(pair[0])).collect()
}

#[test]
fn a_preempt_that_fails_is_tried_again_ever_more_slowly() {
    let mut world = world();
    world.broken.insert(QueueId(1));
    world.run(ms(800));
    let expected = [5, 10, 20, 40, 80, 160, 200].map(|pause| ms(pause) + us(20));
    assert_eq!(pauses(&world, 1)[..7], expected);
    assert_eq!(world.reasons(1)[1], Reason::PreemptFailed { fault: REFUSED, retry_in: ms(5) });
    let sentence = "the preempt failed (the device refused with status 0x65); next try in 5.00ms";
    assert_eq!(world.told(1)[1], sentence);
    assert!(world.reasons(1)[1].is_fault());
    assert_eq!(world.running(), [1, 2], "what cannot be stopped runs on");

    world.broken.clear();
    world.run(ms(201));
    assert_eq!(world.stopped(), [1]);
    let commands = world.commands.len();
    world.done(2);
    world.run(ms(6));
    world.busy(2);
    world.broken.insert(QueueId(1));
    world.run(ms(12));
    assert_eq!(world.commands.len(), commands + 3, "a success is a new beginning");
}

#[test]
fn a_resume_that_fails_is_tried_again_and_others_may_run() {
    let mut world = world();
    world.task(3, with(1));
    world.busy(3);
    world.run(ms(6));
    assert_eq!(world.stopped(), [1, 3]);
    world.broken.insert(QueueId(1));
    world.done(2);
    world.run(ms(6));
    let retry_in = ms(5);
    let fault = REFUSED;
    assert!(world.reasons(1).contains(&Reason::ResumeFailed { fault, retry_in }));
    assert_eq!(world.running(), [3], "the device is not left idle meanwhile");
    world.broken.clear();
    world.run(ms(30));
    assert_eq!((world.running(), world.stopped()), (alloc::vec![1], alloc::vec![3]));
}

#[test]
fn a_preempt_that_takes_too_long_is_reported_once_and_still_awaited() {
    let mut world = world();
    world.slow.insert(QueueId(1), ms(450));
    world.run(ms(400));
    assert_eq!(world.view(1).standing, Standing::Preempting);
    let overdue = Reason::Overdue { after: ms(100) };
    assert_eq!(world.reasons(1)[1..], [overdue]);
    assert_eq!(world.view(1).account.faults, 1);
    world.run(ms(100));
    assert_eq!(world.stopped(), [1]);
    world.done(2);
    world.run(ms(6));
    assert_eq!(world.running(), [1], "late is not never");
}

#[test]
fn a_queue_with_a_broken_command_does_not_hold_up_its_betters() {
    let mut world = world();
    world.task(3, with(14));
    world.broken.insert(QueueId(1));
    world.run(ms(6));
    world.busy(3);
    world.run(ms(6));
    assert_eq!(world.stopped(), [2]);
    assert!(world.running().contains(&3));
}

#[test]
fn a_preempt_that_finishes_in_time_is_not_reported() {
    let mut world = world();
    world.run(ms(300));
    assert_eq!((world.stopped(), world.view(1).account.faults), (alloc::vec![1], 0));
}

#[test]
fn a_preempt_that_hangs_does_not_keep_the_others_off() {
    let config = Config { policy: PolicyKind::RoundRobin, ..Config::default() };
    let mut world = World::with_device(config, STOP);
    for task in 1..4 {
        world.task(task, with(3));
        world.busy(task);
    }
    world.run(ms(8));
    let [first] = world.running()[..] else { panic!("equals take turns") };
    world.slow.insert(QueueId(first), ms(900));
    world.run(ms(60));
    assert_eq!(world.view(first).standing, Standing::Preempting);
    let on = |world: &World| (1..4).filter(|q| world.view(*q).standing == Standing::On).count();
    assert_eq!(on(&world), 0, "its preempt is awaited");
    world.run(ms(100));
    assert_eq!(on(&world), 1, "but not for ever");
}
