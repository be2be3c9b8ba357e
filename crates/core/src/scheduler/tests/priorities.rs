//! The order of ranks under the strict and deadline policies, and hints.

use alloc::vec;
use alloc::vec::Vec;

use super::{STOP, Testbed, level, ms, us, with};
use crate::backend::{Capabilities, Command, Mechanism};
use crate::config::{Config, PolicyKind};
use crate::event::{Event, SchedAttr};
use crate::id::{QueueId, TaskId};
use crate::priority::Priority;
use crate::statistics::MeasurementKind;
use crate::time::Duration;

// Strict priorities.

fn with_strict() -> Testbed {
    Testbed::with_device(Config::default(), STOP)
}

#[test]
fn an_inversion_seen_in_the_rings_is_corrected_and_undone() {
    let mut bed = with_strict();
    bed.busy_task(1, with(2));
    bed.task(2, with(12));
    bed.run_then_on(ms(20), [1]);
    assert!(bed.commands.is_empty(), "there is no inversion");

    bed.busy(2);
    bed.run_then(ms(6), [2], [1]);

    bed.done(2);
    bed.run_then(ms(6), [1], []);
    assert_eq!(
        bed.texts(1),
        [
            "queue2 waits with priority 12 while this one runs with 2",
            "no queue with a higher rank has work; was off for 4.98ms",
        ]
    );
    let totals = bed.view(1).totals;
    assert_eq!((totals.preempts, totals.resumes), (1, 1));
    let latency = bed.scheduler.preempt_latency(bed.view(1).device);
    assert_eq!(latency.unwrap().max(), us(20));
    let mut measured = || bed.scheduler.poll_measurement().map(|m| (m.kind, m.task.0, m.took));
    // The high queue was on all the time and waited for the preempt of the low one.
    assert_eq!(measured(), Some((MeasurementKind::Wait, 2, us(20))));
    assert_eq!(measured(), Some((MeasurementKind::Preempt, 1, us(20))));
    assert_eq!(measured(), Some((MeasurementKind::Wait, 1, us(4_990))));
    assert_eq!(measured(), None);
}

#[test]
fn a_suspension_is_no_wait() {
    let mut bed = with_strict();
    bed.busy_task(1, with(2));
    bed.run_then_on(ms(6), [1]);
    bed.suspend(1, true);
    bed.run_then_off(ms(6), [1]);
    bed.suspend(1, false);
    bed.run_then_on(ms(6), [1]);
    let mut kinds = Vec::new();
    while let Some(measurement) = bed.scheduler.poll_measurement() {
        assert!(measurement.took <= us(20), "{measurement:?}");
        kinds.push(measurement.kind);
    }
    assert_eq!(kinds, [MeasurementKind::Preempt, MeasurementKind::Wait], "the resume is a wait");
}

#[test]
fn each_of_the_sixteen_levels_preempts_those_below() {
    let mut bed = with_strict();
    for priority in 0..Priority::LEVELS {
        bed.busy_task(u64::from(priority), with(priority));
    }
    for top in (0..u64::from(Priority::LEVELS)).rev() {
        bed.run_then_on(ms(6), [top]);
        assert_eq!(bed.stopped(), (0..top).collect::<Vec<_>>());
        bed.done(top);
    }
}

#[test]
fn equals_share_the_device() {
    let mut bed = with_strict();
    for task in 1..4 {
        bed.busy_task(task, with(5));
    }
    bed.run_then_on(ms(100), [1, 2, 3]);
    assert!(bed.commands.is_empty());
}

#[test]
fn a_task_can_change_its_priority_while_it_runs() {
    let mut bed = with_strict();
    bed.busy_task(1, with(2));
    bed.busy_task(2, with(12));
    bed.run_then_on(ms(6), [2]);
    bed.change(1, with(13));
    bed.run(us(100));
    assert_eq!(bed.running(), [1], "at once, without another reading");
}

#[test]
fn one_queue_of_a_task_can_have_a_priority_of_its_own() {
    let mut bed = with_strict();
    bed.task(1, with(2));
    bed.queue(11, 1, 0);
    bed.task(2, with(5));
    for queue in [1, 11, 2] {
        bed.busy(queue);
    }
    bed.run_then_on(ms(6), [2]);
    bed.set_queue_priority(11, Some(9));
    bed.run_then(us(100), [11], [1, 2]);
    bed.set_queue_priority(11, None);
    bed.run(us(100));
    assert_eq!(bed.running(), [2], "its task's priority counts again");
}

