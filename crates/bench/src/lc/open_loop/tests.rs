use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::schedule::Arrivals;

const MS: u64 = 1_000_000;

/// Time that passes only when somebody waits.
#[derive(Clone, Default)]
struct FakeClock(Rc<Cell<u64>>);

impl Clock for FakeClock {
    fn now_ns(&self) -> u64 {
        self.0.get()
    }

    fn wait_until(&self, ns: u64) {
        self.0.set(self.0.get().max(ns));
    }

    fn spin(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }

    fn pause(&self, ns: u64) {
        self.spin(ns);
    }
}

/// Every request takes 1 ms, but for some that take longer.
struct FakeService {
    clock: FakeClock,
    served: u64,
    slow: fn(u64) -> u64,
}

impl Service for FakeService {
    fn serve(&mut self) -> Result<(), Failure> {
        self.clock.spin((self.slow)(self.served) * MS);
        self.served += 1;
        Ok(())
    }
}

fn run(slow: fn(u64) -> u64, warmup_ms: u64, ms: u64) -> (Outcome, Vec<Sample>) {
    let clock = FakeClock::default();
    let mut service = FakeService { clock: clock.clone(), served: 0, slow };
    let schedule = Schedule::new(Arrivals::Periodic { every_ns: 10 * MS, phase_ns: 0 });
    let open_loop =
        OpenLoop { warmup_ns: warmup_ms * MS, measured_ns: ms * MS, ..OpenLoop::default() };
    let mut samples = Vec::new();
    let outcome = open_loop
        .run(schedule, &mut service, &clock, &Stop::default(), |sample| samples.push(sample))
        .unwrap();
    (outcome, samples)
}

fn latencies_ms(samples: &[Sample]) -> Vec<u64> {
    samples.iter().map(|sample| (sample.end_ns - sample.due_ns) / MS).collect()
}

#[test]
fn requests_in_time_take_what_the_service_takes() {
    let (outcome, samples) = run(|_| 1, 0, 100);
    assert_eq!(latencies_ms(&samples), [1; 10]);
    assert_eq!((outcome.missed, outcome.unserved), (0, 0));
    assert_eq!(outcome.latency.quantiles(), outcome.service.quantiles());
}

#[test]
fn one_slow_request_makes_those_behind_it_late_but_not_slow() {
    let (outcome, samples) = run(|index| if index == 2 { 35 } else { 1 }, 0, 100);
    // The third ends at 55 ms; those due at 30, 40 and 50 ms end at 56, 57 and 58 ms.
    assert_eq!(latencies_ms(&samples), [1, 1, 35, 26, 17, 8, 1, 1, 1, 1]);
    let service: Vec<u64> =
        samples.iter().map(|sample| (sample.end_ns - sample.begin_ns) / MS).collect();
    assert_eq!(service, [1, 1, 35, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!((outcome.missed, outcome.unserved), (3, 0));
}

#[test]
fn overload_is_not_hidden_by_requests_that_never_began() {
    let (outcome, samples) = run(|_| 48, 0, 100);
    // Three begin before the end (at 0, 48 and 96 ms); the third ends at 144 ms.
    let served: Vec<Sample> = samples.iter().copied().filter(|sample| sample.is_served).collect();
    assert_eq!(latencies_ms(&served), [48, 86, 124]);
    assert_eq!(latencies_ms(&samples)[3..], [114, 104, 94, 84, 74, 64, 54]);
    assert_eq!(outcome.unserved, 7);
    assert_eq!(outcome.latency.count(), 10);
    assert_eq!(outcome.service.count(), 3);
    // Due at 30 to 90 ms, and at 144 ms still waiting.
    let quantiles = outcome.latency.quantiles().unwrap();
    assert!(quantiles.p50 > 80_000.0, "{quantiles:?}");
    assert!(quantiles.max > 120_000.0, "{quantiles:?}");
}

#[test]
fn the_warm_up_runs_but_does_not_count() {
    let (outcome, samples) = run(|index| if index < 3 { 5 } else { 1 }, 30, 50);
    assert_eq!(latencies_ms(&samples), [1; 5]);
    assert_eq!(samples[0].due_ns, 30 * MS);
    assert_eq!((outcome.from_ns, outcome.until_ns), (30 * MS, 80 * MS));
}

#[test]
fn a_signal_ends_the_measurement() {
    let clock = FakeClock::default();
    let stop = Stop::default();
    let mut service = FakeService { clock: clock.clone(), served: 0, slow: |_| 1 };
    let schedule = Schedule::new(Arrivals::Periodic { every_ns: 10 * MS, phase_ns: 0 });
    let open_loop = OpenLoop { measured_ns: 1_000 * MS, ..OpenLoop::default() };
    let outcome = open_loop
        .run(schedule, &mut service, &clock, &stop, |sample| {
            if sample.due_ns == 40 * MS {
                stop.ask();
            }
        })
        .unwrap();
    assert_eq!(service.served, 5);
    assert_eq!(outcome.unserved, 0);
    assert_eq!(outcome.until_ns, 41 * MS);
}

#[test]
fn all_times_count_from_the_given_beginning() {
    let clock = FakeClock::default();
    let mut service = FakeService { clock: clock.clone(), served: 0, slow: |_| 1 };
    let schedule = Schedule::new(Arrivals::Periodic { every_ns: 10 * MS, phase_ns: 3 * MS });
    let open_loop = OpenLoop { begin_ns: 50 * MS, measured_ns: 20 * MS, ..OpenLoop::default() };
    let mut due = Vec::new();
    open_loop
        .run(schedule, &mut service, &clock, &Stop::default(), |sample| due.push(sample.due_ns))
        .unwrap();
    assert_eq!(due, [53 * MS, 63 * MS]);
}
