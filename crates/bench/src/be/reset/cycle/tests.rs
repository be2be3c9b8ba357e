mod device;

use super::*;
use crate::clock::Clock;
use device::{Cleared, FakeClock, FakeDevice, MS};

const DEPTH: usize = 4;
const END: u64 = 200 * MS;

/// Runs until it is over.
fn run(device: &mut FakeDevice<'_>, clear_ring: bool) -> (Step, Tally, Units) {
    let clock = device.clock();
    let plan = Plan { depth: DEPTH, clear_ring };
    let mut cycle = Cycle::new(plan, device::BLOCKS, clock.now_ns());
    let step = loop {
        assert!(clock.now_ns() < 60_000 * MS, "it does not end");
        match cycle.step(device, clock, END).unwrap() {
            Step::Busy => {}
            Step::Idle => clock.pause(10_000),
            step @ (Step::Done | Step::Stuck) => break step,
        }
    };
    let (tally, units) = cycle.finish(device, step == Step::Done);
    (step, tally, units)
}

fn value(units: &Units, device: &FakeDevice<'_>, key: &str) -> u64 {
    let exactness = units.exactness(Some(&device.data()));
    assert!(!exactness.is_fail(), "{exactness}");
    serde_json::to_value(&exactness).unwrap()[key].as_u64().unwrap()
}

#[test]
fn work_that_nobody_disturbs_runs_once_and_is_never_submitted_again() {
    let clock = FakeClock::default();
    let mut device = FakeDevice::new(&clock, DEPTH, Cleared::ComesBack, &[]);
    let (step, tally, units) = run(&mut device, false);
    assert_eq!(step, Step::Done);
    assert!((198..=204).contains(&tally.completed), "{tally:?}");
    assert_eq!((tally.resets, tally.resubmitted, tally.aside_ns), (0, 0, 0));
    assert_eq!(tally.submitted, tally.completed);
    for key in ["lost", "twice", "left", "vanished", "unfinished"] {
        assert_eq!(value(&units, &device, key), 0, "{key}");
    }
}

/// Requests of 2 ms every 10 ms; they come in the middle of a kernel.
fn requests() -> Vec<(u64, u64)> {
    (1..20).map(|n| (n * 10 * MS + 300_000, n * 10 * MS + 2_300_000)).collect()
}

#[test]
fn a_reset_leaves_at_once_and_goes_on_with_the_first_launch_that_is_not_complete() {
    let clock = FakeClock::default();
    let mut device = FakeDevice::new(&clock, DEPTH, Cleared::ComesBack, &requests());
    let (step, tally, units) = run(&mut device, false);
    assert_eq!(step, Step::Done);
    assert_eq!((tally.resets, tally.marks), (19, 0));
    // Of 200 ms, 38 ms are somebody else's, and each reset may cost a kernel.
    assert!((140..=165).contains(&tally.completed), "{tally:?}");
    assert!((19..=19 * DEPTH as u64).contains(&tally.resubmitted), "{tally:?}");
    assert_eq!(tally.submitted - tally.resubmitted, tally.completed);
    assert!((19 * MS..=38 * MS).contains(&tally.aside_ns), "{tally:?}");
    // A block that runs is waited for, and no longer.
    assert!(tally.leave.quantiles().unwrap().max < 600.0, "{tally:?}");
    assert_eq!((value(&units, &device, "lost"), value(&units, &device, "vanished")), (0, 0));
    assert!(value(&units, &device, "left") > 0);
    // The half of a kernel that had run when the flag was set runs again.
    let twice = value(&units, &device, "twice");
    assert!((1..=19 * 2).contains(&twice), "{twice}");
    assert!(device.longest_beside_request() <= MS / 2 + 1_000);
}

#[test]
fn entries_that_come_back_find_the_flag_and_are_seen_to_leave() {
    let clock = FakeClock::default();
    let mut device = FakeDevice::new(&clock, DEPTH, Cleared::ComesBack, &requests());
    let (step, tally, units) = run(&mut device, true);
    assert_eq!(step, Step::Done);
    assert_eq!((tally.resets, tally.marks), (19, 19));
    assert_eq!(tally.clear.count(), 19);
    assert!(tally.completed > 130, "{tally:?}");
    assert_eq!((value(&units, &device, "lost"), value(&units, &device, "vanished")), (0, 0));
    assert!(value(&units, &device, "left") >= 19 * 2);
}

