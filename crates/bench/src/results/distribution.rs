//! Many latencies in a few numbers.

use serde::{Deserialize, Serialize};

/// A curve has at most this many points.
pub const POINTS_MAX: usize = 200;

/// How latencies are spread. Percentiles are values that occurred.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// How many there are.
    pub count: u64,
    /// The average.
    pub mean_ns: f64,
    /// Half of them are at most this.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 95 %.
    pub p95_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The shares up to some latencies, thinned; dense where few are slow. Ends at 1.
    pub cdf: Vec<CdfPoint>,
}

/// A point of a cumulative distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CdfPoint {
    /// A latency.
    pub ns: u64,
    /// The share of latencies that are at most this.
    pub share: f64,
}

impl Distribution {
    /// The distribution of these latencies; none without any.
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

/// The index of the smallest value that so many of all values do not exceed.
fn rank(count: usize, numerator: usize, denominator: usize) -> usize {
    (count * numerator).div_ceil(denominator).clamp(1, count) - 1
}

/// Three quarters of the points are evenly spaced; the others share the slowest hundredth.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_occurred() {
        let spread = Distribution::of((1..=1_000).rev().collect()).unwrap();
        assert_eq!((spread.p50_ns, spread.p90_ns, spread.p99_ns), (500, 900, 990));
        assert_eq!((spread.p999_ns, spread.max_ns, spread.count), (999, 1_000, 1_000));
        assert_eq!(spread.mean_ns, 500.5);
        assert_eq!(Distribution::of(Vec::new()), None);
        assert_eq!(Distribution::of(vec![7]).unwrap().p50_ns, 7);
    }

    #[test]
    fn curves_are_short_and_rise_to_one() {
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
}
