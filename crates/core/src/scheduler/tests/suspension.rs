//! A suspension is stronger than any priority.

use alloc::vec;

use super::world::{SLICE, STOP, World, ms, with};
use crate::config::{Aging, Config};
use crate::decision::Reason;
use crate::event::{Event, TaskTraits};
use crate::id::{DeviceId, GangId, QueueId, TaskId};

fn suspend(world: &mut World, task: u64, suspended: bool) {
    world.tell(Event::TaskSuspended { task: TaskId(task), suspended });
}

fn suspend_queue(world: &mut World, queue: u64, suspended: bool) {
    world.tell(Event::QueueSuspended { queue: QueueId(queue), suspended });
}

#[test]
fn the_most_important_goes_and_comes_back() {
    let mut world = World::with_device(Config::default(), STOP);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    assert_eq!((world.running(), world.stopped()), (vec![2], vec![1]));
    suspend(&mut world, 2, true);
    world.run(ms(50));
    assert_eq!((world.running(), world.stopped()), (vec![1], vec![2]));
    assert_eq!(world.reasons(2), [Reason::Suspended]);
    suspend(&mut world, 2, false);
    world.run(ms(1));
    assert_eq!((world.running(), world.stopped()), (vec![2], vec![1]));
}

#[test]
fn it_stays_off_when_nobody_else_wants_the_device() {
    for capabilities in [STOP, SLICE] {
        let mut world = World::with_device(Config::default(), capabilities);
        world.task(1, with(12));
        world.busy(1);
        world.run(ms(6));
        suspend(&mut world, 1, true);
        world.run(ms(500));
        assert_eq!(world.stopped(), [1]);
        assert_eq!(world.preempts(), 1);
        suspend(&mut world, 1, false);
        world.run(ms(1));
        assert_eq!(world.running(), [1]);
    }
}

#[test]
fn idle_and_new_queues_of_it_are_taken_off_as_well() {
    let mut world = World::with_device(Config::default(), SLICE);
    world.task(1, with(3));
    world.done(1);
    world.run(ms(20));
    suspend(&mut world, 1, true);
    world.queue(11, 1, 0);
    world.run(ms(20));
    assert_eq!(world.stopped(), [1, 11]);
    world.tell(Event::HintBegin { task: TaskId(1), deadline: None });
    world.run(ms(20));
    assert_eq!(world.stopped(), [1, 11], "a hint is no way out");
    suspend(&mut world, 1, false);
    world.run(ms(200));
    assert_eq!(world.stopped(), [] as [u64; 0]);
}

#[test]
fn it_does_not_starve() {
    let aging = Some(Aging { after: ms(20), grant: ms(5) });
    for capabilities in [STOP, SLICE] {
        let mut world = World::with_device(Config { aging, ..Config::default() }, capabilities);
        world.task(1, with(2));
        world.task(2, with(12));
        world.busy(1);
        world.busy(2);
        world.run(ms(6));
        suspend(&mut world, 1, true);
        // A turn that was given before may still end.
        world.run(ms(30));
        let preempts = world.preempts();
        world.run(ms(300));
        assert_eq!((world.running(), world.stopped()), (vec![2], vec![1]));
        assert_eq!(world.preempts(), preempts, "nobody was interrupted for it");
    }
}

#[test]
fn a_gang_is_suspended_as_a_whole() {
    let mut world = World::with_device(Config::default(), STOP);
    world.device(1, STOP);
    let gang = TaskTraits { gang: Some(GangId(1)), ..with(5) };
    world.task(1, gang);
    world.tell(Event::TaskAppeared { task: TaskId(2), traits: gang });
    world.queue(2, 2, 1);
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.running(), [1, 2]);
    suspend(&mut world, 2, true);
    world.run(ms(6));
    assert_eq!(world.stopped(), [1, 2]);
    assert_eq!(world.reasons(1), [Reason::GangBlocked { gang: GangId(1) }]);
    suspend(&mut world, 2, false);
    world.run(ms(6));
    assert_eq!(world.running(), [1, 2]);
}

#[test]
fn the_device_is_not_held_for_it() {
    let mut world = World::with_device(Config::default(), SLICE);
    world.task(1, with(9));
    world.task(2, with(12));
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.held.get(&DeviceId(0)), Some(&2));
    suspend(&mut world, 2, true);
    world.run(ms(6));
    assert_eq!(world.held.get(&DeviceId(0)), Some(&1));
    suspend(&mut world, 1, true);
    world.run(ms(6));
    assert_eq!(world.held.get(&DeviceId(0)), None);
}

#[test]
fn it_can_vanish_meanwhile() {
    let mut world = World::with_device(Config::default(), STOP);
    world.task(1, with(9));
    world.busy(1);
    world.run(ms(6));
    suspend(&mut world, 1, true);
    world.forget(1);
    world.tell(Event::TaskVanished { task: TaskId(1) });
    world.run(ms(6));
    assert!(
        world
            .scheduler
            .handle_event(world.now, Event::TaskSuspended { task: TaskId(1), suspended: false })
            .is_err()
    );
}

#[test]
fn one_queue_is_off_while_the_other_of_its_task_runs() {
    for capabilities in [STOP, SLICE] {
        let mut world = World::with_device(Config::default(), capabilities);
        world.task(1, with(9));
        world.queue(11, 1, 0);
        world.busy(1);
        world.busy(11);
        suspend_queue(&mut world, 11, true);
        world.run(ms(300));
        assert_eq!((world.running(), world.stopped()), (vec![1], vec![11]));
        assert_eq!(world.reasons(11).last(), Some(&Reason::Suspended));
        suspend_queue(&mut world, 11, false);
        world.run(ms(300));
        assert!(world.view(11).account.ran > ms(10), "{:?}", world.view(11));
    }
}

#[test]
fn a_queue_is_off_as_long_as_it_or_its_task_is_suspended() {
    let mut world = World::with_device(Config::default(), STOP);
    world.task(1, with(9));
    world.busy(1);
    suspend_queue(&mut world, 1, true);
    suspend(&mut world, 1, true);
    world.run(ms(6));
    suspend(&mut world, 1, false);
    world.run(ms(6));
    assert_eq!(world.stopped(), [1], "the queue itself is still suspended");
    suspend(&mut world, 1, true);
    suspend_queue(&mut world, 1, false);
    world.run(ms(6));
    assert_eq!(world.stopped(), [1], "its task is still suspended");
    suspend(&mut world, 1, false);
    world.run(ms(6));
    assert_eq!(world.running(), [1]);
    assert_eq!(world.preempts(), 1);
}

#[test]
fn a_gang_cannot_go_on_without_one_of_its_queues() {
    let mut world = World::with_device(Config::default(), STOP);
    world.device(1, STOP);
    let gang = TaskTraits { gang: Some(GangId(1)), ..with(5) };
    world.task(1, gang);
    world.tell(Event::TaskAppeared { task: TaskId(2), traits: gang });
    world.queue(2, 2, 1);
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    suspend_queue(&mut world, 2, true);
    world.run(ms(6));
    assert_eq!(world.stopped(), [1, 2]);
    suspend_queue(&mut world, 2, false);
    world.run(ms(6));
    assert_eq!(world.running(), [1, 2]);
}