#[test]
fn entries_that_do_not_come_back_are_seen_to_have_vanished() {
    let clock = FakeClock::default();
    let mut device = FakeDevice::new(&clock, DEPTH, Cleared::Vanishes, &requests());
    let (step, tally, units) = run(&mut device, true);
    assert_eq!(step, Step::Done);
    assert!(tally.completed > 130, "{tally:?}");
    assert_eq!(value(&units, &device, "lost"), 0);
    assert_eq!(value(&units, &device, "vanished"), 19 * (DEPTH as u64 - 1));
}

#[test]
fn entries_that_come_back_after_the_flag_is_down_run_twice_and_are_counted() {
    let clock = FakeClock::default();
    let mut device = FakeDevice::new(&clock, DEPTH, Cleared::ComesBackLate, &requests());
    let (step, tally, units) = run(&mut device, true);
    assert_eq!(step, Step::Done);
    assert_eq!((value(&units, &device, "lost"), value(&units, &device, "vanished")), (0, 0));
    let twice = value(&units, &device, "twice");
    assert!(twice >= 19 * (DEPTH as u64 - 1) * 4, "{twice} {tally:?}");
}

#[test]
fn a_ring_that_stays_stuck_is_given_up_in_time() {
    for (cleared, clear_ring) in [(Cleared::Freezes, true), (Cleared::FreezesAtFlag, false)] {
        let clock = FakeClock::default();
        let mut device = FakeDevice::new(&clock, DEPTH, cleared, &[(50 * MS, 60 * MS)]);
        let (step, tally, units) = run(&mut device, clear_ring);
        assert_eq!(step, Step::Stuck);
        let bound = 60 * MS + u64::try_from(LEAVE_MAX.as_nanos()).unwrap() + MS;
        assert!(clock.now_ns() < bound, "{}", clock.now_ns());
        assert!((45..=50).contains(&tally.completed), "{tally:?}");
        let exactness = serde_json::to_value(units.exactness(None)).unwrap();
        assert_eq!(exactness["result"], "unknown");
        assert_eq!(exactness["unfinished"], tally.submitted - tally.completed);
    }
}

#[test]
fn work_that_never_ends_is_given_up_after_the_end() {
    let clock = FakeClock::default();
    let mut device = FakeDevice::new(&clock, DEPTH, Cleared::FreezesAtFlag, &[(199 * MS, 0)]);
    device.hide_announcements();
    let (step, _, _) = run(&mut device, false);
    assert_eq!(step, Step::Stuck);
    assert!(clock.now_ns() < END + u64::try_from(GRACE.as_nanos()).unwrap() + MS);
}

#[test]
fn a_request_that_never_ends_keeps_us_aside_until_the_end() {
    for clear_ring in [false, true] {
        let clock = FakeClock::default();
        let requests = [(50 * MS + 300_000, u64::MAX)];
        let mut device = FakeDevice::new(&clock, DEPTH, Cleared::ComesBack, &requests);
        let (step, tally, units) = run(&mut device, clear_ring);
        assert_eq!((step, tally.resets), (Step::Done, 1));
        assert!(clock.now_ns() < END + 2 * MS);
        assert!((45..=51).contains(&tally.completed), "{tally:?}");
        // What was in flight is known to be unfinished, not forgotten.
        assert_eq!(value(&units, &device, "unfinished"), tally.submitted - tally.completed);
    }
}

#[test]
fn requests_too_short_to_be_noticed_leave_no_flag_behind() {
    let clock = FakeClock::default();
    let requests: Vec<(u64, u64)> =
        (1..20).map(|n| (n * 10 * MS + 300_000, n * 10 * MS + 300_050)).collect();
    let mut device = FakeDevice::new(&clock, DEPTH, Cleared::ComesBack, &requests);
    let (step, tally, units) = run(&mut device, false);
    assert_eq!((step, tally.resets), (Step::Done, 19));
    assert!(tally.completed > 170, "{tally:?}");
    assert_eq!(value(&units, &device, "lost"), 0);
}
