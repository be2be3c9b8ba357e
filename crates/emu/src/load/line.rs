//! The lines of a load: as text, or as JSON for programs.

use std::fmt::{self, Display};
use std::io::Write;

use serde::Serialize;

use super::exactness::Exactness;
use super::latency::Quantiles;

/// How lines are written to stdout.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
}

impl Output {
    /// Writes one line, at once.
    pub(super) fn line(self, line: &(impl Serialize + Display)) -> std::io::Result<()> {
        let mut text = if self.json { serde_json::to_string(line)? } else { line.to_string() };
        text.push('\n');
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The first line.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "ready")]
pub(super) struct Ready {
    /// `be`, `lc` or `light`.
    pub(super) load: &'static str,
    pub(super) pid: u32,
    /// When, by `CLOCK_MONOTONIC`.
    pub(super) at_ns: u64,
    /// The device's name.
    pub(super) device: String,
    pub(super) kernel: Shape,
}

/// What a kernel is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Shape {
    pub(super) kernel: &'static str,
    pub(super) groups: u32,
    pub(super) waves: u32,
    pub(super) length_us: u64,
}

/// What happened in one interval of a best-effort load.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "line", rename = "rate")]
pub(super) struct Rate {
    pub(super) unit: &'static str,
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    pub(super) count: u64,
    pub(super) per_second: f64,
    /// Since the beginning.
    pub(super) total: u64,
}

/// The last line of a best-effort load.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
pub(super) struct BeFinal {
    pub(super) unit: &'static str,
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    pub(super) total: u64,
    pub(super) per_second: f64,
    /// Whether everything that was submitted completed.
    pub(super) drained: bool,
    pub(super) exactness: Option<Exactness>,
}

/// The last line of a latency-critical load.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
pub(super) struct LcFinal {
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    /// Requests that were due.
    pub(super) n: u64,
    /// Requests that began late.
    pub(super) missed: u64,
    /// Requests that could not begin before the end; they count in the latency.
    pub(super) unserved: u64,
    /// From due to done.
    pub(super) latency_us: Option<Quantiles>,
    /// From begun to done.
    pub(super) service_us: Option<Quantiles>,
    pub(super) exactness: Option<Exactness>,
}

/// Events per second.
pub(super) fn per_second(count: u64, from_ns: u64, until_ns: u64) -> f64 {
    if until_ns <= from_ns {
        return 0.0;
    }
    // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
    count as f64 * 1e9 / (until_ns - from_ns) as f64
}

impl Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { kernel, groups, length_us, .. } = self.kernel;
        write!(f, "{} ready: pid {}, {}", self.load, self.pid, self.device)?;
        write!(f, ", {groups} groups of {kernel}, {length_us} us")
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, until_ns, per_second, .. } = self;
        write!(f, "be {until_ns}: {per_second:.1} {unit}/s")
    }
}

impl Display for BeFinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, total, per_second, .. } = self;
        write!(f, "be total: {total} {unit}, {per_second:.1} {unit}/s")?;
        if !self.drained {
            write!(f, ", NOT all completed")?;
        }
        self.exactness.as_ref().map_or(Ok(()), |exactness| write!(f, ", {exactness}"))
    }
}

impl Display for LcFinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { n, missed, unserved, .. } = self;
        write!(f, "lc n {n}, missed {missed}, unserved {unserved}")?;
        for (name, quantiles) in [("latency", &self.latency_us), ("service", &self.service_us)] {
            if let Some(Quantiles { min, p50, p90, p99, p999, max }) = quantiles {
                write!(
                    f,
                    "; {name} us: min {min:.1} p50 {p50:.1} p90 {p90:.1} p99 {p99:.1} \
                     p99.9 {p999:.1} max {max:.1}"
                )?;
            }
        }
        self.exactness.as_ref().map_or(Ok(()), |exactness| write!(f, "; {exactness}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_for_people_and_for_programs() {
        let line = Rate {
            unit: "kernels",
            from_ns: 1_000_000_000,
            until_ns: 1_500_000_000,
            count: 63,
            per_second: per_second(63, 1_000_000_000, 1_500_000_000),
            total: 100,
        };
        assert_eq!(line.to_string(), "be 1500000000: 126.0 kernels/s");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":1000000000,\
             \"until_ns\":1500000000,\"count\":63,\"per_second\":126.0,\"total\":100}"
        );
    }
}
