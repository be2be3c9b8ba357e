//! The highest priority runs.

use alloc::vec;
use alloc::vec::Vec;

use super::world::{STOP, World, level, ms, us, with};
use crate::capability::{Capabilities, Mechanism};
use crate::command::Command;
use crate::config::{Config, PolicyKind};
use crate::event::Event;
use crate::id::{QueueId, TaskId};
use crate::priority::Priority;

fn world() -> World {
    World::with_device(Config::default(), STOP)
}

#[test]
fn an_inversion_seen_in_the_rings_is_corrected_and_undone() {
    let mut world = world();
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.run(ms(20));
    assert_eq!(world.running(), [1]);
    assert!(world.commands.is_empty(), "nobody is in the way of anybody");

    world.busy(2);
    world.run(ms(6));
    assert_eq!((world.running(), world.stopped()), (vec![2], vec![1]));

    world.done(2);
    world.run(ms(6));
    assert_eq!((world.running(), world.stopped()), (vec![1], vec![]));
    assert_eq!(
        world.told(1),
        [
            "queue2 waits with priority 12 while this one runs with 2",
            "nobody more important has work; it was off 4.98ms",
        ]
    );
    let account = world.view(1).account;
    assert_eq!((account.preempts, account.resumes), (1, 1));
    let latency = world.scheduler.preempt_latency(world.view(1).device);
    assert_eq!(latency.unwrap().max(), us(20));
}

#[test]
fn all_sixteen_levels_are_told_apart() {
    let mut world = world();
    for priority in 0..Priority::LEVELS {
        world.task(u64::from(priority), with(priority));
        world.busy(u64::from(priority));
    }
    for top in (0..u64::from(Priority::LEVELS)).rev() {
        world.run(ms(6));
        assert_eq!(world.running(), [top]);
        assert_eq!(world.stopped(), (0..top).collect::<Vec<_>>());
        world.done(top);
    }
}

#[test]
fn equals_share_the_device() {
    let mut world = world();
    for task in 1..4 {
        world.task(task, with(5));
        world.busy(task);
    }
    world.run(ms(100));
    assert_eq!(world.running(), [1, 2, 3]);
    assert!(world.commands.is_empty());
}

#[test]
fn a_task_can_change_its_priority_while_it_runs() {
    let mut world = world();
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.running(), [2]);
    let (task, traits) = (TaskId(1), with(13));
    world.tell(Event::TaskChanged { task, traits });
    world.run(us(100));
    assert_eq!(world.running(), [1], "at once, without another reading");
}

#[test]
fn one_queue_of_a_task_can_have_a_priority_of_its_own() {
    let mut world = world();
    world.task(1, with(2));
    world.queue(11, 1, 0);
    world.task(2, with(5));
    for queue in [1, 11, 2] {
        world.busy(queue);
    }
    world.run(ms(6));
    assert_eq!(world.running(), [2]);
    let (queue, priority) = (QueueId(11), Some(level(9)));
    world.tell(Event::QueueChanged { queue, priority });
    world.run(us(100));
    assert_eq!((world.running(), world.stopped()), (vec![11], vec![1, 2]));
    let priority = None;
    world.tell(Event::QueueChanged { queue, priority });
    world.run(us(100));
    assert_eq!(world.running(), [2], "its task's priority counts again");
}

#[test]
fn the_policy_can_change_while_everything_runs() {
    let mut world = world();
    world.task(1, with(2));
    world.task(2, with(7));
    world.busy(1);
    world.busy(2);
    world.run(ms(10));
    assert_eq!((world.running(), world.ran(1)), (vec![2], us(20)));
    let fair = Config { policy: PolicyKind::Fair, ..Config::default() };
    world.reconfigure(fair);
    world.run(ms(100));
    assert!(world.ran(1) > ms(40), "{}", world.ran(1));
    world.reconfigure(Config::default());
    world.run(us(100));
    assert_eq!(world.running(), [2]);
    let slice = crate::time::Duration::ZERO;
    let bad = Config { slice, ..fair };
    assert!(world.scheduler.set_config(world.now, bad).is_err());
    assert_eq!(*world.scheduler.config(), Config::default());
}

#[test]
fn a_device_that_can_only_be_watched_is_watched() {
    let watch = Capabilities { mechanism: Mechanism::Watch, ..STOP };
    let mut world = World::with_device(Config::default(), watch);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.busy(2);
    world.run(ms(50));
    assert_eq!(world.running(), [1, 2]);
    assert!(world.commands.is_empty());
}

#[test]
fn the_hardware_is_told_priorities_where_it_listens() {
    let listening = Capabilities { hardware_priority: true, ..STOP };
    let mut world = World::with_device(Config::default(), listening);
    world.task(1, with(2));
    let (task, traits) = (TaskId(1), with(9));
    world.tell(Event::TaskChanged { task, traits });
    world.tell(Event::TaskChanged { task, traits });
    let said: Vec<Command> = world.commands.iter().map(|&(_, command)| command).collect();
    let expected = [2, 9].map(|priority| Command::SetHardwarePriority {
        queue: QueueId(1),
        priority: level(priority),
    });
    assert_eq!(said, expected, "each change once");
}

#[test]
fn a_stopped_queue_from_a_former_life_is_adopted_and_resumed() {
    let mut world = world();
    world.task(1, with(9));
    world.busy(1);
    world.run(ms(6));
    world.tell(Event::TaskAppeared { task: TaskId(2), traits: with(3) });
    world.announce(2, 2, 0, true);
    world.run(ms(6));
    assert_eq!(world.stopped(), [2], "somebody more important has work");
    world.done(1);
    world.run(ms(6));
    assert_eq!(world.stopped(), [] as [u64; 0]);
    world.run(ms(12));
    assert!(!world.view(2).active, "it turned out to have nothing to do");
}
