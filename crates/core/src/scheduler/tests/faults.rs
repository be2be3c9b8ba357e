//! Commands that fail, things that vanish, devices that another scheduler controls.

use alloc::vec::Vec;
use alloc::{format, vec};

use super::{STOP, Testbed, ms, us, with};
use crate::backend::Command;
use crate::config::{Config, PolicyKind};
use crate::decision::Reason;
use crate::event::{Event, EventError, Fault, SchedAttr};
use crate::id::{DeviceId, QueueId, TaskId};
use crate::ring::RingView;
use crate::scheduler::{RunState, Transition};
use crate::time::Duration;

// The transitions of a run state.

#[test]
fn no_transition_starts_a_second_command() {
    for run_state in [RunState::Preempting, RunState::Resuming] {
        assert!(run_state.is_moving());
        assert_eq!(run_state.next(Transition::Preempt), None);
        assert_eq!(run_state.next(Transition::Resume), None);
    }
}

#[test]
fn a_failed_command_leads_back_to_the_state_before() {
    for (from, edge) in [(RunState::On, Transition::Preempt), (RunState::Off, Transition::Resume)] {
        let moving = from.next(edge).unwrap();
        assert_eq!(moving.next(Transition::Failed), Some(from));
    }
}

#[test]
fn a_completion_without_a_command_is_no_transition() {
    for run_state in [RunState::On, RunState::Off] {
        assert_eq!(run_state.next(Transition::Done), None);
        assert_eq!(run_state.next(Transition::Failed), None);
    }
}

// Commands that fail or take too long.

const REFUSED: Fault = Fault::Refused(0x65);

fn with_inversion() -> Testbed {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.busy_task(1, with(2));
    bed.task(2, with(12));
    bed.run(ms(6));
    bed.busy(2);
    bed
}

/// The times from each command for a queue to the next.
fn pauses(bed: &Testbed, queue: u64) -> Vec<Duration> {
    let about = |command: &Command| command.queue() == QueueId(queue);
    let times = bed.commands.iter().filter(|(_, command)| about(command));
    let times: Vec<_> = times.map(|&(at, _)| at).collect();
    times.windows(2).map(|pair| pair[1].since(pair[0])).collect()
}

#[test]
fn a_failed_preempt_is_retried_with_increasing_delays() {
    let mut bed = with_inversion();
    bed.broken.insert(QueueId(1));
    bed.run(ms(800));
    let expected = [5, 10, 20, 40, 80, 160, 200].map(|pause| ms(pause) + us(20));
    assert_eq!(pauses(&bed, 1)[..7], expected);
    assert_eq!(bed.reasons(1)[1], Reason::PreemptFailed { fault: REFUSED, retry_in: ms(5) });
    let sentence = "the preempt failed (the device refused with status 0x65); next try in 5.00ms";
    assert_eq!(bed.texts(1)[1], sentence);
    assert!(bed.reasons(1)[1].is_fault());
    assert_eq!(bed.running(), [1, 2], "a queue that cannot be preempted keeps running");

    bed.broken.clear();
    bed.run_then_off(ms(201), [1]);
    let commands = bed.commands.len();
    bed.done(2);
    bed.run(ms(6));
    bed.busy(2);
    bed.broken.insert(QueueId(1));
    bed.run(ms(12));
    assert_eq!(bed.commands.len(), commands + 3, "a success resets the delay");
}

#[test]
fn a_failed_resume_is_retried_and_other_queues_run_meanwhile() {
    let mut bed = with_inversion();
    bed.busy_task(3, with(1));
    bed.run_then_off(ms(6), [1, 3]);
    bed.broken.insert(QueueId(1));
    bed.done(2);
    bed.run(ms(6));
    let retry_in = ms(5);
    let fault = REFUSED;
    assert!(bed.reasons(1).contains(&Reason::ResumeFailed { fault, retry_in }));
    assert_eq!(bed.running(), [3], "the device does not idle meanwhile");
    bed.broken.clear();
    bed.run_then(ms(30), [1], [3]);
}

#[test]
fn a_preempt_that_takes_too_long_is_reported_once_and_still_awaited() {
    let mut bed = with_inversion();
    bed.slow.insert(QueueId(1), ms(450));
    bed.run(ms(400));
    assert_eq!(bed.view(1).run_state, RunState::Preempting);
    let overdue = Reason::Overdue { after: ms(100) };
    assert_eq!(bed.reasons(1)[1..], [overdue]);
    assert_eq!(bed.view(1).totals.faults, 1);
    bed.run_then_off(ms(100), [1]);
    bed.done(2);
    bed.run(ms(6));
    assert_eq!(bed.running(), [1], "a late preempt still counts");
}

#[test]
fn a_queue_whose_commands_fail_does_not_delay_higher_ones() {
    let mut bed = with_inversion();
    bed.task(3, with(14));
    bed.broken.insert(QueueId(1));
    bed.run(ms(6));
    bed.busy(3);
    bed.run_then_off(ms(6), [2]);
    assert!(bed.running().contains(&3));
}

