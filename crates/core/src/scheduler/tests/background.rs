//! Commands in the background: what many suspensions may cost others.

use alloc::vec::Vec;

use super::{SLICE, STOP, Testbed, ms, us, with};
use crate::backend::{Capabilities, Command};
use crate::config::Config;
use crate::event::Event;
use crate::id::{QueueId, TaskId};
use crate::time::{Duration, Instant};

const QUEUES: usize = 40;
/// One more than the number of the last of them.
const END: u64 = 140;

/// A task 100 with many queues on a device, which is suspended.
fn suspended(capabilities: Capabilities, priorities: &[(u64, u8)]) -> Testbed {
    let mut bed = Testbed::with_device(Config::default(), capabilities);
    bed.deliver(Event::TaskAppeared { task: TaskId(100), attr: with(1) });
    for queue in 100..END {
        bed.queue(queue, 100, 0);
        bed.done(queue);
    }
    for &(task, priority) in priorities {
        bed.busy_task(task, with(priority));
    }
    bed.run(ms(20));
    bed.commands.clear();
    bed.suspend(100, true);
    bed
}

/// When the queues of the suspended task were preempted.
fn preempted_at(bed: &Testbed) -> Vec<Instant> {
    let is_preempt =
        |command: &Command| matches!(command, Command::Preempt { queue, .. } if queue.0 >= 100);
    let preempts = bed.commands.iter().filter(|(_, command)| is_preempt(command));
    preempts.map(|(at, _)| *at).collect()
}

fn gaps(times: &[Instant]) -> Vec<Duration> {
    times.windows(2).map(|pair| pair[1].since(pair[0])).collect()
}

#[test]
fn on_a_device_with_slices_queues_are_suspended_one_after_the_other() {
    let mut bed = suspended(SLICE, &[(1, 2)]);
    bed.run(ms(20));
    let times = preempted_at(&bed);
    assert_eq!(gaps(&times), [SLICE.preempt_cost; QUEUES - 1]);
}

#[test]
fn beside_high_work_there_are_pauses_in_between() {
    let mut bed = suspended(SLICE, &[(1, 2), (2, 12)]);
    bed.run(ms(20));
    let times = preempted_at(&bed);
    assert_eq!(gaps(&times), [SLICE.preempt_cost.times(4); QUEUES - 1]);
    assert!((100..END).all(|queue| bed.stopped().contains(&queue)));
}

#[test]
fn a_slow_command_delays_the_next_one_for_a_limited_time() {
    let mut bed = suspended(SLICE, &[(1, 2), (2, 12)]);
    bed.slow.extend(bed.rings.keys().map(|&queue| (queue, ms(50))));
    bed.run(ms(200));
    let longest = gaps(&preempted_at(&bed)).into_iter().max();
    assert_eq!(longest, Some(ms(60)));
}

#[test]
fn a_queue_with_work_does_not_wait_for_all_that_are_suspended() {
    for capabilities in [SLICE, STOP] {
        let mut bed = suspended(capabilities, &[(1, 2), (2, 1)]);
        assert_eq!(bed.stopped(), [2], "it ranks below the first");
        bed.slow.extend((100..END).map(|queue| (QueueId(queue), ms(50))));
        bed.done(1);
        bed.run(ms(6));
        assert!(bed.running().contains(&2), "{:?}", bed.commands);
        assert!(preempted_at(&bed).len() < QUEUES, "all of them are suspended already");
    }
}

#[test]
fn few_are_in_flight_at_once_on_a_device_without_slices() {
    let mut bed = suspended(STOP, &[(1, 2)]);
    assert_eq!(bed.in_flight.len(), 16);
    bed.run(us(100));
    assert_eq!(preempted_at(&bed).len(), QUEUES);
}

#[test]
fn a_queue_is_resumed_although_another_is_suspended_again_and_again() {
    let mut bed = suspended(SLICE, &[(1, 2), (2, 12)]);
    bed.suspend(100, false);
    bed.task(200, with(1));
    bed.done(200);
    bed.suspend(200, true);
    bed.run(ms(20));
    for step in 0..20 {
        if step == 1 {
            bed.suspend(200, false);
        }
        // Long enough for one command each.
        bed.suspend_queue(100, true);
        bed.run(SLICE.preempt_cost.times(4) - us(1));
        bed.suspend_queue(100, false);
        bed.run(SLICE.resume_cost.times(4) - us(1));
    }
    assert!(!bed.stopped().contains(&200), "{:?}", bed.commands);
}

#[test]
fn queues_that_are_opened_and_closed_again_and_again_have_one_command_in_flight() {
    let mut bed = suspended(SLICE, &[(1, 2)]);
    bed.run(ms(20));
    bed.slow.extend((200..300).map(|queue| (QueueId(queue), ms(5))));
    for queue in 200..300 {
        // Of the suspended task: it is preempted at once, if the device has time.
        bed.queue(queue, 100, 0);
        bed.run(us(100));
        bed.vanish_queue(queue);
        assert!(bed.in_flight.len() <= 1, "{:?}", bed.in_flight);
    }
    bed.run(ms(20));
    bed.queue(300, 100, 0);
    bed.run(ms(1));
    assert_eq!(bed.stopped(), (100..END).chain([300]).collect::<Vec<_>>());
}

#[test]
fn a_command_for_a_queue_that_vanished_may_never_end() {
    let mut bed = suspended(SLICE, &[(1, 2)]);
    bed.run(ms(20));
    bed.slow.insert(QueueId(200), ms(100_000));
    bed.queue(200, 100, 0);
    bed.vanish_queue(200);
    bed.queue(201, 100, 0);
    bed.run(ms(50));
    assert!(!bed.stopped().contains(&201), "the device is busy");
    bed.run(ms(100));
    assert!(bed.stopped().contains(&201));
}

#[test]
fn each_task_has_its_turn_to_be_suspended() {
    let mut bed = suspended(SLICE, &[(1, 2), (2, 12)]);
    bed.task(200, with(1));
    bed.done(200);
    bed.suspend(200, true);
    bed.run(SLICE.preempt_cost.times(4 * 4));
    assert!(bed.stopped().contains(&200), "{:?}", bed.stopped());
}
