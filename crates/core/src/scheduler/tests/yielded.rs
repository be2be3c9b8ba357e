//! Devices on which somebody else decides.

use super::world::{STOP, World, ms, with};
use crate::config::{Config, PolicyKind};
use crate::decision::Reason;
use crate::event::Event;
use crate::id::{DeviceId, QueueId, TaskId};

fn world(policy: PolicyKind) -> World {
    let mut world = World::with_device(Config { policy, ..Config::default() }, STOP);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.busy(2);
    world
}

fn yield_device(world: &mut World, yielded: bool) {
    let device = world.scheduler.queue(QueueId(1)).map_or(DeviceId(0), |queue| queue.device);
    world.tell(Event::DeviceYielded { device, yielded });
}

#[test]
fn everybody_is_let_on_and_order_returns_when_nobody_else_decides_any_more() {
    for policy in PolicyKind::ALL {
        let mut world = world(policy);
        world.run(ms(50));
        yield_device(&mut world, true);
        world.run(ms(50));
        assert_eq!(world.running(), [1, 2], "{policy}");
        let given = world.commands.len();
        world.run(ms(200));
        assert_eq!(world.commands.len(), given, "{policy}: nothing is decided meanwhile");
        yield_device(&mut world, false);
        world.run(ms(5));
        assert_eq!(world.running().len(), 1, "{policy}");
    }
}

#[test]
fn what_somebody_suspended_stays_off() {
    let mut world = world(PolicyKind::Strict);
    yield_device(&mut world, true);
    world.tell(Event::TaskSuspended { task: TaskId(2), suspended: true });
    world.run(ms(20));
    assert_eq!(world.running(), [1]);
    world.tell(Event::TaskSuspended { task: TaskId(2), suspended: false });
    world.run(ms(20));
    assert_eq!(world.running(), [1, 2]);
    assert_eq!(world.reasons(2)[0], Reason::Suspended);
    assert!(world.reasons(1).is_empty());
}

#[test]
fn a_device_that_is_not_there_is_not_believed() {
    let mut world = world(PolicyKind::Strict);
    let event = Event::DeviceYielded { device: DeviceId(77), yielded: true };
    assert!(world.scheduler.handle_event(world.now, event).is_err());
}
