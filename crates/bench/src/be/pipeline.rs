//! Keeps a lane full, and counts what comes out.
//!
//! It asks and never waits inside the driver: the rate of a lane that is held back must be
//! reported as zero, not left out.

use std::time::Duration;

use super::lane::Lane;
use super::report::{Rate, Unit};
use crate::clock::Clock;
use crate::failure::Failure;
use crate::stop::Stop;

/// After the end, work in flight has this long to complete.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// How to keep a lane full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pipeline {
    /// Pieces in flight.
    pub(super) depth: usize,
    /// How long new ones are submitted.
    pub(super) seconds: u64,
    /// How often the rate is reported.
    pub(super) report_ms: u64,
    /// How long to pause when there is nothing to do.
    pub(super) pause_ns: u64,
}

/// Some time, and what completed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    pub(super) count: u64,
    /// Completed since the beginning.
    pub(super) total: u64,
}

/// Everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) from_ns: u64,
    /// When the last piece completed.
    pub(super) until_ns: u64,
    pub(super) count: u64,
    /// Whether everything that was submitted completed.
    pub(super) is_drained: bool,
}

impl Window {
    /// The line for it.
    pub(super) fn rate(self, unit: Unit) -> Rate {
        Rate::new(unit, self)
    }
}

impl Pipeline {
    /// Runs until the time is over or somebody asks to stop, then until all is complete.
    pub(super) fn run(
        self,
        lane: &mut impl Lane,
        clock: &impl Clock,
        stop: &Stop,
        mut report: impl FnMut(Window) -> Result<(), Failure>,
    ) -> Result<Total, Failure> {
        let begin = clock.now_ns();
        let mut end = begin + self.seconds * 1_000_000_000;
        let every = self.report_ms * 1_000_000;
        let mut window = Window { from_ns: begin, until_ns: begin + every, count: 0, total: 0 };
        let (mut submitted, mut completed) = (0u64, 0u64);
        let mut last = begin;
        loop {
            let now = clock.now_ns();
            if stop.is_asked() {
                end = end.min(now);
            }
            if now >= window.until_ns && now < end {
                let count = completed - window.total;
                report(Window { until_ns: now, count, total: completed, ..window })?;
                // Late reports do not make later ones late.
                let until_ns = window.until_ns + (now - window.until_ns) / every * every + every;
                window = Window { from_ns: now, until_ns, count: 0, total: completed };
            }
            if completed < submitted && lane.is_complete(self.slot(completed))? {
                completed += 1;
                last = clock.now_ns();
            } else if now < end && submitted - completed < self.depth as u64 {
                lane.submit(self.slot(submitted))?;
                submitted += 1;
            } else if now >= end && completed == submitted {
                return Ok(Total {
                    from_ns: begin,
                    until_ns: last,
                    count: completed,
                    is_drained: true,
                });
            } else if Duration::from_nanos(now.saturating_sub(end)) > GRACE {
                return Ok(Total {
                    from_ns: begin,
                    until_ns: last,
                    count: completed,
                    is_drained: false,
                });
            } else {
                clock.pause(self.pause_ns);
            }
        }
    }

    fn slot(self, piece: u64) -> usize {
        // PANIC: a remainder of a usize fits one.
        usize::try_from(piece % self.depth as u64).expect("a slot")
    }
}

#[cfg(test)]
mod tests;
