//! The latency-critical load loop: an open loop, in which requests are due at fixed times.
//!
//! A closed loop, which sends the next request when the last one is done, measures few of the slow
//! moments: while it waits, it sends nothing. Here the schedule is fixed, and the time that a
//! request waits for the one before it counts. The device is behind [`Service`].

use crate::clock::Clock;
use crate::failure::Failure;
use crate::lines::{Latency, LcFinal};
use crate::stop::Stop;

/// A request that begins later than this after it was due counts as missed.
const LATE_NS: u64 = 50_000;
/// The longest wait without checking whether a signal or the runner ended the load.
const WAIT_MAX_NS: u64 = 50_000_000;

pub(crate) trait Service {
    /// Runs one request and returns when it is done.
    fn serve(&mut self) -> Result<(), Failure>;

    /// The next request is due soon.
    fn expect(&mut self) {}
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenLoop {
    /// The beginning, from which all due times count.
    pub(crate) begin_ns: u64,
    /// Requests due in this time run but do not count.
    pub(crate) warmup_ns: u64,
    /// Requests due in this time after the warm-up count.
    pub(crate) measured_ns: u64,
    /// How long before a request is due `Service::expect` is called.
    pub(crate) ahead_ns: u64,
}

/// One request that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) due_ns: u64,
    pub(crate) begin_ns: u64,
    /// When it ended; for one that could not begin before the end of the load, when that was found.
    pub(crate) end_ns: u64,
    pub(crate) is_served: bool,
}

impl OpenLoop {
    /// Serves requests until the time is over or `stop` is set.
    pub(crate) fn run(
        self,
        schedule: impl Iterator<Item = u64>,
        service: &mut impl Service,
        clock: &impl Clock,
        stop: &Stop,
        mut record: impl FnMut(Sample),
    ) -> Result<LcFinal, Failure> {
        let begin = self.begin_ns;
        let from_ns = begin + self.warmup_ns;
        let mut end = from_ns + self.measured_ns;
        let (mut latency, mut service_time) = (Latency::new(), Latency::new());
        let (mut missed, mut unserved, mut hints_late) = (0, 0, 0);
        for offset in schedule {
            let due_ns = begin.saturating_add(offset);
            let expected_ns = due_ns.saturating_sub(self.ahead_ns).min(end);
            if self.ahead_ns > 0 && wait(expected_ns, clock, stop) {
                let late_ns = clock.now_ns() - expected_ns;
                hints_late += u64::from(due_ns >= from_ns && late_ns > LATE_NS);
                service.expect();
            }
            if !wait(due_ns.min(end), clock, stop) {
                end = end.min(clock.now_ns());
            }
            if due_ns >= end {
                break;
            }
            let begin_ns = clock.now_ns();
            let is_served = begin_ns < end;
            if is_served {
                service.serve()?;
            }
            let end_ns = if is_served { clock.now_ns() } else { begin_ns };
            if due_ns < from_ns {
                continue;
            }
            latency.record(end_ns - due_ns);
            if is_served {
                service_time.record(end_ns - begin_ns);
                missed += u64::from(begin_ns - due_ns > LATE_NS);
            } else {
                unserved += 1;
            }
            record(Sample { due_ns, begin_ns, end_ns, is_served });
        }
        Ok(LcFinal {
            round: None,
            from_ns,
            until_ns: end,
            n: latency.count(),
            missed,
            unserved,
            hints_late,
            latency_us: latency.quantiles(),
            service_us: service_time.quantiles(),
            device_us: None,
            exactness: None,
            memory: None,
        })
    }
}

/// Waits until that time. False if the load was ended before.
fn wait(until_ns: u64, clock: &impl Clock, stop: &Stop) -> bool {
    loop {
        if stop.is_asked() {
            return false;
        }
        let now = clock.now_ns();
        if now >= until_ns {
            return true;
        }
        clock.wait_until(until_ns.min(now + WAIT_MAX_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::testing::FakeClock;
    use crate::schedule::periodic;

    const MS: u64 = 1_000_000;

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

    fn run(slow: fn(u64) -> u64, warmup_ms: u64, ms: u64) -> (LcFinal, Vec<Sample>) {
        let clock = FakeClock::default();
        let mut service = FakeService { clock: clock.clone(), served: 0, slow };
        let schedule = periodic(10 * MS, 0);
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
    fn requests_that_begin_in_time_have_the_latency_of_the_service() {
        let (outcome, samples) = run(|_| 1, 0, 100);
        assert_eq!(latencies_ms(&samples), [1; 10]);
        assert_eq!((outcome.missed, outcome.unserved), (0, 0));
        assert_eq!(outcome.latency_us, outcome.service_us);
    }

    #[test]
    fn requests_behind_a_slow_one_are_late_but_their_service_time_is_not_longer() {
        let (outcome, samples) = run(|index| if index == 2 { 35 } else { 1 }, 0, 100);
        // The third ends at 55 ms; those due at 30, 40 and 50 ms end at 56, 57 and 58 ms.
        assert_eq!(latencies_ms(&samples), [1, 1, 35, 26, 17, 8, 1, 1, 1, 1]);
        let service: Vec<u64> =
            samples.iter().map(|sample| (sample.end_ns - sample.begin_ns) / MS).collect();
        assert_eq!(service, [1, 1, 35, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!((outcome.missed, outcome.unserved), (3, 0));
    }

    #[test]
    fn requests_that_never_began_count_in_the_latency() {
        let (outcome, samples) = run(|_| 48, 0, 100);
        // Three begin before the end (at 0, 48 and 96 ms); the third ends at 144 ms.
        let served: Vec<Sample> =
            samples.iter().copied().filter(|sample| sample.is_served).collect();
        assert_eq!(latencies_ms(&served), [48, 86, 124]);
        assert_eq!(latencies_ms(&samples)[3..], [114, 104, 94, 84, 74, 64, 54]);
        assert_eq!(outcome.unserved, 7);
        assert_eq!((outcome.n, samples.len()), (10, 10));
        // Due at 30 to 90 ms, and at 144 ms still waiting.
        let quantiles = outcome.latency_us.unwrap();
        assert!(quantiles.p50 > 80_000.0, "{quantiles:?}");
        assert!(quantiles.max > 120_000.0, "{quantiles:?}");
    }

    #[test]
    fn requests_of_the_warm_up_run_but_do_not_count() {
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
        let schedule = periodic(10 * MS, 0);
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
    fn due_times_count_from_the_given_beginning() {
        let clock = FakeClock::default();
        let mut service = FakeService { clock: clock.clone(), served: 0, slow: |_| 1 };
        let schedule = periodic(10 * MS, 3 * MS);
        let open_loop = OpenLoop { begin_ns: 50 * MS, measured_ns: 20 * MS, ..OpenLoop::default() };
        let mut due = Vec::new();
        open_loop
            .run(schedule, &mut service, &clock, &Stop::default(), |sample| due.push(sample.due_ns))
            .unwrap();
        assert_eq!(due, [53 * MS, 63 * MS]);
    }
}
