//! The lines that every load prints to stdout, as text or with `--json` for programs: `ready`,
//! `rate`, `final`, with the latency histogram and the check that each kernel ran exactly once.
//!
//! The runner reads them in `lines` of the library; other readers are tests and the Python test
//! kit. Field names are public.

use std::fmt::{self, Display};
use std::io::Write;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;

/// The largest value of a latency histogram; longer times count as this.
const LONGEST_NS: u64 = 1_000_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// JSON instead of text.
    pub(crate) json: bool,
}

impl Output {
    /// Prints one line and flushes it.
    pub(crate) fn line(self, line: &(impl Serialize + Display)) -> Result<(), Failure> {
        let mut text = if self.json {
            serde_json::to_string(line).map_err(Failure::run)?
        } else {
            line.to_string()
        };
        text.push('\n');
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }

    /// Prints the last line of a best-effort load. Fails if the load did not drain or is inexact.
    pub(crate) fn finish(self, last: &BeFinal) -> Result<(), Failure> {
        self.line(last)?;
        let is_wrong = last.exactness.as_ref().is_some_and(|exactness| !exactness.is_pass())
            || last.memory.is_some_and(|memory| !memory.is_pass());
        match (last.drained, is_wrong) {
            (false, _) => Err(Failure::Stuck),
            (true, true) => Err(Failure::Wrong),
            (true, false) => Ok(()),
        }
    }
}

/// The first line of a load. `S` is what the device says about the kernel.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "ready")]
pub(crate) struct Ready<S> {
    /// `be`, `lc` or `light`.
    load: &'static str,
    pid: u32,
    /// By `CLOCK_MONOTONIC`.
    at_ns: u64,
    device: String,
    /// None for copies.
    kernel: Option<S>,
}

impl<S> Ready<S> {
    pub(crate) fn now(load: &'static str, device: &str, kernel: Option<S>) -> Self {
        let pid = std::process::id();
        Self { load, pid, at_ns: Monotonic.now_ns(), device: device.to_owned(), kernel }
    }
}

impl<S: Display> Display for Ready<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ready: pid {}, {}", self.load, self.pid, self.device)?;
        self.kernel.as_ref().map_or(Ok(()), |kernel| write!(f, ", {kernel}"))
    }
}

/// What a best-effort load counts.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    Kernels,
    Copies,
    Graphs,
    /// Of an endless kernel.
    Rounds,
}

impl Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernels => "kernels",
            Self::Copies => "copies",
            Self::Graphs => "graphs",
            Self::Rounds => "rounds",
        })
    }
}

/// An interval, and what completed in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    pub(crate) count: u64,
    /// Completed since the beginning.
    pub(crate) total: u64,
}

/// The whole run of a best-effort load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) from_ns: u64,
    /// When the last item completed.
    pub(crate) until_ns: u64,
    pub(crate) count: u64,
    /// Whether everything that was submitted completed.
    pub(crate) is_drained: bool,
}

/// Progress of a best-effort load in one interval.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "line", rename = "rate")]
pub(crate) struct Rate {
    unit: Unit,
    /// The interval, by `CLOCK_MONOTONIC`.
    from_ns: u64,
    until_ns: u64,
    count: u64,
    per_second: f64,
    /// Since the beginning.
    total: u64,
}

impl Rate {
    pub(crate) fn new(unit: Unit, window: Window) -> Self {
        let Window { from_ns, until_ns, count, total } = window;
        let per_second = per_second(count, from_ns, until_ns);
        Self { unit, from_ns, until_ns, count, per_second, total }
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, until_ns, per_second, .. } = self;
        write!(f, "be {until_ns}: {per_second:.1} {unit}/s")
    }
}

/// The last line of a best-effort load.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
pub(crate) struct BeFinal {
    /// The round, of a load that runs several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) round: Option<u64>,
    unit: Unit,
    from_ns: u64,
    until_ns: u64,
    total: u64,
    per_second: f64,
    /// Whether everything that was submitted completed.
    pub(crate) drained: bool,
    /// None where the kernels do not support the check.
    exactness: Option<Exactness>,
    /// With `--memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryCheck>,
}

