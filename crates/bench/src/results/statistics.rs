//! Statistics of latencies ([`Distribution`], [`SlowRequest`]) and of repeated measurements
//! ([`Estimate`]).

use serde::{Deserialize, Serialize};

/// Points of a cumulative distribution in a results file.
pub const POINTS_MAX: usize = 200;
/// Slow requests in a results file.
pub const SLOWEST_MAX: usize = 20;
/// The wanted probability that an interval contains the true median.
const CONFIDENCE: f64 = 0.95;

/// The distribution of latencies. Percentiles are nearest-rank: values that occurred.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    pub count: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
    /// The cumulative distribution, thinned; denser in the tail. The last share is 1.
    pub cdf: Vec<CdfPoint>,
}

/// The share of latencies that are at most `ns`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CdfPoint {
    pub ns: u64,
    pub share: f64,
}

impl Distribution {
    /// None without latencies.
    pub fn of(mut latencies: Vec<u64>) -> Option<Self> {
        if latencies.is_empty() {
            return None;
        }
        latencies.sort_unstable();
        let at = |per_mille: usize| latencies[rank(latencies.len(), per_mille, 1_000)];
        let sum: u128 = latencies.iter().map(|&ns| u128::from(ns)).sum();
        Some(Self {
            count: latencies.len() as u64,
            // CAST: far below what a float counts exactly.
            mean_ns: sum as f64 / latencies.len() as f64,
            p50_ns: at(500),
            p90_ns: at(900),
            p95_ns: at(950),
            p99_ns: at(990),
            p999_ns: at(999),
            max_ns: at(1_000),
            cdf: thinned(&latencies),
        })
    }
}

/// The index of the smallest value that `numerator / denominator` of all values do not exceed.
fn rank(count: usize, numerator: usize, denominator: usize) -> usize {
    (count * numerator).div_ceil(denominator).clamp(1, count) - 1
}

/// Three quarters of the points are evenly spaced; the others lie in the slowest hundredth.
fn thinned(sorted: &[u64]) -> Vec<CdfPoint> {
    let count = sorted.len();
    let even = POINTS_MAX * 3 / 4;
    let tail = POINTS_MAX - even;
    let mut indices: Vec<usize> = if count <= POINTS_MAX {
        (0..count).collect()
    } else {
        let body = (1..=even).map(|step| rank(count, step, even));
        let slow = count / 100;
        body.chain((1..=tail).map(|step| count - slow + rank(slow.max(1), step, tail)))
            .map(|index| index.min(count - 1))
            .collect()
    };
    indices.sort_unstable();
    indices.dedup();
    // CAST: far below what a float counts exactly.
    let point =
        |&index: &usize| CdfPoint { ns: sorted[index], share: (index + 1) as f64 / count as f64 };
    indices.iter().map(point).collect()
}

/// A slow request. Times count from the beginning of the measured window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowRequest {
    pub due_ns: i64,
    /// Equals `end_ns` for a request that never began.
    pub begin_ns: i64,
    /// The end of the measurement for a request that never began.
    pub end_ns: i64,
    /// None without records of holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<RequestWaits>,
}

/// What a request waited for, as far as the records of gpreempt's hold watcher tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestWaits {
    /// Holds in force or placed during the request.
    pub holds: u32,
    /// From its beginning until its hold was placed; 0 without a hold.
    pub notice_ns: u64,
    /// From there until the process was on the GPU.
    pub switch_ns: u64,
    /// The same of later holds: the first one was released before the request was over.
    pub again_ns: u64,
    /// The longest time in its holds without a movement of the rings.
    pub silence_ns: u64,
    /// The longest time without a sample, if it was late.
    pub late_ns: u64,
}

impl SlowRequest {
    /// A request timed by a clock that showed `from_ns` when the window began.
    pub(crate) fn since(from_ns: u64, due_ns: u64, begin_ns: u64, end_ns: u64) -> Self {
        let since = |ns: u64| {
            let away = i64::try_from(ns.abs_diff(from_ns)).unwrap_or(i64::MAX);
            if ns < from_ns { -away } else { away }
        };
        let [due_ns, begin_ns, end_ns] = [due_ns, begin_ns, end_ns].map(since);
        Self { due_ns, begin_ns, end_ns, waits: None }
    }

