//! What has to be true once no more events arrive and no command fails.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::backend::Mechanism;
use gpreempt_core::event::Event;
use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::priority::Class;
use gpreempt_core::queue::RunState;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::time::Duration;

use crate::model::Model;

/// Suspended queues are off once no command is in flight, and stay off.
pub(crate) fn check_suspended(model: &mut Model) {
    model.rest();
    for _ in 0..60 {
        pass(model, Duration::from_millis(5));
    }
    let is_suspended = |view: &QueueView| {
        model.suspended.contains(&view.task) || model.suspended_queues.contains(&view.queue)
    };
    for view in model.scheduler.queues().filter(is_suspended) {
        assert!(view.suspended, "{view:?}");
        let watched = model.devices[&view.device] == Mechanism::ObserveOnly;
        assert!(watched || view.run_state == RunState::Off, "{view:?}");
    }
}

/// Ends every hint, suspension and fault, completes every command, reads every ring and advances
/// the time.
pub(crate) fn calm_down(model: &mut Model) {
    let tasks: Vec<_> = model.tasks.keys().copied().collect();
    for task in tasks {
        model.deliver(Event::HintEnd { task });
        model.deliver(Event::TaskSuspended { task, suspended: false });
    }
    let queues: Vec<_> = model.queues.keys().copied().collect();
    for queue in queues {
        model.deliver(Event::QueueSuspended { queue, suspended: false });
    }
    model.rest();
    for _ in 0..60 {
        pass(model, Duration::from_millis(5));
    }
}

fn pass(model: &mut Model, duration: Duration) {
    let queues: Vec<_> = model.queues.keys().copied().collect();
    for queue in queues {
        model.observe(queue);
    }
    model.wait(duration);
    model.rest();
}

fn by_device(model: &Model) -> BTreeMap<DeviceId, Vec<QueueView>> {
    let mut devices: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for view in model.scheduler.queues().filter(|view| view.active) {
        devices.entry(view.device).or_default().push(view);
    }
    devices
}

fn on(views: &[QueueView]) -> BTreeSet<QueueId> {
    let on = views.iter().filter(|view| view.run_state == RunState::On);
    on.map(|view| view.queue).collect()
}

fn has_gang(model: &Model, view: &QueueView) -> bool {
    model.tasks[&view.task].gang.is_some()
}

/// Under every policy: no command is in flight, no device idles beside work, and at most one low
/// queue of a device with slices is runnable.
pub(crate) fn check_rest(model: &Model) {
    for view in model.scheduler.queues() {
        assert!(!view.run_state.is_moving(), "{view:?}");
        let truth = model.queues[&view.queue];
        assert_eq!(view.run_state == RunState::Off, truth.off, "{view:?}");
        assert!(view.active || !truth.work, "work unseen: {view:?}");
        assert!(view.active || !truth.off, "off without a reason: {view:?}");
    }
    let devices = by_device(model);
    for (device, views) in &devices {
        // A gang may have to wait for another device.
        if views.iter().any(|view| !has_gang(model, view)) {
            assert!(!on(views).is_empty(), "{device} idles: {views:?}");
        }
        if model.devices[device] == Mechanism::Slice {
            check_slices(model, *device, views);
        }
    }
    let runs = devices.values().any(|views| !on(views).is_empty());
    assert!(runs || devices.is_empty(), "no queue runs: {devices:?}");
}

fn check_slices(model: &Model, device: DeviceId, views: &[QueueView]) {
    let high = |view: &QueueView| view.priority.class() == Class::High;
    let low_on = views.iter().filter(|view| !high(view) && view.run_state == RunState::On);
    let high_here = model.scheduler.queues().any(|view| view.device == device && high(&view));
    if high_here {
        assert!(low_on.count() <= 1, "several tiny slices: {views:?}");
    }
}

/// Under strict priority without gangs: on with work is exactly the highest level with work. A
/// device with slices keeps its classes apart, and of the low class only one runs.
pub(crate) fn check_strict(model: &Model) {
    for (device, views) in by_device(model) {
        match model.devices[&device] {
            Mechanism::ObserveOnly => {}
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

/// Every queue with work runs before long, also gangs that need two devices at once.
pub(crate) fn check_every_queue_runs(model: &mut Model) {
    let ran = |model: &Model| -> BTreeMap<QueueId, Duration> {
        let views = model.scheduler.queues();
        views.map(|view| (view.queue, view.totals.ran)).collect()
    };
    let before = ran(model);
    for _ in 0..300 {
        pass(model, Duration::from_millis(7));
    }
    let after = ran(model);
    for view in model.scheduler.queues().filter(|view| view.active) {
        let gained = after[&view.queue] - before[&view.queue];
        assert!(gained > Duration::from_millis(5), "starved: {view:?}");
    }
}