#[test]
fn a_preempt_that_finishes_in_time_is_not_reported() {
    let mut bed = with_inversion();
    bed.run(ms(300));
    assert_eq!((bed.stopped(), bed.view(1).totals.faults), (vec![1], 0));
}

#[test]
fn a_preempt_that_hangs_delays_the_other_queues_up_to_its_timeout_only() {
    let config = Config { policy: PolicyKind::RoundRobin, ..Config::default() };
    let mut bed = Testbed::with_device(config, STOP);
    for task in 1..4 {
        bed.busy_task(task, with(3));
    }
    bed.run(ms(8));
    let [first] = bed.running()[..] else { panic!("equals take turns") };
    bed.slow.insert(QueueId(first), ms(900));
    bed.run(ms(60));
    assert_eq!(bed.view(first).run_state, RunState::Preempting);
    let on = |bed: &Testbed| (1..4).filter(|q| bed.view(*q).run_state == RunState::On).count();
    assert_eq!(on(&bed), 0, "the others wait for its preempt");
    bed.run(ms(100));
    assert_eq!(on(&bed), 1, "up to the timeout");
}

// Queues, tasks and devices that vanish, and events that are refused.

/// Queue 2 has just come to work, and the preempt of queue 1 is in flight.
fn in_the_middle() -> Testbed {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.busy_task(1, with(2));
    bed.task(2, with(12));
    bed.run(ms(6));
    bed.busy(2);
    bed.run(ms(4));
    assert_eq!(bed.view(1).run_state, RunState::Preempting);
    bed
}

#[test]
fn a_queue_vanishes_while_it_is_preempted() {
    let mut bed = in_the_middle();
    bed.vanish_queue(1);
    bed.run_then_on(ms(200), [2]);
    assert!(bed.reasons(1).iter().all(|reason| !reason.is_fault()));
    // Its task still exists and may have another queue.
    bed.queue(3, 1, 0);
    bed.busy(3);
    bed.run_then_off(ms(6), [3]);
}

#[test]
fn a_queue_that_is_gone_is_no_failure_and_gets_no_second_command() {
    for resume in [false, true] {
        let mut bed = in_the_middle();
        let queue = QueueId(1);
        if resume {
            bed.run_then_off(ms(6), [1]);
        }
        bed.gone.insert(queue);
        if resume {
            bed.done(2);
        }
        bed.run(ms(900));
        let about = |command: &Command| command.queue() == queue;
        let commands = bed.commands.iter().filter(|(_, command)| about(command)).count();
        assert_eq!(commands, 1 + usize::from(resume), "there is no retry");
        let is_fault = |reason: &Reason| reason.is_fault();
        assert!(!bed.reasons(1).iter().any(is_fault), "and no fault is reported");
        assert_eq!(bed.view(1).totals.faults, 0);
        bed.forget(1);
        bed.deliver(Event::QueueVanished { queue });
        bed.run(ms(3_000));
        assert!(bed.scheduler.queue(queue).is_none());
    }
}

#[test]
fn a_queue_reported_as_gone_that_does_not_vanish_gets_commands_again() {
    let mut bed = in_the_middle();
    bed.gone.insert(QueueId(1));
    bed.run(ms(900));
    bed.gone.clear();
    bed.run_then_off(ms(200), [1]);
}

#[test]
fn a_preempted_queue_is_resumed_if_the_higher_one_vanishes() {
    let mut bed = in_the_middle();
    bed.vanish_task(2);
    bed.run(us(100));
    assert_eq!(bed.running(), [1], "resumed at once");
}

#[test]
fn a_device_vanishes_with_its_queues_and_reappears() {
    let mut bed = in_the_middle();
    bed.forget(1);
    bed.forget(2);
    let device = DeviceId(0);
    bed.deliver(Event::DeviceVanished { device });
    bed.run(ms(200));
    assert_eq!(bed.scheduler.queue_ids().next(), None);
    bed.device(0, STOP);
    bed.queue(11, 1, 0);
    bed.queue(12, 2, 0);
    bed.busy(11);
    bed.busy(12);
    bed.run_then_on(ms(6), [12]);
}

#[test]
fn a_hinted_task_vanishes() {
    let mut bed = in_the_middle();
    let task = TaskId(2);
    let deadline = None;
    bed.deliver(Event::HintBegin { task, deadline });
    bed.forget(2);
    bed.deliver(Event::TaskVanished { task });
    bed.run_then_on(ms(100), [1]);
    assert_eq!(bed.scheduler.poll_timeout(), None, "there is no timer left");
}

