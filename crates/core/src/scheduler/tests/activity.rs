//! When queues count as idle, and what that means on devices with slices.

use alloc::vec;
use alloc::vec::Vec;

use super::{SLICE, STOP, Testbed, ms, us, with};
use crate::backend::Capabilities;
use crate::config::Config;
use crate::decision::Reason;
use crate::event::Event;
use crate::id::{DeviceId, QueueId};
use crate::time::Duration;

// When a queue counts as idle, and when a switch pays.

/// Rings are read every millisecond here.
fn with_low_off(capabilities: Capabilities) -> Testbed {
    let config = Config { interval: ms(1), ..Config::default() };
    let mut bed = Testbed::with_device(config, capabilities);
    bed.busy_task(1, with(2));
    bed.busy_task(2, with(12));
    bed.run_then(us(1500), [2], [1]);
    bed
}

#[test]
fn an_empty_ring_is_not_an_idle_queue_before_the_quiet_time() {
    let mut bed = with_low_off(Capabilities { quiet: ms(3), ..STOP });
    bed.fetched(2);
    bed.run(us(500) + ms(2));
    assert_eq!(bed.running(), [2], "fetched is not finished");
    bed.run_then_on(ms(2), [1]);
}

#[test]
fn a_queue_that_the_device_reports_as_done_needs_no_quiet_time() {
    let mut bed = with_low_off(Capabilities { quiet: ms(3), ..STOP });
    bed.done(2);
    bed.run_then_on(us(600), [1]);
}

#[test]
fn work_that_comes_and_goes_between_two_readings_is_work() {
    let mut bed = with_low_off(Capabilities { quiet: us(1500), ..STOP });
    for _ in 0..10 {
        bed.busy(2);
        bed.fetched(2);
        bed.run_then_on(ms(1), [2]);
    }
}

#[test]
fn a_queue_that_is_off_cannot_show_that_it_is_done() {
    let mut bed = with_low_off(STOP);
    bed.done(1);
    bed.run(ms(10));
    assert!(bed.view(1).active, "its kernel may be saved");
    bed.done(2);
    bed.run_then_off(us(1500), []);
    bed.run(ms(2));
    assert!(!bed.view(1).active);
}

/// Queue 2 has work for a millisecond, then none for a millisecond, and so on.
fn alternate(bed: &mut Testbed, count: usize) {
    for _ in 0..count {
        bed.done(2);
        bed.run(ms(1));
        bed.busy(2);
        bed.run(ms(1));
    }
}

#[test]
fn a_queue_keeps_its_device_in_a_gap_that_is_shorter_than_a_switch() {
    let mut dear =
        with_low_off(Capabilities { preempt_cost: us(600), resume_cost: us(400), ..STOP });
    alternate(&mut dear, 3);
    let before = dear.preempts();
    alternate(&mut dear, 10);
    assert_eq!(dear.preempts(), before, "the gaps are shorter than a switch");
    let anticipates = |reason: &Reason| matches!(reason, Reason::Anticipate { .. });
    assert!(dear.reasons(2).iter().any(anticipates));
    dear.done(2);
    dear.run(ms(5));
    assert_eq!(dear.running(), [1], "no queue waits longer than the limit");
}

#[test]
fn a_changed_switch_cost_takes_effect_at_once() {
    let mut bed = with_low_off(STOP);
    alternate(&mut bed, 3);
    let device = DeviceId(0);
    let (preempt_cost, resume_cost) = (us(600), us(400));
    bed.deliver(Event::DeviceCost { device, preempt_cost, resume_cost });
    alternate(&mut bed, 3);
    let before = bed.preempts();
    alternate(&mut bed, 10);
    assert_eq!(bed.preempts(), before, "now the gaps are shorter than a switch");
}

#[test]
fn a_waiting_queue_is_resumed_in_every_gap_where_a_switch_is_cheap() {
    let mut cheap = with_low_off(STOP);
    alternate(&mut cheap, 3);
    let before = cheap.preempts();
    alternate(&mut cheap, 10);
    assert_eq!(cheap.preempts(), before + 10, "once for every gap");
}

#[test]
fn the_time_for_which_a_queue_was_off_is_not_one_of_its_gaps() {
    let dear = Capabilities { preempt_cost: us(600), resume_cost: us(400), ..STOP };
    let mut bed = with_low_off(dear);
    alternate(&mut bed, 3);
    bed.task(3, with(15));
    // Queue 2 pauses, and before its next request a higher queue has work for a long time.
    bed.fetched(2);
    bed.run(us(1200));
    bed.busy(3);
    bed.run_then_on(ms(1000), [3]);
    bed.busy(2);
    bed.run(ms(5));
    bed.done(3);
    bed.run(ms(5));
    let before = bed.preempts();
    alternate(&mut bed, 5);
    assert_eq!(bed.preempts(), before, "its gaps are as short as ever");
}

