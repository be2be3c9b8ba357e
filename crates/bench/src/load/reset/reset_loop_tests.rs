use super::fake_device::{BLOCKS, FakeDevice, MS, RemovedEntries};
use super::reset_loop::{DRAIN, LEAVE_MAX, ResetCounts, ResetLoop, ResetOptions, Step};
use super::units::Units;
use crate::clock::Clock;
use crate::clock::testing::FakeClock;

const DEPTH: usize = 4;
const END: u64 = 200 * MS;

/// Runs until it is over.
fn run(device: &mut FakeDevice<'_>, clear_ring: bool) -> (Step, ResetCounts, Units) {
    let clock = device.clock;
    let options = ResetOptions { depth: DEPTH, clear_ring };
    let mut reset_loop = ResetLoop::new(options, BLOCKS, clock.now_ns());
    let step = loop {
        assert!(clock.now_ns() < 60_000 * MS, "it does not end");
        match reset_loop.step(device, clock, END).unwrap() {
            Step::Busy => {}
            Step::Idle => clock.pause(10_000),
            step @ (Step::Done | Step::Stuck) => break step,
        }
    };
    let (counts, units) = reset_loop.finish(device, step == Step::Done);
    (step, counts, units)
}

fn value(units: &Units, device: &FakeDevice<'_>, key: &str) -> u64 {
    let exactness = units.exactness(Some(&device.data()));
    assert!(!exactness.is_fail(), "{exactness}");
    serde_json::to_value(&exactness).unwrap()[key].as_u64().unwrap()
}

#[test]
fn without_requests_every_launch_runs_once_and_is_never_submitted_again() {
    let clock = FakeClock::ticking();
    let mut device = FakeDevice::new(&clock, DEPTH, RemovedEntries::ComesBack, &[]);
    let (step, counts, units) = run(&mut device, false);
    assert_eq!(step, Step::Done);
    assert!((198..=204).contains(&counts.completed), "{counts:?}");
    assert_eq!((counts.resets, counts.resubmitted, counts.aside_ns), (0, 0, 0));
    assert_eq!(counts.submitted, counts.completed);
    for key in ["lost", "twice", "left", "vanished", "unfinished"] {
        assert_eq!(value(&units, &device, key), 0, "{key}");
    }
}

/// Requests of 2 ms every 10 ms; each begins in the middle of a kernel.
fn requests() -> Vec<(u64, u64)> {
    (1..20).map(|n| (n * 10 * MS + 300_000, n * 10 * MS + 2_300_000)).collect()
}

#[test]
fn after_a_reset_submission_begins_with_the_first_launch_that_is_not_complete() {
    let clock = FakeClock::ticking();
    let mut device = FakeDevice::new(&clock, DEPTH, RemovedEntries::ComesBack, &requests());
    let (step, counts, units) = run(&mut device, false);
    assert_eq!(step, Step::Done);
    assert_eq!((counts.resets, counts.marks), (19, 0));
    // Requests take 38 of 200 ms, and each reset may cost a kernel.
    assert!((140..=165).contains(&counts.completed), "{counts:?}");
    assert!((19..=19 * DEPTH as u64).contains(&counts.resubmitted), "{counts:?}");
    assert_eq!(counts.submitted - counts.resubmitted, counts.completed);
    assert!((19 * MS..=38 * MS).contains(&counts.aside_ns), "{counts:?}");
    // A reset takes as long as a running block.
    assert!(counts.leave.quantiles().unwrap().max < 600.0, "{counts:?}");
    assert_eq!((value(&units, &device, "lost"), value(&units, &device, "vanished")), (0, 0));
    assert!(value(&units, &device, "left") > 0);
    // The half of a kernel that had run when the flag was set runs again.
    let twice = value(&units, &device, "twice");
    assert!((1..=19 * 2).contains(&twice), "{twice}");
    assert!(device.longest_beside_request <= MS / 2 + 1_000);
}

#[test]
fn removed_launches_that_run_after_all_find_the_flag_and_exit() {
    let clock = FakeClock::ticking();
    let mut device = FakeDevice::new(&clock, DEPTH, RemovedEntries::ComesBack, &requests());
    let (step, counts, units) = run(&mut device, true);
    assert_eq!(step, Step::Done);
    assert_eq!((counts.resets, counts.marks), (19, 19));
    assert_eq!(counts.clear.count(), 19);
    assert!(counts.completed > 130, "{counts:?}");
    assert_eq!((value(&units, &device, "lost"), value(&units, &device, "vanished")), (0, 0));
    assert!(value(&units, &device, "left") >= 19 * 2);
}

