//! A number that was measured several times.
//!
//! The middle value, and how far off it may be. Nothing is assumed about how the values are
//! spread: the interval goes from one of the measured values to another, chosen so that it
//! contains the true median with the wished probability. Few values cannot give 95 %: the best
//! that 5 can do is 93.75 %, from the smallest to the largest. Then that is what the interval is,
//! and `confidence` says so.

use serde::{Deserialize, Serialize};

/// The probability that is wished for.
const CONFIDENCE: f64 = 0.95;

/// The median of several measurements, and between what it may lie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    /// The middle value.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// The probability that the true median is in the interval.
    pub confidence: f64,
    /// How many values there are.
    pub count: u32,
}

impl Estimate {
    /// The estimate from all values; none without values, or if one of them is no number.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        let (outside, confidence) = interval(count);
        Some(Self {
            median,
            low: sorted[outside],
            high: sorted[count - 1 - outside],
            confidence,
            count: u32::try_from(count).unwrap_or(u32::MAX),
        })
    }

    /// Whether two intervals have nothing in common.
    pub fn differs_from(&self, other: &Self) -> bool {
        self.low > other.high || self.high < other.low
    }
}

/// How many values are left out at each end, and the probability of the interval between.
///
/// The true median is outside below the k-th smallest value if fewer than k values are below the
/// median, which is as likely as fewer than k heads in as many throws of a coin.
fn interval(count: usize) -> (usize, f64) {
    // CAST: a run has few repetitions.
    let throws = count as f64;
    let mut chance = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut below = chance;
    let mut best = (0, (1.0 - 2.0 * below).max(0.0));
    for outside in 1..count.div_ceil(2) {
        // CAST: smaller than `count`.
        let heads = outside as f64;
        chance *= (throws - heads + 1.0) / heads;
        below += chance;
        let confidence = 1.0 - 2.0 * below;
        if confidence < CONFIDENCE {
            break;
        }
        best = (outside, confidence);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let estimate = Estimate::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((estimate.median, estimate.low, estimate.high), (2.0, 1.0, 3.0));
        assert_eq!(Estimate::of(&[4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn few_values_say_how_little_they_know() {
        for (count, confidence) in [(1, 0.0), (2, 0.5), (3, 0.75), (5, 0.9375), (6, 0.96875)] {
            let values: Vec<f64> = (0..count).map(f64::from).collect();
            let estimate = Estimate::of(&values).unwrap();
            assert_eq!(estimate.confidence, confidence, "{count}");
            assert_eq!((estimate.low, estimate.high), (0.0, f64::from(count - 1)), "{count}");
        }
    }

    /// The places in the tables of textbooks.
    #[test]
    fn more_values_narrow_it() {
        for (count, outside) in [(8, 0), (9, 1), (12, 2), (20, 5), (50, 17), (100, 39)] {
            assert_eq!(interval(count).0, outside, "{count}");
            assert!(interval(count).1 >= CONFIDENCE, "{count}");
        }
    }

    #[test]
    fn intervals_that_touch_do_not_differ() {
        let estimate = |values: &[f64]| Estimate::of(values).unwrap();
        let one = estimate(&[1.0, 2.0, 3.0]);
        assert!(!one.differs_from(&estimate(&[3.0, 4.0, 5.0])));
        assert!(one.differs_from(&estimate(&[3.5, 4.0, 5.0])));
        assert!(estimate(&[3.5, 4.0, 5.0]).differs_from(&one));
    }
}
