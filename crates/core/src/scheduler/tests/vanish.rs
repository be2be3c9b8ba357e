//! Things that go away in the middle, and reports that cannot be true.

use alloc::format;

use super::world::{STOP, World, ms, us, with};
use crate::command::Command;
use crate::config::Config;
use crate::decision::Reason;
use crate::event::{Event, EventError, Fault, TaskTraits};
use crate::id::{DeviceId, QueueId, TaskId};
use crate::queue::Standing;
use crate::ring::RingView;

/// Queue 2 has just come to work, and the preempt of queue 1 is in flight.
fn in_the_middle() -> World {
    let mut world = World::with_device(Config::default(), STOP);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.run(ms(6));
    world.busy(2);
    world.run(ms(4));
    assert_eq!(world.view(1).standing, Standing::Preempting);
    world
}

#[test]
fn a_queue_vanishes_while_it_is_preempted() {
    let mut world = in_the_middle();
    world.forget(1);
    let queue = QueueId(1);
    world.tell(Event::QueueVanished { queue });
    world.run(ms(200));
    assert_eq!(world.running(), [2]);
    assert!(world.reasons(1).iter().all(|reason| !reason.is_fault()));
    // Its task is still there and may have another one.
    world.queue(3, 1, 0);
    world.busy(3);
    world.run(ms(6));
    assert_eq!(world.stopped(), [3]);
}

#[test]
fn a_queue_that_is_gone_is_no_failure_and_gets_no_second_command() {
    for resume in [false, true] {
        let mut world = in_the_middle();
        let queue = QueueId(1);
        if resume {
            world.run(ms(6));
            assert_eq!(world.stopped(), [1]);
        }
        world.gone.insert(queue);
        if resume {
            world.done(2);
        }
        world.run(ms(900));
        let about = |command: &Command| command.queue() == queue;
        let commands = world.commands.iter().filter(|(_, command)| about(command)).count();
        assert_eq!(commands, 1 + usize::from(resume), "nothing is tried again");
        let is_fault = |reason: &Reason| reason.is_fault();
        assert!(!world.reasons(1).iter().any(is_fault), "and nothing is said");
        assert_eq!(world.view(1).account.faults, 0);
        world.forget(1);
        world.tell(Event::QueueVanished { queue });
        world.run(ms(3_000));
        assert!(world.scheduler.queue(queue).is_none());
    }
}

#[test]
fn a_queue_that_was_said_to_be_gone_and_is_there_is_commanded_again() {
    let mut world = in_the_middle();
    world.gone.insert(QueueId(1));
    world.run(ms(900));
    world.gone.clear();
    world.run(ms(200));
    assert_eq!(world.stopped(), [1]);
}

#[test]
fn the_winner_vanishes_while_the_loser_is_preempted() {
    let mut world = in_the_middle();
    world.forget(2);
    world.tell(Event::TaskVanished { task: TaskId(2) });
    world.run(us(100));
    assert_eq!(world.running(), [1], "preempted for nothing, resumed at once");
}

#[test]
fn a_device_vanishes_with_everything_on_it_and_comes_back() {
    let mut world = in_the_middle();
    world.forget(1);
    world.forget(2);
    let device = DeviceId(0);
    world.tell(Event::DeviceVanished { device });
    world.run(ms(200));
    assert_eq!(world.scheduler.queue_ids().next(), None);
    world.device(0, STOP);
    world.queue(11, 1, 0);
    world.queue(12, 2, 0);
    world.busy(11);
    world.busy(12);
    world.run(ms(6));
    assert_eq!(world.running(), [12]);
}

#[test]
fn a_hinted_task_vanishes() {
    let mut world = in_the_middle();
    let task = TaskId(2);
    let deadline = None;
    world.tell(Event::HintBegin { task, deadline });
    world.forget(2);
    world.tell(Event::TaskVanished { task });
    world.run(ms(100));
    assert_eq!(world.running(), [1]);
    assert_eq!(world.scheduler.poll_timeout(), None, "nothing is waited for");
}

#[test]
fn what_cannot_be_true_is_refused_and_changes_nothing() {
    let mut world = in_the_middle();
    let (nobody, device) = (QueueId(99), DeviceId(9));
    let ghost = TaskId(99);
    let traits = with(1);
    let fault = Fault::Gone;
    let ring = RingView::default();
    let weightless = TaskTraits { weight: 0, ..traits };
    let appears =
        |queue, task, device| Event::QueueAppeared { queue, task, device, stopped: false };
    let capabilities = STOP;
    let (here, q1, q2, t1) = (DeviceId(0), QueueId(1), QueueId(2), TaskId(1));
    let refused = [
        (Event::DeviceAppeared { device: here, capabilities }, EventError::DuplicateDevice(here)),
        (Event::DeviceVanished { device }, EventError::UnknownDevice(device)),
        (Event::TaskAppeared { task: t1, traits }, EventError::DuplicateTask(t1)),
        (Event::TaskAppeared { task: ghost, traits: weightless }, EventError::ZeroWeight(ghost)),
        (Event::TaskChanged { task: t1, traits: weightless }, EventError::ZeroWeight(t1)),
        (Event::TaskChanged { task: ghost, traits }, EventError::UnknownTask(ghost)),
        (Event::TaskVanished { task: ghost }, EventError::UnknownTask(ghost)),
        (appears(q1, t1, here), EventError::DuplicateQueue(q1)),
        (appears(nobody, ghost, here), EventError::UnknownTask(ghost)),
        (appears(nobody, t1, device), EventError::UnknownDevice(device)),
        (Event::QueueChanged { queue: nobody, priority: None }, EventError::UnknownQueue(nobody)),
        (
            Event::QueueSuspended { queue: nobody, suspended: true },
            EventError::UnknownQueue(nobody),
        ),
        (Event::QueueVanished { queue: nobody }, EventError::UnknownQueue(nobody)),
        (Event::RingObserved { queue: nobody, ring }, EventError::UnknownQueue(nobody)),
        (Event::HintBegin { task: ghost, deadline: None }, EventError::UnknownTask(ghost)),
        (Event::HintEnd { task: ghost }, EventError::UnknownTask(ghost)),
        (Event::Preempted { queue: nobody }, EventError::UnknownQueue(nobody)),
        (Event::Preempted { queue: q2 }, EventError::NotAskedFor(q2)),
        (Event::PreemptFailed { queue: q2, fault }, EventError::NotAskedFor(q2)),
        (Event::Resumed { queue: q1 }, EventError::NotAskedFor(q1)),
        (Event::ResumeFailed { queue: q1, fault }, EventError::NotAskedFor(q1)),
    ];
    for (event, error) in refused {
        let before = format!("{:?}", world.scheduler);
        assert_eq!(world.scheduler.handle_event(world.now, event), Err(error));
        assert_eq!(format!("{:?}", world.scheduler), before, "{event:?}");
    }
    assert_eq!(
        format!("{}", EventError::NotAskedFor(q1)),
        "queue1 completed a command nobody gave; ignored"
    );
}
