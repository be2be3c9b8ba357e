//! How long things took.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest time that is told apart: longer ones count as this.
const LONGEST_NS: u64 = 1_000_000_000_000;

/// Times, with three digits each whatever their size.
#[derive(Clone, Debug)]
pub(super) struct Latency {
    histogram: Histogram<u64>,
}

/// What one wants to know about many times, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Quantiles {
    pub(super) min: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    #[serde(rename = "p99.9")]
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Latency {
    pub(super) fn new() -> Self {
        // PANIC: the bounds are constants that satisfy the histogram's rules.
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("valid bounds");
        Self { histogram }
    }

    pub(super) fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
    }

    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The summary, if there is anything to sum up.
    pub(super) fn quantiles(&self) -> Option<Quantiles> {
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