#[test]
fn the_wait_for_the_next_request_ends_at_the_announced_time_and_the_limit() {
    // The gaps of a millisecond ask for two, but only a quarter of one is allowed.
    let config = Config { interval: ms(1), linger_max: us(250), ..Config::default() };
    let dear = Capabilities { preempt_cost: us(600), resume_cost: us(400), ..STOP };
    let mut bed = with_low_off(dear);
    bed.reconfigure(config);
    alternate(&mut bed, 3);
    assert!(bed.view(2).active);
    // The next reading, which shows that it is done, is half a millisecond away.
    bed.done(2);
    bed.run(us(500));
    let announced = bed.now;
    assert!(bed.view(2).active, "it waits for its next request");
    bed.run(us(250));
    assert!(!bed.view(2).active, "still waits after {}", bed.now.since(announced));
}

// Kernels that may run although the ring is empty.

/// Rings are read every five milliseconds. The low queue fetched something a while ago, and looks
/// idle.
fn with_empty_ring() -> Testbed {
    let config = Config { interval: ms(5), ..Config::default() };
    let mut bed = Testbed::with_device(config, STOP);
    bed.busy_task(1, with(2));
    bed.task(2, with(12));
    bed.fetched(1);
    bed.run(ms(20));
    assert!(!bed.view(1).active);
    bed
}

#[test]
fn a_possibly_running_queue_is_preempted_for_a_higher_one() {
    let mut bed = with_empty_ring();
    bed.busy(2);
    bed.fetched(2);
    bed.run_then(ms(6), [2], [1]);
    // It is resumed as soon as the other one counts as idle, and preempted again for its next work.
    bed.run_then_off(ms(10), []);
    bed.busy(2);
    bed.run_then_off(ms(6), [1]);
}

#[test]
fn a_possibly_running_queue_blocks_no_other_and_counts_as_idle_after_a_while() {
    let mut bed = with_empty_ring();
    // A high queue with an empty ring does not keep the other one off.
    bed.busy(2);
    bed.fetched(2);
    bed.run_then_off(ms(20), []);
    bed.run(ms(200));
    let before = bed.commands.len();
    bed.busy(2);
    bed.run(ms(50));
    assert_eq!(bed.commands.len(), before, "the low queue counts as idle");
}

#[test]
fn a_queue_that_the_device_reports_as_done_is_not_possibly_running() {
    let mut bed = with_empty_ring();
    bed.done(1);
    bed.run(ms(6));
    bed.busy(2);
    bed.run(ms(20));
    assert_eq!(bed.commands, []);
}

#[test]
fn a_queue_that_cannot_be_preempted_counts_as_idle_after_a_while() {
    let mut bed = with_empty_ring();
    bed.broken.insert(QueueId(1));
    bed.busy(2);
    bed.run(ms(400));
    let before = bed.commands.len();
    assert!(before > 1, "the preempt was retried");
    bed.run(ms(800));
    assert_eq!(bed.commands.len(), before, "it counts as idle");
}

// Devices with time slices: which slices are set, which queues are runnable, which may be held.

const SINGLE_HIGH: Option<Option<Duration>> = Some(Some(Duration::from_millis(1_000)));
const SEVERAL_HIGH: Option<Option<Duration>> = Some(Some(Duration::from_millis(5)));
const TINY: Option<Option<Duration>> = Some(Some(Duration::from_micros(1)));
const RESTORED: Option<Option<Duration>> = Some(None);
const NEVER_SET: Option<Option<Duration>> = None;

fn with_slices() -> Testbed {
    Testbed::with_device(Config::default(), SLICE)
}

#[track_caller]
fn assert_slices<const N: usize>(bed: &Testbed, expected: [Option<Option<Duration>>; N]) {
    for (queue, slice) in (1..).zip(expected) {
        assert_eq!(bed.slices.get(&queue).copied(), slice, "queue {queue}");
    }
}

#[test]
fn slices_follow_the_mix_of_classes() {
    let mut bed = with_slices();
    bed.task(1, with(4));
    bed.task(2, with(4));
    assert_slices(&bed, [NEVER_SET; 2]);
    bed.task(3, with(12));
    assert_slices(&bed, [TINY, TINY, SINGLE_HIGH]);
    bed.task(4, with(9));
    assert_slices(&bed, [TINY, TINY, SEVERAL_HIGH, SEVERAL_HIGH]);
    bed.vanish_task(4);
    assert_slices(&bed, [TINY, TINY, SINGLE_HIGH]);
    bed.change(3, with(4));
    assert_slices(&bed, [RESTORED; 3]);
}

#[test]
fn no_slice_is_set_where_all_priorities_are_equal() {
    let mut bed = with_slices();
    bed.busy_task(1, with(12));
    bed.busy_task(2, with(12));
    bed.run(ms(500));
    assert_slices(&bed, [NEVER_SET; 2]);
    assert_eq!(bed.running(), [1, 2]);
}

