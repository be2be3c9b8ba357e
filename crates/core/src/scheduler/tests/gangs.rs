//! Gangs and suspensions.

use alloc::vec;

use super::{SLICE, STOP, Testbed, ms, us, with};
use crate::backend::{Capabilities, Mechanism};
use crate::config::{Aging, Config, PolicyKind};
use crate::decision::Reason;
use crate::event::{Event, SchedAttr};
use crate::id::{DeviceId, GangId, TaskId};
use crate::time::Duration;

// Gangs: tasks that run on all of their devices or on none.

/// Two devices.
fn with_two_devices(policy: PolicyKind) -> Testbed {
    let config = Config { policy, ..Config::default() };
    let mut bed = Testbed::with_device(config, STOP);
    bed.device(1, STOP);
    bed
}

fn in_gang(gang: u64, priority: u8) -> SchedAttr {
    SchedAttr { gang: Some(GangId(gang)), ..with(priority) }
}

#[test]
fn a_gang_that_cannot_run_somewhere_is_off_everywhere() {
    let mut bed = with_two_devices(PolicyKind::Strict);
    bed.task_on(1, 0, in_gang(7, 5));
    bed.task_on(2, 1, in_gang(7, 5));
    bed.task_on(3, 0, with(2));
    bed.run_then(ms(6), [1, 2], [3]);

    bed.task_on(4, 1, with(9));
    bed.run_then_off(ms(6), [1, 2]);
    assert_eq!(bed.running(), [3, 4], "device 0 is not wasted");
    let gang = GangId(7);
    assert!(bed.reasons(1).contains(&Reason::GangBlocked { gang }));

    bed.done(4);
    bed.run_then(ms(6), [1, 2], [3]);
}

#[test]
fn a_device_that_vanishes_no_longer_blocks_a_gang() {
    let mut bed = with_two_devices(PolicyKind::Strict);
    bed.task_on(1, 0, in_gang(7, 5));
    bed.task_on(2, 1, in_gang(7, 5));
    bed.task_on(4, 1, with(9));
    bed.run_then_off(ms(6), [1, 2]);
    bed.forget(2);
    bed.forget(4);
    let device = DeviceId(1);
    bed.deliver(Event::DeviceVanished { device });
    bed.run(us(100));
    assert_eq!(bed.running(), [1], "at once");
}

#[test]
fn a_device_that_is_only_observed_blocks_no_gang() {
    let mut bed = with_two_devices(PolicyKind::RoundRobin);
    bed.device(2, Capabilities { mechanism: Mechanism::ObserveOnly, ..STOP });
    bed.task_on(3, 2, with(9));
    bed.task_on(1, 0, in_gang(7, 5));
    bed.task_on(2, 2, in_gang(7, 5));
    bed.run(ms(50));
    assert_eq!((bed.running(), bed.commands.len()), (vec![1, 2, 3], 0));
}

#[test]
fn the_gang_with_the_highest_member_runs_in_any_order_of_arrival() {
    // Gang 8 comes first on device 1, but gang 7 has the member with the highest priority.
    for order in [[7, 8], [8, 7]] {
        let mut bed = with_two_devices(PolicyKind::Strict);
        for gang in order {
            let priorities = if gang == 7 { [12, 3] } else { [2, 9] };
            for (device, priority) in (0..).zip(priorities) {
                let number = gang * 10 + u64::from(device);
                bed.task_on(number, device, in_gang(gang, priority));
                bed.run(ms(6));
            }
        }
        assert_eq!(bed.running(), [70, 71], "{order:?}");
        assert_eq!(bed.stopped(), [80, 81], "{order:?}");
    }
}

#[test]
fn two_gangs_with_opposite_interests_never_block_each_other() {
    for policy in PolicyKind::ALL {
        let mut bed = with_two_devices(policy);
        for (gang, deadlines) in [(7, [50, 90]), (8, [90, 50])] {
            for (device, deadline) in (0..).zip(deadlines) {
                let number = gang * 10 + u64::from(device);
                let priority = if deadline == 50 { 10 } else { 5 };
                let deadline = Some(ms(deadline));
                let attr = in_gang(gang, priority);
                bed.task_on(number, device, SchedAttr { deadline, ..attr });
            }
        }
        // Not in the middle of a switch.
        bed.run(us(500));
        for _ in 0..100 {
            bed.run(ms(3));
            let running = bed.running();
            let whole = running == [70, 71] || running == [80, 81];
            assert!(whole, "{policy}: {running:?} runs");
        }
    }
}

