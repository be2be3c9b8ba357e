//! The last line of a latency-critical load.

use std::fmt;

use serde::Serialize;

use super::open_loop::Outcome;
use crate::latency::Quantiles;

/// What the requests got.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
pub(super) struct Final {
    /// The round, of a load that has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    round: Option<u64>,
    /// The measurement, by `CLOCK_MONOTONIC`.
    from_ns: u64,
    until_ns: u64,
    /// Requests that were due.
    n: u64,
    /// Requests that began late.
    missed: u64,
    /// Requests that could not begin before the end; they count in the latency.
    unserved: u64,
    /// Hints that were given late; what they were for may have waited for that.
    hints_late: u64,
    /// From due to done.
    latency_us: Option<Quantiles>,
    /// From begun to done.
    service_us: Option<Quantiles>,
}

impl Final {
    /// The line for an outcome.
    pub(super) fn new(outcome: &Outcome, round: Option<u64>) -> Self {
        Self {
            round,
            from_ns: outcome.from_ns,
            until_ns: outcome.until_ns,
            n: outcome.latency.count(),
            missed: outcome.missed,
            unserved: outcome.unserved,
            hints_late: outcome.expected_late,
            latency_us: outcome.latency.quantiles(),
            service_us: outcome.service.quantiles(),
        }
    }
}

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, missed, unserved, .. } = self;
        write!(f, "lc n {n}, missed {missed}, unserved {unserved}")?;
        if self.hints_late > 0 {
            write!(f, ", hints late {}", self.hints_late)?;
        }
        for (name, quantiles) in [("latency", &self.latency_us), ("service", &self.service_us)] {
            if let Some(Quantiles { min, p50, p90, p99, p999, max }) = quantiles {
                write!(
                    f,
                    "; {name} us: min {min:.1} p50 {p50:.1} p90 {p90:.1} p99 {p99:.1} \
                     p99.9 {p999:.1} max {max:.1}"
                )?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;

    #[test]
    fn the_last_line_is_one_line_for_people_and_for_programs() {
        let mut latency = Latency::new();
        latency.record(1_000);
        let service = Latency::new();
        let outcome = Outcome {
            from_ns: 1,
            until_ns: 2,
            latency,
            service,
            missed: 0,
            unserved: 1,
            expected_late: 0,
        };
        let line = Final::new(&outcome, None);
        assert_eq!(
            line.to_string(),
            "lc n 1, missed 0, unserved 1; latency us: min 1.0 p50 1.0 p90 1.0 p99 1.0 \
             p99.9 1.0 max 1.0"
        );
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"final\",\"from_ns\":1,\"until_ns\":2,\"n\":1,\"missed\":0,\
             \"unserved\":1,\"hints_late\":0,\"latency_us\":{\"min\":1.0,\"p50\":1.0,\
             \"p90\":1.0,\"p99\":1.0,\"p99.9\":1.0,\"max\":1.0},\"service_us\":null}"
        );
    }
}
