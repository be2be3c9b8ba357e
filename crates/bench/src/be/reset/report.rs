//! The lines of a load that is reset.

use std::fmt;

use serde::Serialize;

use super::super::pipeline::{Total, Window};
use super::super::report::{Rate as LoadRate, Unit, rate};
use super::cycle::Tally;
use super::units::Exactness;
use crate::latency::Quantiles;

/// What happened in one interval, and so far.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rate {
    #[serde(flatten)]
    rate: LoadRate,
    #[serde(flatten)]
    counts: Counts,
}

/// Since the beginning.
#[derive(Clone, Copy, Debug, Serialize)]
struct Counts {
    /// Launches that are complete.
    completed: u64,
    /// Launches that had been submitted and had to be submitted again.
    resubmitted: u64,
    /// Times that work was taken off the device.
    resets: u64,
}

/// The last line.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
pub(super) struct Final {
    unit: Unit,
    from_ns: u64,
    until_ns: u64,
    /// The same as `completed`, as other loads call it.
    total: u64,
    per_second: f64,
    /// Whether everything that was submitted is over.
    drained: bool,
    /// Whether the device did not get to its end in time.
    stuck: bool,
    #[serde(flatten)]
    counts: Counts,
    /// All submissions.
    submitted: u64,
    /// Requests that were announced.
    announcements: u64,
    /// Times that a mark had to be submitted to find the end of an emptied ring.
    marks: u64,
    /// How long there was nothing of ours on the device because of a request.
    aside_ms: f64,
    /// From the announcement being noticed to everything being off the device.
    leave_us: Option<Quantiles>,
    /// Emptying the ring.
    clear_us: Option<Quantiles>,
    exactness: Exactness,
}

impl Counts {
    fn of(tally: &Tally) -> Self {
        let Tally { completed, resubmitted, resets, .. } = *tally;
        Self { completed, resubmitted, resets }
    }
}

impl Rate {
    /// The line for a window.
    pub(super) fn new(window: Window, tally: &Tally) -> Self {
        Self { rate: LoadRate::new(Unit::Kernels, window), counts: Counts::of(tally) }
    }
}

impl Final {
    /// The line for everything.
    pub(super) fn new(total: &Total, tally: &Tally, epoch: u64, exactness: Exactness) -> Self {
        Self {
            unit: Unit::Kernels,
            from_ns: total.from_ns,
            until_ns: total.until_ns,
            total: total.count,
            per_second: rate(total.count, total.from_ns, total.until_ns),
            drained: total.is_drained,
            stuck: !total.is_drained,
            counts: Counts::of(tally),
            submitted: tally.submitted,
            announcements: epoch.div_ceil(2),
            marks: tally.marks,
            // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
            aside_ms: tally.aside_ns as f64 / 1e6,
            leave_us: tally.leave.quantiles(),
            clear_us: tally.clear.quantiles(),
            exactness,
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { completed, resubmitted, resets } = self.counts;
        write!(f, "{}, {completed} completed, {resubmitted} resubmitted", self.rate)?;
        write!(f, ", {resets} resets")
    }
}

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { completed, resubmitted, resets } = self.counts;
        write!(f, "be total: {completed} kernels completed, {:.1} kernels/s", self.per_second)?;
        write!(f, ", {resubmitted} resubmitted, {resets} resets")?;
        if let Some(Quantiles { p50, max, .. }) = self.leave_us {
            write!(f, ", left within us: p50 {p50:.1} max {max:.1}")?;
        }
        if self.stuck {
            write!(f, ", STUCK: the device did not get to the end of its work")?;
        }
        write!(f, ", {}", self.exactness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::be::reset::cycle::{Cycle, Plan};
    use crate::be::reset::units::Units;

    #[test]
    fn lines_are_for_people_and_for_programs() {
        let cycle = Cycle::new(Plan { depth: 1, clear_ring: false }, 1, 0);
        let mut tally = cycle.tally().clone();
        (tally.completed, tally.resubmitted, tally.resets) = (100, 5, 2);
        let window =
            Window { from_ns: 1_000_000_000, until_ns: 1_500_000_000, count: 63, total: 100 };
        let line = Rate::new(window, &tally);
        assert_eq!(
            line.to_string(),
            "be 1500000000: 126.0 kernels/s, 100 completed, 5 resubmitted, 2 resets"
        );
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":1000000000,\
             \"until_ns\":1500000000,\"count\":63,\"per_second\":126.0,\"total\":100,\
             \"completed\":100,\"resubmitted\":5,\"resets\":2}"
        );
        let total = Total { from_ns: 0, until_ns: 1_000_000_000, count: 100, is_drained: false };
        let line = Final::new(&total, &tally, 3, Units::new(1).exactness(None));
        let text = line.to_string();
        assert!(text.starts_with("be total: 100 kernels completed, 100.0 kernels/s"), "{text}");
        assert!(text.contains("STUCK") && text.lines().count() == 1, "{text}");
        let json = serde_json::to_value(&line).unwrap();
        assert_eq!(json["line"], "final");
        assert_eq!((&json["stuck"], &json["drained"]), (&true.into(), &false.into()));
        assert_eq!((&json["announcements"], &json["resets"]), (&2.into(), &2.into()));
        assert_eq!(json["exactness"]["result"], "unknown");
    }
}
