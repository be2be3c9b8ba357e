//! Hints: the urgent path that needs no reading of rings.

use super::world::{STOP, World, ms, us, with};
use crate::config::{Config, PolicyKind};
use crate::event::Event;
use crate::id::TaskId;
use crate::time::Duration;

fn world(policy: PolicyKind) -> World {
    let config = Config { policy, ..Config::default() };
    let mut world = World::with_device(config, STOP);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.run(ms(6));
    assert_eq!(world.running(), [1]);
    world
}

fn begin(world: &mut World, task: u64, deadline: Option<Duration>) {
    let task = TaskId(task);
    world.tell(Event::HintBegin { task, deadline });
}

#[test]
fn a_hint_preempts_at_once_and_its_end_gives_the_device_back() {
    let mut world = world(PolicyKind::Strict);
    begin(&mut world, 2, None);
    assert_eq!(world.commands.last().unwrap().0, world.now);
    world.run(us(20));
    assert_eq!(world.stopped(), [1], "before any ring was read");
    world.run(ms(20));
    assert_eq!(world.stopped(), [1], "an empty ring does not end a hint");
    world.tell(Event::HintEnd { task: TaskId(2) });
    world.run(us(600));
    assert_eq!(world.running(), [1]);
}

#[test]
fn a_hint_that_nobody_ends_ends() {
    let mut world = world(PolicyKind::Strict);
    begin(&mut world, 2, None);
    world.run(ms(49));
    assert_eq!(world.stopped(), [1]);
    world.run(ms(2));
    assert_eq!(world.running(), [1]);
    begin(&mut world, 2, None);
    world.run(ms(30));
    begin(&mut world, 2, None);
    world.run(ms(30));
    assert_eq!(world.stopped(), [1], "said again, it counts from then");
}

#[test]
fn a_hint_does_not_end_the_work_that_came_of_it() {
    let mut world = world(PolicyKind::Strict);
    begin(&mut world, 2, None);
    world.busy(2);
    world.run(ms(6));
    world.tell(Event::HintEnd { task: TaskId(2) });
    world.run(ms(20));
    assert_eq!(world.running(), [2], "its ring is not empty");
}

#[test]
fn a_hint_of_an_unimportant_task_disturbs_nobody() {
    let mut world = world(PolicyKind::Strict);
    world.task(3, with(1));
    begin(&mut world, 3, None);
    world.run(us(100));
    assert_eq!((world.running(), world.stopped()), ([1].into(), [3].into()));
    world.task(4, with(12));
    begin(&mut world, 4, None);
    world.queue(44, 4, 0);
    assert!(world.view(44).active, "a queue born under a hint is expected");
}

#[test]
fn the_deadline_of_a_hint_ends_with_it() {
    let mut world = world(PolicyKind::Deadline);
    world.tell(Event::TaskChanged { task: TaskId(1), traits: with(9) });
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.running(), [2], "without deadlines by priority");
    begin(&mut world, 1, Some(ms(5)));
    world.run(us(100));
    assert_eq!(world.running(), [1]);
    world.tell(Event::HintEnd { task: TaskId(1) });
    world.run(us(100));
    assert_eq!(world.running(), [2]);
}
