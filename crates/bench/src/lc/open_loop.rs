//! Requests that do not wait for each other to be due.
//!
//! A program that sends the next request only after the last one came back measures few of the
//! bad moments: while it waits, it asks nothing. Here the schedule is fixed, and a request that
//! had to wait for the one before it has waited.

use crate::clock::Clock;
use crate::failure::Failure;
use crate::latency::Latency;
use crate::schedule::Schedule;
use crate::stop::Stop;

/// A request that begins later than this after it was due has missed its time.
const LATE_NS: u64 = 50_000;
/// The longest wait without looking whether somebody asked to stop.
const LOOK_NS: u64 = 100_000_000;

/// Serves one request, from beginning to end.
pub(super) trait Service {
    /// Returns when it is served.
    fn serve(&mut self) -> Result<(), Failure>;

    /// The next request is due soon.
    fn expect(&mut self) {}
}

/// When and how long to run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenLoop {
    /// The beginning, from which all due times count.
    pub(super) begin_ns: u64,
    /// Requests due this soon run but do not count.
    pub(super) warmup_ns: u64,
    /// Requests due in this time after it count.
    pub(super) measured_ns: u64,
    /// So long before a request is due it is expected.
    pub(super) ahead_ns: u64,
}

/// One request that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) due_ns: u64,
    pub(super) begin_ns: u64,
    /// When it ended; for one that could not begin before the end, when that was found.
    pub(super) end_ns: u64,
    /// Whether it was served at all.
    pub(super) is_served: bool,
}

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// When the measurement began and ended.
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    /// From due to done. A request that could not begin before the end counts with the time it
    /// had waited by then.
    pub(super) latency: Latency,
    /// From begun to done.
    pub(super) service: Latency,
    /// Requests that began late.
    pub(super) missed: u64,
    /// Requests that could not begin before the end.
    pub(super) unserved: u64,
    /// Requests that were expected later than they should have been.
    pub(super) expected_late: u64,
}

impl OpenLoop {
    /// Serves what is due until the time is over or somebody asks to stop.
    pub(super) fn run(
        self,
        schedule: Schedule,
        service: &mut impl Service,
        clock: &impl Clock,
        stop: &Stop,
        mut record: impl FnMut(Sample),
    ) -> Result<Outcome, Failure> {
        let begin = self.begin_ns;
        let from_ns = begin + self.warmup_ns;
        let mut end = from_ns + self.measured_ns;
        let (latency, service_time) = (Latency::new(), Latency::new());
        let mut outcome = Outcome {
            from_ns,
            until_ns: end,
            latency,
            service: service_time,
            missed: 0,
            unserved: 0,
            expected_late: 0,
        };
        for offset in schedule {
            let due_ns = begin.saturating_add(offset);
            let expected_ns = due_ns.saturating_sub(self.ahead_ns).min(end);
            if self.ahead_ns > 0 && wait(expected_ns, clock, stop) == Waited::Enough {
                let late_ns = clock.now_ns() - expected_ns;
                outcome.expected_late += u64::from(due_ns >= from_ns && late_ns > LATE_NS);
                service.expect();
            }
            if wait(due_ns.min(end), clock, stop) == Waited::Asked {
                end = end.min(clock.now_ns());
            }
            if due_ns >= end {
                break;
            }
            let begin_ns = clock.now_ns();
            if begin_ns >= end {
                if due_ns >= from_ns {
                    outcome.latency.record(begin_ns - due_ns);
                    outcome.unserved += 1;
                    record(Sample { due_ns, begin_ns, end_ns: begin_ns, is_served: false });
                }
                continue;
            }
            service.serve()?;
            let end_ns = clock.now_ns();
            if due_ns >= from_ns {
                outcome.latency.record(end_ns - due_ns);
                outcome.service.record(end_ns - begin_ns);
                outcome.missed += u64::from(begin_ns - due_ns > LATE_NS);
                record(Sample { due_ns, begin_ns, end_ns, is_served: true });
            }
        }
        outcome.until_ns = end;
        Ok(outcome)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// The time has come.
    Enough,
    /// Somebody asked to stop.
    Asked,
}

fn wait(until_ns: u64, clock: &impl Clock, stop: &Stop) -> Waited {
    loop {
        if stop.is_asked() {
            return Waited::Asked;
        }
        let now = clock.now_ns();
        if now >= until_ns {
            return Waited::Enough;
        }
        clock.wait_until(until_ns.min(now + LOOK_NS));
    }
}

#[cfg(test)]
mod tests;
