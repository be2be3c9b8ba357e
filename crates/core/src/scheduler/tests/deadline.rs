//! Earliest deadline first.

use super::world::{STOP, World, ms, us, with};
use crate::config::{Config, PolicyKind};
use crate::event::{Event, TaskTraits};
use crate::id::TaskId;
use crate::time::Duration;

fn world() -> World {
    let config = Config { policy: PolicyKind::Deadline, ..Config::default() };
    World::with_device(config, STOP)
}

fn due(deadline: Duration) -> TaskTraits {
    TaskTraits { deadline: Some(deadline), ..with(0) }
}

#[test]
fn the_earliest_deadline_runs_and_no_deadline_waits() {
    let mut world = world();
    world.task(1, due(ms(300)));
    world.task(2, due(ms(200)));
    world.task(3, with(7));
    for (queue, first) in [(3, 3), (1, 1), (2, 2)] {
        world.busy(queue);
        world.run(ms(6));
        assert_eq!(world.running(), [first]);
    }
    world.done(2);
    world.run(ms(6));
    assert_eq!(world.running(), [1]);
    world.done(1);
    world.run(ms(6));
    assert_eq!(world.running(), [3]);
}

#[test]
fn a_later_arrival_with_the_same_span_waits() {
    let mut world = world();
    world.task(1, due(ms(100)));
    world.task(2, due(ms(100)));
    world.busy(2);
    world.run(ms(20));
    world.busy(1);
    world.run(ms(20));
    assert_eq!((world.running(), world.stopped()), (alloc::vec![2], alloc::vec![1]));
}

#[test]
fn a_deadline_missed_for_long_is_renewed() {
    let mut world = world();
    world.task(1, due(ms(10)));
    world.task(2, due(ms(80)));
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.running(), [1]);
    world.run(ms(200));
    assert!(world.ran(2) > ms(10), "{}: nobody is late for ever", world.ran(2));
    assert!(world.ran(1) > ms(100), "{}", world.ran(1));
}

#[test]
fn equal_deadlines_share_the_device() {
    let mut world = world();
    world.task(1, due(ms(100)));
    world.task(2, due(ms(100)));
    world.task(3, with(7));
    for queue in [1, 2, 3] {
        world.busy(queue);
    }
    world.run(ms(50));
    assert_eq!(world.running(), [1, 2]);
}

#[test]
fn a_task_can_give_up_its_deadline() {
    let mut world = world();
    world.task(1, due(ms(100)));
    world.task(2, with(7));
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.running(), [1]);
    let (task, traits) = (TaskId(1), with(0));
    world.tell(Event::TaskChanged { task, traits });
    world.run(us(100));
    assert_eq!(world.running(), [2]);
}

#[test]
fn no_deadline_of_the_low_class_stops_the_high_one() {
    let mut world = world();
    world.task(1, TaskTraits { deadline: Some(us(1)), ..with(7) });
    world.task(2, with(8));
    world.busy(2);
    world.run(ms(6));
    world.busy(1);
    world.run(ms(6));
    assert_eq!(world.running(), [2]);
    world.tell(Event::HintBegin { task: TaskId(1), deadline: Some(us(1)) });
    world.run(ms(6));
    assert_eq!(world.running(), [2], "nor does one that comes with a hint");
    world.done(2);
    world.run(ms(6));
    assert_eq!(world.running(), [1]);
}
