//! How long things took.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest time that is told apart: longer ones count as this.
const LONGEST_NS: u64 = 1_000_000_000_000;

/// Times, with three digits each whatever their size.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    histogram: Histogram<u64>,
}

/// What one wants to know about many times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    /// The shortest.
    pub(crate) min: f64,
    /// The middle one.
    pub(crate) p50: f64,
    /// Nine of ten are shorter.
    pub(crate) p90: f64,
    /// 99 of 100 are shorter.
    pub(crate) p99: f64,
    /// 999 of 1000 are shorter.
    #[serde(rename = "p99.9")]
    pub(crate) p999: f64,
    /// The longest.
    pub(crate) max: f64,
}

impl Latency {
    /// No times yet.
    pub(crate) fn new() -> Self {
        // PANIC: the bounds are constants that satisfy the histogram's rules.
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds");
        Self { histogram }
    }

    /// One more.
    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The summary, if there is anything to sum up.
    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        if self.histogram.is_empty() {
            return None;
        }
        let at = |quantile| micros(self.histogram.value_at_quantile(quantile));
        Some(Quantiles {
            min: micros(self.histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: micros(self.histogram.max()),
        })
    }
}

/// Nanoseconds as microseconds.
pub(crate) fn micros(ns: u64) -> f64 {
    // CAST: a float has 53 bits, enough for a hundred days in nanoseconds.
    ns as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_time_beyond_the_end_counts_as_the_longest() {
        let mut latency = Latency::new();
        latency.record(u64::MAX);
        assert!(latency.quantiles().unwrap().max >= 1e9);
    }
}
