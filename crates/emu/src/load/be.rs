//! Best effort: kernels back to back, a fixed number in flight.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_wire::monotonic;

use super::line::{BeFinal, Rate, per_second};
use super::work::{CAPACITY, Work};
use super::{Load, LoadError, Stop};

const UNIT: &str = "kernels";
/// The longest wait without a look at the clock.
const LOOK: Duration = Duration::from_millis(50);

/// A best-effort load.
#[derive(Clone, Debug)]
pub struct BestEffort {
    /// What all loads have.
    pub load: Load,
    /// Kernels in flight.
    pub depth: u32,
    /// How often to print the rate.
    pub report_ms: u64,
    /// How long the last kernels may take: a stopped queue does not finish.
    pub drain_ms: u64,
}

impl BestEffort {
    /// Runs it.
    ///
    /// # Errors
    /// There is no emulator, or something did not run exactly once.
    pub fn run(&self, stop: &Stop) -> Result<(), LoadError> {
        if self.depth == 0 || self.depth > CAPACITY {
            return Err(LoadError::Bad("between 1 and 1024 kernels are in flight"));
        }
        let output = self.load.output;
        let mut work = Work::prepare(&self.load)?;
        output.line(&work.ready(&self.load, "be")?)?;
        if !stop.wait_for_start(&self.load) {
            return Ok(());
        }
        let begin = monotonic();
        let end = begin + Duration::from_millis(self.load.seconds * 1_000);
        self.fill(&mut work, begin, end, stop)?;
        let drained = work.drain(Duration::from_millis(self.drain_ms))?;
        let (from_ns, until_ns) = (begin.as_nanos(), monotonic().as_nanos());
        let total = work.queue.completed();
        let exactness = if drained { Some(work.exactness()?) } else { None };
        let is_exact = exactness.as_ref().is_none_or(super::exactness::Exactness::is_pass);
        let per_second = per_second(total, from_ns, until_ns);
        let unit = UNIT;
        output.line(&BeFinal { unit, from_ns, until_ns, total, per_second, drained, exactness })?;
        match (drained, is_exact) {
            (false, _) => Err(LoadError::Stuck),
            (true, false) => Err(LoadError::Wrong),
            (true, true) => Ok(()),
        }
    }

    fn fill(
        &self,
        work: &mut Work,
        begin: Instant,
        end: Instant,
        stop: &Stop,
    ) -> Result<(), LoadError> {
        let report = Duration::from_millis(self.report_ms.max(1));
        let mut window = (begin, 0);
        loop {
            let now = monotonic();
            if now >= window.0 + report {
                let total = work.queue.completed();
                self.load.output.line(&rate(window, now, total))?;
                window = (now, total);
            }
            if now >= end || stop.is_asked() {
                return Ok(());
            }
            while work.queue.submitted() - work.queue.completed() < u64::from(self.depth) {
                work.submit()?;
            }
            let next = end.min(window.0 + report);
            let oldest = work.queue.submitted() - u64::from(self.depth) + 1;
            work.queue.wait(oldest, next.since(now).min(LOOK))?;
        }
    }
}

fn rate((from, before): (Instant, u64), until: Instant, total: u64) -> Rate {
    let (from_ns, until_ns, count) = (from.as_nanos(), until.as_nanos(), total - before);
    let per_second = per_second(count, from_ns, until_ns);
    Rate { unit: UNIT, from_ns, until_ns, count, per_second, total }
}