    /// The [`SLOWEST_MAX`] slowest requests, in the order in which they were due.
    pub(crate) fn slowest(mut requests: Vec<Self>) -> Vec<Self> {
        // Among equally slow requests the earlier come first: the same run keeps the same ones.
        requests.sort_by_key(|each| (each.due_ns.saturating_sub(each.end_ns), each.due_ns));
        requests.truncate(SLOWEST_MAX);
        requests.sort_by_key(|each| (each.due_ns, each.end_ns));
        requests
    }
}

/// The median of repeated measurements and its confidence interval.
///
/// No distribution is assumed: the interval reaches from one measured value to another, chosen so
/// that it contains the true median with a probability of at least 95 %. Few values cannot reach
/// that: five give at best 93.75 %, from the smallest to the largest. `confidence` is the
/// probability that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimate {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    pub confidence: f64,
    pub count: u32,
}

impl Estimate {
    /// None without values, or if one of them is not finite.
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

    /// Whether the intervals do not overlap.
    pub fn differs_from(&self, other: &Self) -> bool {
        self.low > other.high || self.high < other.low
    }
}

/// How many values are left out at each end, and the probability of the interval between.
///
/// The true median is below the k-th smallest value if fewer than k values are below the median,
/// which is as likely as fewer than k heads in as many throws of a coin.
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
    fn percentiles_are_values_that_occurred() {
        let spread = Distribution::of((1..=1_000).rev().collect()).unwrap();
        assert_eq!((spread.p50_ns, spread.p90_ns, spread.p99_ns), (500, 900, 990));
        assert_eq!((spread.p999_ns, spread.max_ns, spread.count), (999, 1_000, 1_000));
        assert_eq!(spread.mean_ns, 500.5);
        assert_eq!(Distribution::of(Vec::new()), None);
        assert_eq!(Distribution::of(vec![7]).unwrap().p50_ns, 7);
    }

    #[test]
    fn a_cumulative_distribution_is_short_and_rises_to_one() {
        for count in [1, 2, 199, 200, 201, 1_000, 54_321] {
            let curve = Distribution::of((0..count).collect()).unwrap().cdf;
            assert!(curve.len() <= POINTS_MAX, "{count}");
            let rising =
                |pair: &[CdfPoint]| pair[0].ns < pair[1].ns && pair[0].share < pair[1].share;
            assert!(curve.windows(2).all(rising), "{count}");
            assert_eq!(curve.last().unwrap().share, 1.0, "{count}");
            assert_eq!(curve.last().unwrap().ns, count - 1, "{count}");
        }
    }

    #[test]
    fn the_slowest_requests_are_kept_in_the_order_of_their_times() {
        let request = |due: u64, takes: u64| SlowRequest::since(1_000, due, due + 1, due + takes);
        let all = (0..100).map(|n| request(1_000 + n * 50, (n * 37) % 100)).collect();
        let slowest = SlowRequest::slowest(all);
        assert_eq!(slowest.len(), SLOWEST_MAX);
        assert!(slowest.is_sorted_by_key(|each| each.due_ns));
        assert!(slowest.iter().all(|each| each.end_ns - each.due_ns >= 80), "{slowest:?}");
        assert_eq!(SlowRequest::slowest(vec![request(1_100, 7)]), [request(1_100, 7)]);
    }

    #[test]
    fn times_of_slow_requests_count_from_the_window() {
        let SlowRequest { due_ns, begin_ns, end_ns, .. } = SlowRequest::since(100, 90, 100, 130);
        assert_eq!((due_ns, begin_ns, end_ns), (-10, 0, 30));
    }

    #[test]
    fn the_median_is_the_middle_value() {
        let estimate = Estimate::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((estimate.median, estimate.low, estimate.high), (2.0, 1.0, 3.0));
        assert_eq!(Estimate::of(&[4.0, 1.0]).unwrap().median, 2.5);
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn few_values_reach_a_low_confidence() {
        for (count, confidence) in [(1, 0.0), (2, 0.5), (3, 0.75), (5, 0.9375), (6, 0.96875)] {
            let values: Vec<f64> = (0..count).map(f64::from).collect();
            let estimate = Estimate::of(&values).unwrap();
            assert_eq!(estimate.confidence, confidence, "{count}");
            assert_eq!((estimate.low, estimate.high), (0.0, f64::from(count - 1)), "{count}");
        }
    }

    /// The ranks in textbook tables of the sign test.
    #[test]
    fn more_values_narrow_the_interval() {
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