impl BeFinal {
    pub(crate) fn new(unit: Unit, total: &Total, exactness: Option<Exactness>) -> Self {
        let Total { from_ns, until_ns, count: total, is_drained: drained } = *total;
        let per_second = per_second(total, from_ns, until_ns);
        let (round, memory) = (None, None);
        Self { round, unit, from_ns, until_ns, total, per_second, drained, exactness, memory }
    }
}

impl Display for BeFinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, total, per_second, .. } = self;
        write!(f, "be total: {total} {unit}, {per_second:.1} {unit}/s")?;
        if !self.drained {
            write!(f, ", NOT all completed")?;
        }
        if let Some(memory) = self.memory {
            write!(f, ", {memory}")?;
        }
        self.exactness.as_ref().map_or(Ok(()), |exactness| write!(f, ", {exactness}"))
    }
}

/// The last line of a latency-critical load.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "final")]
pub(crate) struct LcFinal {
    /// The round, of a load that runs several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) round: Option<u64>,
    /// The measurement, by `CLOCK_MONOTONIC`.
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    /// Requests that were due.
    pub(crate) n: u64,
    /// Requests that began late.
    pub(crate) missed: u64,
    /// Requests that could not begin before the end; they count in the latency.
    pub(crate) unserved: u64,
    /// Hints that were given late; their requests may have waited because of that.
    pub(crate) hints_late: u64,
    /// From due to done.
    pub(crate) latency_us: Option<Quantiles>,
    /// From begun to done.
    pub(crate) service_us: Option<Quantiles>,
    /// On an emulated GPU: time of the device from the submission of a request's kernels to their
    /// ends. What delays this process or the emulator does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_us: Option<Quantiles>,
    /// None where the kernels do not support the check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exactness: Option<Exactness>,
    /// With `--memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryCheck>,
}

impl Display for LcFinal {
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
        if let Some(memory) = self.memory {
            write!(f, "; {memory}")?;
        }
        self.exactness.as_ref().map_or(Ok(()), |exactness| write!(f, "; {exactness}"))
    }
}

/// Whether every kernel ran exactly once: each word of the kernels' memory has the value that
/// follows from the number of launches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Exactness {
    result: CheckResult,
    /// The value that every word must have.
    expected: u64,
    words: usize,
    /// How many words have another value.
    wrong: usize,
    /// The first of them.
    first_wrong: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckResult {
    Pass,
    Fail,
}

impl Exactness {
    pub(crate) fn of(words: &[u32], expected: u64) -> Self {
        let is_wrong = |word: &&u32| u64::from(**word) != expected;
        let wrong = words.iter().filter(is_wrong).count();
        // No words prove nothing.
        let is_pass = wrong == 0 && !words.is_empty();
        Self {
            result: if is_pass { CheckResult::Pass } else { CheckResult::Fail },
            expected,
            words: words.len(),
            wrong,
            first_wrong: words.iter().find(is_wrong).copied(),
        }
    }

    pub(crate) fn is_pass(&self) -> bool {
        self.result == CheckResult::Pass
    }
}

impl Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, words, wrong, .. } = self;
        if self.is_pass() {
            return write!(f, "pass: all {words} words are {expected}");
        }
        write!(f, "FAIL: {wrong} of {words} words are not {expected}")?;
        self.first_wrong.map_or(Ok(()), |word| write!(f, ", the first is {word}"))
    }
}

/// Memory of `--memory`, and whether its contents stayed exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryCheck {
    bytes: u64,
    contents: CheckResult,
}

impl MemoryCheck {
    pub(crate) fn new(bytes: u64, is_exact: bool) -> Self {
        let contents = if is_exact { CheckResult::Pass } else { CheckResult::Fail };
        Self { bytes, contents }
    }

    pub(crate) fn is_pass(self) -> bool {
        self.contents == CheckResult::Pass
    }
}

impl Display for MemoryCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let contents = if self.is_pass() { "exact" } else { "WRONG" };
        write!(f, "contents of {} bytes {contents}", self.bytes)
    }
}