#[test]
fn contradictory_events_are_refused_and_change_nothing() {
    let mut bed = in_the_middle();
    let (unknown, device) = (QueueId(99), DeviceId(9));
    let ghost = TaskId(99);
    let attr = with(1);
    let fault = Fault::Gone;
    let ring = RingView::default();
    let weightless = SchedAttr { weight: 0, ..attr };
    let appears =
        |queue, task, device| Event::QueueAppeared { queue, task, device, stopped: false };
    let capabilities = STOP;
    let (here, q1, q2, t1) = (DeviceId(0), QueueId(1), QueueId(2), TaskId(1));
    let refused = [
        (Event::DeviceAppeared { device: here, capabilities }, EventError::DuplicateDevice(here)),
        (Event::DeviceVanished { device }, EventError::UnknownDevice(device)),
        (Event::TaskAppeared { task: t1, attr }, EventError::DuplicateTask(t1)),
        (Event::TaskAppeared { task: ghost, attr: weightless }, EventError::ZeroWeight(ghost)),
        (Event::TaskChanged { task: t1, attr: weightless }, EventError::ZeroWeight(t1)),
        (Event::TaskChanged { task: ghost, attr }, EventError::UnknownTask(ghost)),
        (Event::TaskVanished { task: ghost }, EventError::UnknownTask(ghost)),
        (appears(q1, t1, here), EventError::DuplicateQueue(q1)),
        (appears(unknown, ghost, here), EventError::UnknownTask(ghost)),
        (appears(unknown, t1, device), EventError::UnknownDevice(device)),
        (Event::QueueChanged { queue: unknown, priority: None }, EventError::UnknownQueue(unknown)),
        (
            Event::QueueSuspended { queue: unknown, suspended: true },
            EventError::UnknownQueue(unknown),
        ),
        (Event::QueueVanished { queue: unknown }, EventError::UnknownQueue(unknown)),
        (Event::RingObserved { queue: unknown, ring }, EventError::UnknownQueue(unknown)),
        (Event::HintBegin { task: ghost, deadline: None }, EventError::UnknownTask(ghost)),
        (Event::HintEnd { task: ghost }, EventError::UnknownTask(ghost)),
        (Event::Preempted { queue: unknown }, EventError::UnknownQueue(unknown)),
        (Event::Preempted { queue: q2 }, EventError::NoCommandInFlight(q2)),
        (Event::PreemptFailed { queue: q2, fault }, EventError::NoCommandInFlight(q2)),
        (Event::Resumed { queue: q1 }, EventError::NoCommandInFlight(q1)),
        (Event::ResumeFailed { queue: q1, fault }, EventError::NoCommandInFlight(q1)),
    ];
    for (event, error) in refused {
        let before = format!("{:?}", bed.scheduler);
        assert_eq!(bed.scheduler.handle_event(bed.now, event), Err(error));
        assert_eq!(format!("{:?}", bed.scheduler), before, "{event:?}");
    }
    assert_eq!(
        format!("{}", EventError::NoCommandInFlight(q1)),
        "completion for queue1 ignored: no command was in flight"
    );
}

// Devices on which another scheduler decides.

fn with_two_busy(policy: PolicyKind) -> Testbed {
    let mut bed = Testbed::with_device(Config { policy, ..Config::default() }, STOP);
    bed.busy_task(1, with(2));
    bed.busy_task(2, with(12));
    bed
}

fn yield_device(bed: &mut Testbed, externally_scheduled: bool) {
    let device = bed.scheduler.queue(QueueId(1)).map_or(DeviceId(0), |queue| queue.device);
    bed.deliver(Event::DeviceExternallyScheduled { device, externally_scheduled });
}

#[test]
fn all_queues_are_on_while_another_scheduler_decides() {
    for policy in PolicyKind::ALL {
        let mut bed = with_two_busy(policy);
        bed.run(ms(50));
        yield_device(&mut bed, true);
        bed.run(ms(50));
        assert_eq!(bed.running(), [1, 2], "{policy}");
        let given = bed.commands.len();
        bed.run(ms(200));
        assert_eq!(bed.commands.len(), given, "{policy}: there is no command meanwhile");
        yield_device(&mut bed, false);
        bed.run(ms(5));
        assert_eq!(bed.running().len(), 1, "{policy}");
    }
}

#[test]
fn a_suspended_task_is_off_while_another_scheduler_decides() {
    let mut bed = with_two_busy(PolicyKind::Strict);
    yield_device(&mut bed, true);
    bed.suspend(2, true);
    bed.run_then_on(ms(20), [1]);
    bed.suspend(2, false);
    bed.run_then_on(ms(20), [1, 2]);
    assert_eq!(bed.reasons(2)[0], Reason::Suspended);
    assert!(bed.reasons(1).is_empty());
}

#[test]
fn an_unknown_device_cannot_be_externally_scheduled() {
    let mut bed = with_two_busy(PolicyKind::Strict);
    let event =
        Event::DeviceExternallyScheduled { device: DeviceId(77), externally_scheduled: true };
    assert!(bed.scheduler.handle_event(bed.now, event).is_err());
}