#[test]
fn removed_launches_that_never_run_are_counted_as_vanished() {
    let clock = FakeClock::ticking();
    let mut device = FakeDevice::new(&clock, DEPTH, RemovedEntries::Vanishes, &requests());
    let (step, counts, units) = run(&mut device, true);
    assert_eq!(step, Step::Done);
    assert!(counts.completed > 130, "{counts:?}");
    assert_eq!(value(&units, &device, "lost"), 0);
    assert_eq!(value(&units, &device, "vanished"), 19 * (DEPTH as u64 - 1));
}

#[test]
fn removed_launches_that_run_after_the_flag_is_cleared_count_as_run_twice() {
    let clock = FakeClock::ticking();
    let mut device = FakeDevice::new(&clock, DEPTH, RemovedEntries::ComesBackLate, &requests());
    let (step, counts, units) = run(&mut device, true);
    assert_eq!(step, Step::Done);
    assert_eq!((value(&units, &device, "lost"), value(&units, &device, "vanished")), (0, 0));
    let twice = value(&units, &device, "twice");
    assert!(twice >= 19 * (DEPTH as u64 - 1) * 4, "{twice} {counts:?}");
}

#[test]
fn a_stuck_ring_ends_the_load_in_time() {
    for (cleared, clear_ring) in
        [(RemovedEntries::Freezes, true), (RemovedEntries::FreezesAtFlag, false)]
    {
        let clock = FakeClock::ticking();
        let mut device = FakeDevice::new(&clock, DEPTH, cleared, &[(50 * MS, 60 * MS)]);
        let (step, counts, units) = run(&mut device, clear_ring);
        assert_eq!(step, Step::Stuck);
        let bound = 60 * MS + u64::try_from(LEAVE_MAX.as_nanos()).unwrap() + MS;
        assert!(clock.now_ns() < bound, "{}", clock.now_ns());
        assert!((45..=50).contains(&counts.completed), "{counts:?}");
        let exactness = serde_json::to_value(units.exactness(None)).unwrap();
        assert_eq!(exactness["result"], "unknown");
        assert_eq!(exactness["unfinished"], counts.submitted - counts.completed);
    }
}

#[test]
fn kernels_that_never_complete_end_the_load_after_the_time_to_drain() {
    let clock = FakeClock::ticking();
    let mut device =
        FakeDevice::new(&clock, DEPTH, RemovedEntries::FreezesAtFlag, &[(199 * MS, 0)]);
    device.is_hidden = true;
    let (step, _, _) = run(&mut device, false);
    assert_eq!(step, Step::Stuck);
    assert!(clock.now_ns() < END + u64::try_from(DRAIN.as_nanos()).unwrap() + MS);
}

#[test]
fn a_request_that_never_ends_keeps_the_load_off_the_device_until_the_end() {
    for clear_ring in [false, true] {
        let clock = FakeClock::ticking();
        let requests = [(50 * MS + 300_000, u64::MAX)];
        let mut device = FakeDevice::new(&clock, DEPTH, RemovedEntries::ComesBack, &requests);
        let (step, counts, units) = run(&mut device, clear_ring);
        assert_eq!((step, counts.resets), (Step::Done, 1));
        assert!(clock.now_ns() < END + 2 * MS);
        assert!((45..=51).contains(&counts.completed), "{counts:?}");
        // Launches in flight are counted as unfinished.
        assert_eq!(value(&units, &device, "unfinished"), counts.submitted - counts.completed);
    }
}

#[test]
fn requests_too_short_to_be_seen_leave_no_flag_set() {
    let clock = FakeClock::ticking();
    let requests: Vec<(u64, u64)> =
        (1..20).map(|n| (n * 10 * MS + 300_000, n * 10 * MS + 300_050)).collect();
    let mut device = FakeDevice::new(&clock, DEPTH, RemovedEntries::ComesBack, &requests);
    let (step, counts, units) = run(&mut device, false);
    assert_eq!((step, counts.resets), (Step::Done, 19));
    assert!(counts.completed > 170, "{counts:?}");
    assert_eq!(value(&units, &device, "lost"), 0);
}
