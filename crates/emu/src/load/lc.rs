//! Latency critical: requests that are due at fixed times, whatever became of the one before.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_wire::monotonic;

use super::latency::Latency;
use super::line::LcFinal;
use super::work::Work;
use super::{Load, LoadError, Stop};

/// A request that begins later than this after it was due has missed its time.
const LATE_NS: u64 = 50_000;
/// How long a kernel may take before the load gives up.
const STUCK: Duration = Duration::from_millis(60_000);
/// The longest wait without looking whether somebody asked to stop.
const LOOK: Duration = Duration::from_millis(50);

/// The part of a wait that is not slept.
const SPIN: Duration = Duration::from_micros(100);

/// A latency-critical load.
#[derive(Clone, Debug)]
pub struct LatencyCritical {
    /// What all loads have.
    pub load: Load,
    /// Kernels in a request, one after the other.
    pub kernels: u32,
    /// Time on the processor after each kernel.
    pub gap_us: u64,
    /// A request every so often.
    pub every_us: u64,
    /// Requests of the first moments run but do not count.
    pub warmup_ms: u64,
}

impl LatencyCritical {
    /// Runs it.
    ///
    /// # Errors
    /// There is no emulator, or something did not run exactly once.
    pub fn run(&self, stop: &Stop) -> Result<(), LoadError> {
        let output = self.load.output;
        let mut work = Work::prepare(&self.load)?;
        self.serve(&mut work)?;
        output.line(&work.ready(&self.load, "lc")?)?;
        if !stop.wait_for_start(&self.load) {
            return Ok(());
        }
        let mut line = self.measure(&mut work, stop)?;
        let exactness = work.exactness()?;
        let is_exact = exactness.is_pass();
        line.exactness = Some(exactness);
        output.line(&line)?;
        if is_exact { Ok(()) } else { Err(LoadError::Wrong) }
    }

    fn measure(&self, work: &mut Work, stop: &Stop) -> Result<LcFinal, LoadError> {
        let begin = monotonic();
        let from = begin + Duration::from_millis(self.warmup_ms);
        let mut end = from + Duration::from_millis(self.load.seconds * 1_000);
        let (mut latency, mut service) = (Latency::new(), Latency::new());
        let (mut missed, mut unserved) = (0, 0);
        let every = Duration::from_micros(self.every_us.max(1));
        let mut due = begin;
        while due < end {
            if !sleep_until(due, stop) {
                end = end.min(monotonic());
            }
            let began = monotonic();
            let counts = due >= from;
            if began >= end {
                if counts && due < end {
                    latency.record(began.since(due).as_nanos());
                    unserved += 1;
                }
            } else {
                self.serve(work)?;
                let done = monotonic();
                if counts {
                    latency.record(done.since(due).as_nanos());
                    service.record(done.since(began).as_nanos());
                    missed += u64::from(began.since(due).as_nanos() > LATE_NS);
                }
            }
            due += every;
        }
        Ok(LcFinal {
            from_ns: from.as_nanos(),
            until_ns: end.as_nanos(),
            n: latency.count(),
            missed,
            unserved,
            latency_us: latency.quantiles(),
            service_us: service.quantiles(),
            exactness: None,
        })
    }

    /// One request, from beginning to end.
    fn serve(&self, work: &mut Work) -> Result<(), LoadError> {
        for _ in 0..self.kernels {
            let count = work.submit()?;
            let gives_up = monotonic() + STUCK;
            while !work.queue.wait(count, LOOK)? {
                if monotonic() > gives_up {
                    return Err(LoadError::Stuck);
                }
            }
            spin(Duration::from_micros(self.gap_us));
        }
        Ok(())
    }
}

/// Waits until then. False: somebody asked to stop.
fn sleep_until(until: Instant, stop: &Stop) -> bool {
    loop {
        if stop.is_asked() {
            return false;
        }
        let left = until.since(monotonic());
        if left.is_zero() {
            return true;
        }
        // Sleeping is only good to within this; the rest is spent looking at the clock.
        if left > SPIN {
            let asleep = left.saturating_sub(SPIN).min(LOOK);
            std::thread::sleep(std::time::Duration::from_nanos(asleep.as_nanos()));
        }
    }
}

/// Keeps the processor busy, as a program does between kernels.
fn spin(time: Duration) {
    let end = monotonic() + time;
    while monotonic() < end {
        std::hint::spin_loop();
    }
}