/// A latency histogram with three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    histogram: Histogram<u64>,
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) min: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    #[serde(rename = "p99.9")]
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latency {
    pub(crate) fn new() -> Self {
        // PANIC: the bounds are constants that satisfy the histogram's rules.
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds");
        Self { histogram }
    }

    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// None if nothing was recorded.
    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
        let micros = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile| micros(self.histogram.value_at_quantile(quantile));
        (!self.histogram.is_empty()).then(|| Quantiles {
            min: micros(self.histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(self.histogram.max()),
        })
    }
}

pub(crate) fn per_second(count: u64, from_ns: u64, until_ns: u64) -> f64 {
    if until_ns <= from_ns {
        return 0.0;
    }
    // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
    count as f64 * 1e9 / (until_ns - from_ns) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_effort_lines_are_text_or_json() {
        let window =
            Window { from_ns: 1_000_000_000, until_ns: 1_500_000_000, count: 63, total: 100 };
        let line = Rate::new(Unit::Kernels, window);
        assert_eq!(line.to_string(), "be 1500000000: 126.0 kernels/s");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":1000000000,\
             \"until_ns\":1500000000,\"count\":63,\"per_second\":126.0,\"total\":100}"
        );
        let total = Total { from_ns: 0, until_ns: 0, count: 0, is_drained: false };
        let line = BeFinal::new(Unit::Copies, &total, None);
        assert_eq!(line.to_string(), "be total: 0 copies, 0.0 copies/s, NOT all completed");
    }

    #[test]
    fn the_last_latency_critical_line_is_text_or_json() {
        let mut latency = Latency::new();
        latency.record(1_000);
        let line = LcFinal {
            round: None,
            from_ns: 1,
            until_ns: 2,
            n: latency.count(),
            missed: 0,
            unserved: 1,
            hints_late: 0,
            latency_us: latency.quantiles(),
            service_us: Latency::new().quantiles(),
            device_us: None,
            exactness: None,
            memory: Some(MemoryCheck::new(4, true)),
        };
        assert_eq!(
            line.to_string(),
            "lc n 1, missed 0, unserved 1; latency us: min 1.0 p50 1.0 p90 1.0 p99 1.0 \
             p99.9 1.0 max 1.0; contents of 4 bytes exact"
        );
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            "{\"line\":\"final\",\"from_ns\":1,\"until_ns\":2,\"n\":1,\"missed\":0,\
             \"unserved\":1,\"hints_late\":0,\"latency_us\":{\"min\":1.0,\"p50\":1.0,\
             \"p90\":1.0,\"p99\":1.0,\"p99.9\":1.0,\"max\":1.0},\"service_us\":null,\
             \"memory\":{\"bytes\":4,\"contents\":\"pass\"}}"
        );
    }

    #[test]
    fn one_lost_or_repeated_increment_fails() {
        assert!(Exactness::of(&[80, 80, 80], 80).is_pass());
        for word in [79, 81, 0x8000_0000] {
            let exactness = Exactness::of(&[80, word, 80], 80);
            assert!(!exactness.is_pass());
            assert_eq!(
                exactness.to_string(),
                format!("FAIL: 1 of 3 words are not 80, the first is {word}")
            );
        }
        assert!(!Exactness::of(&[], 0).is_pass());
    }

    #[test]
    fn quantiles_are_right_to_three_digits() {
        let mut latency = Latency::new();
        assert_eq!(latency.quantiles(), None);
        for us in 1..=1000 {
            latency.record(us * 1000);
        }
        let quantiles = latency.quantiles().unwrap();
        let Quantiles { min, p50, p90, p99, p999, max } = quantiles;
        for (found, expected) in
            [(min, 1.0), (p50, 500.0), (p90, 900.0), (p99, 990.0), (p999, 999.0), (max, 1000.0)]
        {
            assert!((found - expected).abs() / expected < 0.002, "{found} is not {expected}");
        }
        assert_eq!(latency.count(), 1000);
    }

    #[test]
    fn a_time_beyond_the_largest_value_counts_as_the_largest() {
        let mut latency = Latency::new();
        latency.record(u64::MAX);
        assert!(latency.quantiles().unwrap().max >= 1e9);
    }
}
