use std::cell::Cell;

use super::*;
use crate::cuda::CudaError;

/// Time that passes only when somebody looks or waits.
struct FakeClock(Cell<u64>);

impl Clock for FakeClock {
    fn now_ns(&self) -> u64 {
        self.0.set(self.0.get() + 100);
        self.0.get()
    }

    fn wait_until(&self, ns: u64) {
        self.0.set(self.0.get().max(ns));
    }

    fn spin(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }

    fn pause(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }
}

/// One piece after the other, 1 ms each, but nothing at all during a pause.
struct FakeLane<'a> {
    clock: &'a FakeClock,
    complete_at: Vec<u64>,
    free_at: u64,
    held: std::ops::Range<u64>,
    in_flight: i64,
}

const MS: u64 = 1_000_000;

impl<'a> FakeLane<'a> {
    fn new(clock: &'a FakeClock, depth: usize, held: std::ops::Range<u64>) -> Self {
        Self { clock, complete_at: vec![0; depth], free_at: 0, held, in_flight: 0 }
    }
}

impl Lane for FakeLane<'_> {
    fn submit(&mut self, slot: usize) -> Result<(), CudaError> {
        assert_eq!(self.complete_at[slot], 0, "the slot is in use");
        let mut complete_at = self.free_at.max(self.clock.0.get()).saturating_add(MS);
        if self.held.contains(&complete_at) {
            complete_at = self.held.end.saturating_add(MS);
        }
        self.free_at = complete_at;
        self.complete_at[slot] = complete_at;
        self.in_flight += 1;
        Ok(())
    }

    fn is_complete(&mut self, slot: usize) -> Result<bool, CudaError> {
        let is_complete = self.complete_at[slot] <= self.clock.0.get();
        if is_complete {
            self.complete_at[slot] = 0;
            self.in_flight -= 1;
        }
        Ok(is_complete)
    }
}

const PIPELINE: Pipeline = Pipeline { depth: 4, seconds: 1, report_ms: 100, pause_ns: 10_000 };

#[test]
fn a_free_lane_completes_everything_at_its_own_rate() {
    let clock = FakeClock(Cell::new(0));
    let mut lane = FakeLane::new(&clock, 4, 0..0);
    let mut windows = Vec::new();
    let total = PIPELINE
        .run(&mut lane, &clock, &Stop::default(), |window| {
            windows.push(window);
            Ok(())
        })
        .unwrap();
    assert!(total.is_drained && lane.in_flight == 0);
    assert!((1000..=1004).contains(&total.count), "{total:?}");
    assert_eq!(windows.len(), 9, "the window that ends with the load is in the total");
    assert!(windows.iter().all(|window| (98..=102).contains(&window.count)), "{windows:?}");
    for pair in windows.windows(2) {
        assert_eq!(pair[1].from_ns, pair[0].until_ns);
        assert_eq!(pair[1].total, pair[0].total + pair[1].count);
    }
}

#[test]
fn a_lane_that_is_held_back_reports_zero() {
    let clock = FakeClock(Cell::new(0));
    let mut lane = FakeLane::new(&clock, 4, 300 * MS..600 * MS);
    let mut counts = Vec::new();
    let total = PIPELINE
        .run(&mut lane, &clock, &Stop::default(), |window| {
            counts.push(window.count);
            Ok(())
        })
        .unwrap();
    assert_eq!(counts[3..6], [0, 0, 0], "{counts:?}");
    assert!(counts[6] > 90 && total.is_drained);
}

#[test]
fn a_lane_that_never_completes_is_given_up() {
    let clock = FakeClock(Cell::new(0));
    let mut lane = FakeLane::new(&clock, 4, 500 * MS..u64::MAX);
    let total = PIPELINE.run(&mut lane, &clock, &Stop::default(), |_| Ok(())).unwrap();
    assert!(!total.is_drained);
    assert!((495..=500).contains(&total.count), "{total:?}");
    assert!(clock.0.get() < 32_000 * MS);
}

#[test]
fn a_signal_ends_the_submissions_and_keeps_the_count_whole() {
    let clock = FakeClock(Cell::new(0));
    let mut lane = FakeLane::new(&clock, 4, 0..0);
    let stop = Stop::default();
    let mut reports = 0;
    let total = PIPELINE
        .run(&mut lane, &clock, &stop, |_| {
            reports += 1;
            stop.ask();
            Ok(())
        })
        .unwrap();
    assert_eq!(reports, 1);
    assert!(total.is_drained && lane.in_flight == 0);
    assert!((100..=105).contains(&total.count), "{total:?}");
}