#[test]
fn low_levels_without_a_high_queue_are_ordered_by_preempting() {
    let mut bed = with_slices();
    bed.busy_task(1, with(2));
    bed.busy_task(2, with(5));
    bed.run(ms(6));
    assert_slices(&bed, [NEVER_SET; 2]);
    assert_eq!((bed.running(), bed.stopped()), (vec![2], vec![1]));
}

#[test]
fn the_high_class_is_ordered_by_preempting_and_one_low_queue_is_runnable() {
    let mut bed = with_slices();
    for (task, priority) in [(1, 2), (2, 2), (3, 12), (4, 9)] {
        bed.busy_task(task, with(priority));
    }
    bed.run_then(ms(6), [1, 3], [2, 4]);
}

#[test]
fn low_queues_beside_a_high_one_rotate_every_100_ms() {
    let mut bed = with_slices();
    bed.task(9, with(12));
    for task in 1..4 {
        bed.busy_task(task, with(3));
    }
    bed.queue(11, 1, 0);
    bed.busy(11);
    let mut seen = Vec::new();
    bed.run(ms(1));
    for _ in 0..500 {
        bed.run(ms(1));
        assert!(bed.running().len() <= 1, "two tiny slices starve each other");
        seen.extend(bed.running());
    }
    seen.dedup();
    assert_eq!(seen, [1, 2, 3, 11, 1, 2], "two queues of one task are two as well");
    assert_eq!(bed.preempts(), 3 + 5, "100 ms each");
}

#[test]
fn a_queue_that_moves_to_the_high_class_loses_its_turn() {
    let mut bed = with_slices();
    bed.task(9, with(12));
    for task in 1..3 {
        bed.busy_task(task, with(3));
    }
    bed.run_then_on(ms(20), [1]);
    bed.set_queue_priority(1, Some(8));
    bed.run_then_on(us(100), [1, 2]);
    bed.set_queue_priority(1, None);
    bed.run(us(100));
    assert_eq!(bed.running().len(), 1);
}

#[test]
fn holds_are_permitted_for_the_high_queue_with_work_only() {
    let device = DeviceId(0);
    let mut bed = with_slices();
    bed.task(1, with(3));
    assert_eq!(bed.held.get(&device), None, "there is no high queue");
    bed.task(2, with(9));
    bed.task(3, with(12));
    assert_eq!(bed.held.get(&device), Some(&3), "the highest one");
    bed.busy(2);
    bed.run(ms(6));
    assert_eq!(bed.held.get(&device), Some(&2), "the one with work");
    bed.done(2);
    bed.run(ms(20));
    assert_eq!(bed.held.get(&device), Some(&2), "also in its gap");
    bed.busy(2);
    bed.run(ms(6));
    bed.busy(3);
    bed.run(ms(6));
    assert_eq!(bed.held.get(&device), Some(&3), "the higher one");
    bed.forget(3);
    let queue = QueueId(3);
    bed.held.clear();
    bed.deliver(Event::QueueVanished { queue });
    assert_eq!(bed.held.get(&device), Some(&2));
    bed.change(2, with(3));
    assert_eq!(bed.held.get(&device), None);
}

#[test]
fn holds_are_permitted_on_a_device_without_slices_too() {
    let stop = STOP;
    let mut bed = Testbed::with_device(Config::default(), Capabilities { hold: true, ..stop });
    bed.busy_task(2, with(9));
    bed.task(3, with(12));
    bed.run(ms(6));
    assert_eq!(bed.held.get(&DeviceId(0)), Some(&2));
}

#[test]
fn a_low_queue_that_is_not_proven_idle_is_preempted_before_another_runs() {
    let mut bed = with_slices();
    bed.busy_task(1, with(2));
    bed.task(2, with(2));
    bed.task(3, with(12));
    bed.run(ms(20));
    // Its kernel was fetched and takes longer than the quiet time.
    bed.fetched(1);
    bed.run(ms(50));
    assert!(!bed.view(1).active);
    bed.busy(2);
    for _ in 0..400 {
        bed.run(ms(1));
        let low: Vec<u64> = bed.running().into_iter().filter(|queue| *queue < 3).collect();
        assert!(low.len() < 2, "both may run: {low:?}");
    }
    assert!(bed.reasons(1).contains(&Reason::PossiblyRunning));
    assert!(bed.ran(1) > ms(20), "a possibly running kernel gets turns");
}

#[test]
fn a_low_queue_that_is_proven_idle_is_not_preempted_again() {
    let mut bed = with_slices();
    bed.busy_task(1, with(2));
    bed.task(2, with(2));
    bed.task(3, with(12));
    bed.run(ms(20));
    bed.fetched(1);
    bed.run(ms(50));
    bed.busy(2);
    bed.run(ms(10));
    bed.done(1);
    bed.run(ms(20));
    let preempts = bed.preempts();
    bed.run(ms(1_000));
    assert_eq!(bed.preempts(), preempts, "there are no more preempts");
    assert_eq!(bed.stopped(), []);
    assert!(bed.view(2).active && !bed.view(1).active);
}