fn ran<const N: usize>(bed: &Testbed, queues: [u64; N]) -> [Duration; N] {
    queues.map(|queue| bed.ran(queue))
}

#[test]
fn gangs_take_turns_as_a_whole() {
    for policy in [PolicyKind::RoundRobin, PolicyKind::Fair] {
        let mut bed = with_two_devices(policy);
        for (number, device) in [(70, 0), (80, 1), (81, 0), (71, 1)] {
            bed.task_on(number, device, in_gang(number / 10, 5));
        }
        bed.run(ms(1000));
        for time in ran(&bed, [70, 71, 80, 81]) {
            assert!(time > ms(450), "{policy}: {time} of a second");
        }
    }
}

#[test]
fn a_gang_is_not_starved_by_turns_that_end_at_different_times() {
    for policy in [PolicyKind::RoundRobin, PolicyKind::Fair] {
        let mut bed = with_two_devices(policy);
        bed.task_on(1, 0, with(5));
        bed.run(ms(1));
        bed.task_on(2, 1, with(5));
        bed.run(ms(6));
        bed.task_on(70, 0, in_gang(7, 5));
        bed.task_on(71, 1, in_gang(7, 5));
        bed.run(ms(2000));
        let [first, second, gang, rest] = ran(&bed, [1, 2, 70, 71]);
        assert!(gang > ms(500) && rest > ms(500), "{policy}: {gang} {rest}");
        assert!(first > ms(500) && second > ms(500), "{policy}: {first} {second}");
    }
}

#[test]
fn members_of_a_gang_on_one_device_have_their_turn_together() {
    let mut bed = with_two_devices(PolicyKind::RoundRobin);
    bed.task_on(70, 0, in_gang(7, 5));
    bed.task_on(1, 0, with(5));
    bed.task_on(71, 0, in_gang(7, 5));
    bed.run(us(500));
    for _ in 0..50 {
        bed.run(ms(3));
        let running = bed.running();
        assert!(running == [70, 71] || running == [1], "{running:?}");
    }
    assert!(bed.ran(1) > ms(50) && bed.ran(71) > ms(50));
}

#[test]
fn a_member_that_often_becomes_idle_does_not_prolong_its_gangs_turn() {
    let mut bed = with_two_devices(PolicyKind::RoundRobin);
    bed.task_on(70, 0, in_gang(7, 5));
    bed.task_on(71, 1, in_gang(7, 5));
    bed.task_on(1, 0, with(5));
    for _ in 0..100 {
        bed.done(71);
        bed.run(ms(5));
        bed.busy(71);
        bed.run(ms(5));
    }
    assert!(bed.ran(1) > ms(300), "{} of a second", bed.ran(1));
}

// Suspensions, which override any priority.

#[test]
fn a_suspended_high_task_is_off_until_the_suspension_ends() {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.busy_task(1, with(2));
    bed.busy_task(2, with(12));
    bed.run_then(ms(6), [2], [1]);
    bed.suspend(2, true);
    bed.run_then(ms(50), [1], [2]);
    assert_eq!(bed.reasons(2), [Reason::Suspended]);
    bed.suspend(2, false);
    bed.run_then(ms(1), [2], [1]);
}

#[test]
fn a_suspended_task_stays_off_while_the_device_is_idle() {
    for capabilities in [STOP, SLICE] {
        let mut bed = Testbed::with_device(Config::default(), capabilities);
        bed.busy_task(1, with(12));
        bed.run(ms(6));
        bed.suspend(1, true);
        bed.run_then_off(ms(500), [1]);
        assert_eq!(bed.preempts(), 1);
        bed.suspend(1, false);
        bed.run_then_on(ms(1), [1]);
    }
}

#[test]
fn idle_and_new_queues_of_a_suspended_task_are_off_too() {
    let mut bed = Testbed::with_device(Config::default(), SLICE);
    bed.task(1, with(3));
    bed.done(1);
    bed.run(ms(20));
    bed.suspend(1, true);
    bed.queue(11, 1, 0);
    bed.run_then_off(ms(20), [1, 11]);
    bed.hint(1, None);
    bed.run(ms(20));
    assert_eq!(bed.stopped(), [1, 11], "a hint does not end a suspension");
    bed.suspend(1, false);
    bed.run_then_off(ms(200), []);
}

