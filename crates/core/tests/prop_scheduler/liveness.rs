//! What has to be true once nothing goes wrong any more.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::capability::Mechanism;
use gpreempt_core::event::Event;
use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::priority::Class;
use gpreempt_core::queue::Standing;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::time::Duration;

use crate::world::World;

/// Whoever is suspended is off once nothing is in motion, and stays off.
pub(crate) fn check_suspended(world: &mut World) {
    world.rest();
    for _ in 0..60 {
        pass(world, Duration::from_millis(5));
    }
    let is_suspended = |view: &QueueView| {
        world.suspended.contains(&view.task) || world.suspended_queues.contains(&view.queue)
    };
    for view in world.scheduler.queues().filter(is_suspended) {
        assert!(view.suspended, "{view:?}");
        let watched = world.devices[&view.device] == Mechanism::Watch;
        assert!(watched || view.standing == Standing::Off, "{view:?}");
    }
}

/// Ends every hint, suspension and fault, completes every command, reads every ring and lets time
/// pass.
pub(crate) fn calm_down(world: &mut World) {
    let tasks: Vec<_> = world.tasks.keys().copied().collect();
    for task in tasks {
        world.tell(Event::HintEnd { task });
        world.tell(Event::TaskSuspended { task, suspended: false });
    }
    let queues: Vec<_> = world.queues.keys().copied().collect();
    for queue in queues {
        world.tell(Event::QueueSuspended { queue, suspended: false });
    }
    world.rest();
    for _ in 0..60 {
        pass(world, Duration::from_millis(5));
    }
}

fn pass(world: &mut World, duration: Duration) {
    let queues: Vec<_> = world.queues.keys().copied().collect();
    for queue in queues {
        world.observe(queue);
    }
    world.wait(duration);
    world.rest();
}

fn by_device(world: &World) -> BTreeMap<DeviceId, Vec<QueueView>> {
    let mut devices: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for view in world.scheduler.queues().filter(|view| view.active) {
        devices.entry(view.device).or_default().push(view);
    }
    devices
}

fn on(views: &[QueueView]) -> BTreeSet<QueueId> {
    let on = views.iter().filter(|view| view.standing == Standing::On);
    on.map(|view| view.queue).collect()
}

fn has_gang(world: &World, view: &QueueView) -> bool {
    world.tasks[&view.task].gang.is_some()
}

/// Under every policy: nothing is in motion, no device idles while somebody could use it, and
/// the tiny slices of a device are not shared.
pub(crate) fn check_rest(world: &World) {
    for view in world.scheduler.queues() {
        assert!(!view.standing.is_moving(), "{view:?}");
        let truth = world.queues[&view.queue];
        assert_eq!(view.standing == Standing::Off, truth.off, "{view:?}");
        assert!(view.active || !truth.work, "work unseen: {view:?}");
        assert!(view.active || !truth.off, "off without a reason: {view:?}");
    }
    let devices = by_device(world);
    for (device, views) in &devices {
        // A gang may have to wait for another device.
        if views.iter().any(|view| !has_gang(world, view)) {
            assert!(!on(views).is_empty(), "{device} idles: {views:?}");
        }
        if world.devices[device] == Mechanism::Slice {
            check_slices(world, *device, views);
        }
    }
    let somebody = devices.values().any(|views| !on(views).is_empty());
    assert!(somebody || devices.is_empty(), "nobody runs: {devices:?}");
}

fn check_slices(world: &World, device: DeviceId, views: &[QueueView]) {
    let high = |view: &QueueView| view.priority.class() == Class::High;
    let low_on = views.iter().filter(|view| !high(view) && view.standing == Standing::On);
    let high_here = world.scheduler.queues().any(|view| view.device == device && high(&view));
    if high_here {
        assert!(low_on.count() <= 1, "several tiny slices: {views:?}");
    }
}

/// Under strict priority without gangs: on with work is exactly the highest level with work. A
/// device with slices keeps its classes apart, and of the low class only one runs.
pub(crate) fn check_strict(world: &World) {
    for (device, views) in by_device(world) {
        match world.devices[&device] {
            Mechanism::Watch => {}
            Mechanism::Stop => assert_eq!(on(&views), highest(&views), "{views:?}"),
            Mechanism::Slice => {
                let (high, low): (Vec<_>, Vec<_>) =
                    views.into_iter().partition(|view| view.priority.class() == Class::High);
                assert_eq!(on(&high), highest(&high), "{high:?}");
                assert!(on(&low).is_subset(&highest(&low)), "{low:?}");
                assert_eq!(on(&low).is_empty(), low.is_empty(), "{low:?}");
            }
        }
    }
}

fn highest(views: &[QueueView]) -> BTreeSet<QueueId> {
    let level = views.iter().map(|view| view.priority).max();
    let top = views.iter().filter(|view| Some(view.priority) == level);
    top.map(|view| view.queue).collect()
}

/// Nobody with work is left out for long, not even gangs that need two devices at once.
pub(crate) fn check_everybody_runs(world: &mut World) {
    let ran = |world: &World| -> BTreeMap<QueueId, Duration> {
        let views = world.scheduler.queues();
        views.map(|view| (view.queue, view.account.ran)).collect()
    };
    let before = ran(world);
    for _ in 0..300 {
        pass(world, Duration::from_millis(7));
    }
    let after = ran(world);
    for view in world.scheduler.queues().filter(|view| view.active) {
        let gained = after[&view.queue] - before[&view.queue];
        assert!(gained > Duration::from_millis(5), "starved: {view:?}");
    }
}