#[test]
fn the_policy_can_change_while_queues_run() {
    let mut bed = with_strict();
    bed.busy_task(1, with(2));
    bed.busy_task(2, with(7));
    bed.run(ms(10));
    assert_eq!((bed.running(), bed.ran(1)), (vec![2], us(20)));
    let fair = Config { policy: PolicyKind::Fair, ..Config::default() };
    bed.reconfigure(fair);
    bed.run(ms(100));
    assert!(bed.ran(1) > ms(40), "{}", bed.ran(1));
    bed.reconfigure(Config::default());
    bed.run_then_on(us(100), [2]);
    let slice = Duration::ZERO;
    let bad = Config { slice, ..fair };
    assert!(bed.scheduler.set_config(bed.now, bad).is_err());
    assert_eq!(*bed.scheduler.config(), Config::default());
}

#[test]
fn a_device_that_can_only_be_observed_gets_no_command() {
    let watch = Capabilities { mechanism: Mechanism::ObserveOnly, ..STOP };
    let mut bed = Testbed::with_device(Config::default(), watch);
    bed.busy_task(1, with(2));
    bed.busy_task(2, with(12));
    bed.run_then_on(ms(50), [1, 2]);
    assert!(bed.commands.is_empty());
}

#[test]
fn a_hardware_priority_is_set_once_for_each_change() {
    let listening = Capabilities { hardware_priority: true, ..STOP };
    let mut bed = Testbed::with_device(Config::default(), listening);
    bed.task(1, with(2));
    bed.change(1, with(9));
    bed.change(1, with(9));
    let said: Vec<Command> = bed.commands.iter().map(|&(_, command)| command).collect();
    let expected = [2, 9].map(|priority| Command::SetHardwarePriority {
        queue: QueueId(1),
        priority: level(priority),
    });
    assert_eq!(said, expected, "each change once");
}

#[test]
fn a_queue_that_an_earlier_scheduler_stopped_is_adopted_and_resumed() {
    let mut bed = with_strict();
    bed.busy_task(1, with(9));
    bed.run(ms(6));
    bed.deliver(Event::TaskAppeared { task: TaskId(2), attr: with(3) });
    bed.announce(2, 2, 0, true);
    bed.run(ms(6));
    assert_eq!(bed.stopped(), [2], "a higher queue has work");
    bed.done(1);
    bed.run_then_off(ms(6), []);
    bed.run(ms(12));
    assert!(!bed.view(2).active, "it has no work");
}

// Earliest deadline first.

fn with_edf() -> Testbed {
    let config = Config { policy: PolicyKind::Deadline, ..Config::default() };
    Testbed::with_device(config, STOP)
}

fn due(deadline: Duration) -> SchedAttr {
    SchedAttr { deadline: Some(deadline), ..with(0) }
}

#[test]
fn the_earliest_deadline_runs_and_no_deadline_waits() {
    let mut bed = with_edf();
    bed.task(1, due(ms(300)));
    bed.task(2, due(ms(200)));
    bed.task(3, with(7));
    for (queue, first) in [(3, 3), (1, 1), (2, 2)] {
        bed.busy(queue);
        bed.run_then_on(ms(6), [first]);
    }
    bed.done(2);
    bed.run_then_on(ms(6), [1]);
    bed.done(1);
    bed.run_then_on(ms(6), [3]);
}

#[test]
fn a_later_arrival_with_the_same_span_waits() {
    let mut bed = with_edf();
    bed.task(1, due(ms(100)));
    bed.busy_task(2, due(ms(100)));
    bed.run(ms(20));
    bed.busy(1);
    bed.run_then(ms(20), [2], [1]);
}

#[test]
fn a_deadline_missed_for_long_is_renewed() {
    let mut bed = with_edf();
    bed.busy_task(1, due(ms(10)));
    bed.busy_task(2, due(ms(80)));
    bed.run_then_on(ms(6), [1]);
    bed.run(ms(200));
    assert!(bed.ran(2) > ms(10), "{}: the deadline was not renewed", bed.ran(2));
    assert!(bed.ran(1) > ms(100), "{}", bed.ran(1));
}

#[test]
fn equal_deadlines_share_the_device() {
    let mut bed = with_edf();
    bed.task(1, due(ms(100)));
    bed.task(2, due(ms(100)));
    bed.task(3, with(7));
    for queue in [1, 2, 3] {
        bed.busy(queue);
    }
    bed.run_then_on(ms(50), [1, 2]);
}