#[test]
fn a_suspended_task_does_not_starve() {
    let aging = Some(Aging { after: ms(20), grant: ms(5) });
    for capabilities in [STOP, SLICE] {
        let mut bed = Testbed::with_device(Config { aging, ..Config::default() }, capabilities);
        bed.busy_task(1, with(2));
        bed.busy_task(2, with(12));
        bed.run(ms(6));
        bed.suspend(1, true);
        // A turn that was given before may still end.
        bed.run(ms(30));
        let preempts = bed.preempts();
        bed.run_then(ms(300), [2], [1]);
        assert_eq!(bed.preempts(), preempts, "no queue is preempted for it");
    }
}

#[test]
fn a_gang_is_suspended_as_a_whole() {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.device(1, STOP);
    let gang = SchedAttr { gang: Some(GangId(1)), ..with(5) };
    bed.task(1, gang);
    bed.task_on(2, 1, gang);
    bed.busy(1);
    bed.run_then_on(ms(6), [1, 2]);
    bed.suspend(2, true);
    bed.run_then_off(ms(6), [1, 2]);
    assert_eq!(bed.reasons(1), [Reason::GangBlocked { gang: GangId(1) }]);
    bed.suspend(2, false);
    bed.run_then_on(ms(6), [1, 2]);
}

#[test]
fn no_hold_is_permitted_for_a_suspended_queue() {
    let mut bed = Testbed::with_device(Config::default(), SLICE);
    bed.busy_task(1, with(9));
    bed.busy_task(2, with(12));
    bed.run(ms(6));
    assert_eq!(bed.held.get(&DeviceId(0)), Some(&2));
    bed.suspend(2, true);
    bed.run(ms(6));
    assert_eq!(bed.held.get(&DeviceId(0)), Some(&1));
    bed.suspend(1, true);
    bed.run(ms(6));
    assert_eq!(bed.held.get(&DeviceId(0)), None);
}

#[test]
fn a_suspended_task_can_vanish() {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.busy_task(1, with(9));
    bed.run(ms(6));
    bed.suspend(1, true);
    bed.vanish_task(1);
    bed.run(ms(6));
    assert!(
        bed.scheduler
            .handle_event(bed.now, Event::TaskSuspended { task: TaskId(1), suspended: false })
            .is_err()
    );
}

#[test]
fn one_queue_is_off_while_the_other_of_its_task_runs() {
    for capabilities in [STOP, SLICE] {
        let mut bed = Testbed::with_device(Config::default(), capabilities);
        bed.task(1, with(9));
        bed.queue(11, 1, 0);
        bed.busy(1);
        bed.busy(11);
        bed.suspend_queue(11, true);
        bed.run_then(ms(300), [1], [11]);
        assert_eq!(bed.reasons(11).last(), Some(&Reason::Suspended));
        bed.suspend_queue(11, false);
        bed.run(ms(300));
        assert!(bed.view(11).totals.ran > ms(10), "{:?}", bed.view(11));
    }
}

#[test]
fn a_queue_is_off_as_long_as_it_or_its_task_is_suspended() {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.busy_task(1, with(9));
    bed.suspend_queue(1, true);
    bed.suspend(1, true);
    bed.run(ms(6));
    bed.suspend(1, false);
    bed.run(ms(6));
    assert_eq!(bed.stopped(), [1], "the queue itself is still suspended");
    bed.suspend(1, true);
    bed.suspend_queue(1, false);
    bed.run(ms(6));
    assert_eq!(bed.stopped(), [1], "its task is still suspended");
    bed.suspend(1, false);
    bed.run_then_on(ms(6), [1]);
    assert_eq!(bed.preempts(), 1);
}

#[test]
fn a_gang_is_off_while_one_of_its_queues_is_suspended() {
    let mut bed = Testbed::with_device(Config::default(), STOP);
    bed.device(1, STOP);
    let gang = SchedAttr { gang: Some(GangId(1)), ..with(5) };
    bed.task(1, gang);
    bed.task_on(2, 1, gang);
    bed.busy(1);
    bed.run(ms(6));
    bed.suspend_queue(2, true);
    bed.run_then_off(ms(6), [1, 2]);
    bed.suspend_queue(2, false);
    bed.run_then_on(ms(6), [1, 2]);
}
