//! Latency budgets: which slices and holds follow from what was measured.

use super::{SLICE, Testbed, ms, us, with};
use crate::backend::Command;
use crate::busy_periods::BusyTime;
use crate::config::Config;
use crate::event::{Event, SchedAttr};
use crate::id::{DeviceId, QueueId};
use crate::latency_budget::LatencyBudget;

fn budget(percent: u16) -> SchedAttr {
    let latency_budget = LatencyBudget::from_percent(percent).unwrap();
    SchedAttr { latency_budget, ..with(12) }
}

/// A process with a budget beside one of the low class.
fn beside(percent: u16) -> Testbed {
    let mut bed = Testbed::with_device(Config::default(), SLICE);
    bed.busy_task(1, with(2));
    bed.busy_task(2, budget(percent));
    bed.run(ms(20));
    bed
}

/// The process was busy, and submits more in that time the more it is interrupted.
fn measured(bed: &mut Testbed, busy_ms: u64, off_ms: u64) {
    let is_strict = bed.slices[&2] == Some(ms(1_000));
    let is_held = bed.held.contains_key(&DeviceId(0));
    let packets = if is_strict { 100 } else { 200 + 200 * u64::from(!is_held) };
    let time = BusyTime { busy: ms(busy_ms), off: ms(off_ms), lost: ms(off_ms), packets };
    bed.deliver(Event::SlowdownMeasured { queue: QueueId(2), time });
    bed.run(ms(1));
}

#[test]
fn a_budget_that_is_not_used_gives_the_others_slices() {
    let mut bed = beside(20);
    assert_eq!((bed.slices[&2], bed.slices[&1]), (Some(ms(1_000)), Some(us(1))));
    for _ in 0..40 {
        measured(&mut bed, 25, 0);
    }
    assert!(bed.slices[&2] < Some(ms(30)) && bed.slices[&1] > Some(us(100)), "{:?}", bed.slices);
    // The open slices cost nothing either, and are without holds.
    assert!(!bed.held.contains_key(&DeviceId(0)));
    for _ in 0..30 {
        measured(&mut bed, 25, 20);
    }
    assert_eq!((bed.slices[&2], bed.slices[&1]), (Some(ms(1_000)), Some(us(1))));
    assert_eq!(bed.held.get(&DeviceId(0)), Some(&2));
    assert!(bed.view(2).slowdown_percent > Some(20));
    let asked = |(_, command): &&(_, Command)| matches!(command, Command::MeasureSlowdown { .. });
    assert!(bed.commands.iter().filter(asked).count() >= 2, "to begin, and to end");
}

#[test]
fn a_preempted_process_is_not_measured_all_the_time() {
    let mut bed = beside(400);
    for _ in 0..40 {
        measured(&mut bed, 25, 0);
    }
    let last = |bed: &Testbed| {
        let asked = bed.commands.iter().rev().find_map(|(_, command)| match *command {
            Command::MeasureSlowdown { always, .. } => Some(always),
            Command::Preempt { .. }
            | Command::Resume { .. }
            | Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::SetHardwarePriority { .. } => None,
        });
        asked.unwrap()
    };
    assert!(last(&bed));
    bed.suspend(2, true);
    bed.run(ms(20));
    assert!(!last(&bed));
    bed.suspend(2, false);
    bed.run(ms(20));
    assert!(last(&bed));
}

#[test]
fn a_budget_counts_only_beside_lower_ones_and_without_another_high_one() {
    let mut bed = beside(400);
    for _ in 0..40 {
        measured(&mut bed, 25, 0);
    }
    assert!(bed.slices[&1] > Some(us(100)));
    bed.busy_task(3, with(13));
    bed.run(ms(20));
    assert_eq!((bed.slices[&2], bed.slices[&1]), (Some(ms(5)), Some(us(1))));
    bed.vanish_task(3);
    bed.run(ms(20));
    assert_eq!(bed.slices[&2], Some(ms(1_000)), "it begins anew");
    bed.vanish_task(1);
    bed.run(ms(20));
    assert_eq!(bed.slices[&2], None, "it is alone");
}