#[test]
fn a_task_without_its_deadline_ranks_by_priority_again() {
    let mut bed = with_edf();
    bed.busy_task(1, due(ms(100)));
    bed.busy_task(2, with(7));
    bed.run_then_on(ms(6), [1]);
    bed.change(1, with(0));
    bed.run_then_on(us(100), [2]);
}

#[test]
fn no_deadline_of_the_low_class_stops_the_high_one() {
    let mut bed = with_edf();
    bed.task(1, SchedAttr { deadline: Some(us(1)), ..with(7) });
    bed.busy_task(2, with(8));
    bed.run(ms(6));
    bed.busy(1);
    bed.run_then_on(ms(6), [2]);
    bed.hint(1, Some(us(1)));
    bed.run(ms(6));
    assert_eq!(bed.running(), [2], "nor does one that comes with a hint");
    bed.done(2);
    bed.run_then_on(ms(6), [1]);
}

// Hints, which take effect before the next reading of the rings.

fn with_low_running(policy: PolicyKind) -> Testbed {
    let config = Config { policy, ..Config::default() };
    let mut bed = Testbed::with_device(config, STOP);
    bed.busy_task(1, with(2));
    bed.task(2, with(12));
    bed.run_then_on(ms(6), [1]);
    bed
}

#[test]
fn a_hint_preempts_at_once_and_its_end_resumes_the_lower_queue() {
    let mut bed = with_low_running(PolicyKind::Strict);
    bed.hint(2, None);
    assert_eq!(bed.commands.last().unwrap().0, bed.now);
    bed.run(us(20));
    assert_eq!(bed.stopped(), [1], "before any ring was read");
    bed.run(ms(20));
    assert_eq!(bed.stopped(), [1], "an empty ring does not end a hint");
    bed.end_hint(2);
    bed.run_then_on(us(600), [1]);
}

#[test]
fn a_hint_that_is_not_ended_expires() {
    let mut bed = with_low_running(PolicyKind::Strict);
    bed.hint(2, None);
    bed.run_then_off(ms(49), [1]);
    bed.run_then_on(ms(2), [1]);
    bed.hint(2, None);
    bed.run(ms(30));
    bed.hint(2, None);
    bed.run(ms(30));
    assert_eq!(bed.stopped(), [1], "a repeated hint is valid from then on");
}

#[test]
fn a_hint_does_not_end_the_work_that_came_of_it() {
    let mut bed = with_low_running(PolicyKind::Strict);
    bed.hint(2, None);
    bed.busy(2);
    bed.run(ms(6));
    bed.end_hint(2);
    bed.run(ms(20));
    assert_eq!(bed.running(), [2], "its ring is not empty");
}

#[test]
fn a_hint_of_a_low_task_preempts_no_higher_queue() {
    let mut bed = with_low_running(PolicyKind::Strict);
    bed.task(3, with(1));
    bed.hint(3, None);
    bed.run(us(100));
    assert_eq!((bed.running(), bed.stopped()), (vec![1], vec![3]));
    bed.task(4, with(12));
    bed.hint(4, None);
    bed.queue(44, 4, 0);
    assert!(bed.view(44).active, "a new queue of a hinted task counts as active");
}

#[test]
fn the_deadline_of_a_hint_ends_with_it() {
    let mut bed = with_low_running(PolicyKind::Deadline);
    bed.change(1, with(9));
    bed.busy(2);
    bed.run(ms(6));
    assert_eq!(bed.running(), [2], "without deadlines by priority");
    bed.hint(1, Some(ms(5)));
    bed.run_then_on(us(100), [1]);
    bed.end_hint(1);
    bed.run_then_on(us(100), [2]);
}

#[test]
fn a_wait_is_counted_once_it_is_over() {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.busy_task(1, with(3));
    bed.run_then_on(ms(1), [1]);
    bed.busy_task(2, with(9));
    bed.run_then_on(ms(5), [2]);
    assert_eq!(bed.scheduler.waits(TaskId(1)).unwrap().count(), 0);
    bed.done(2);
    bed.run_then_on(ms(5), [1]);
    let waits = bed.scheduler.waits(TaskId(1)).unwrap();
    assert_eq!(waits.count(), 1);
    assert!(waits.max() >= ms(4) && waits.max() <= ms(7), "{waits:?}");
    let waits = bed.scheduler.waits(TaskId(2)).unwrap();
    assert_eq!((waits.count(), waits.max()), (1, us(20)), "for the preempt of the other");
    assert!(bed.scheduler.waits(TaskId(3)).is_none());
}
