//! Whether a tail may be the machine's: what it did while requests were measured.

use super::{Measurement, Quiet, Results};

impl Results {
    /// Whether the machine was late in this measurement by so much that tails of requests may be
    /// its doing. Where nobody looked, or where nobody knows how long requests take with nobody
    /// beside, it is not.
    pub fn is_disturbed(&self, measurement: &Measurement) -> bool {
        let mode = self.modes.iter().find(|mode| mode.name == measurement.mode);
        let alone = mode.and_then(|mode| mode.alone.as_deref()).unwrap_or(&measurement.mode);
        let mut same = self.of(&measurement.case, alone);
        let base = same.find(|each| each.repetition == measurement.repetition && each.is_ok());
        let lc = base.and_then(|base| base.lc.as_ref());
        // CAST: latencies are far below what a float counts exactly.
        let p50_ns = lc.map(|lc| lc.latency.p50_ns as f64);
        Quiet::of(measurement).zip(p50_ns).is_some_and(|(quiet, p50_ns)| quiet.disturbs(p50_ns))
    }
}

/// Whether the median of these values is of one that was disturbed. Of an even number of values two
/// make the median.
pub(super) fn is_in_median(mut values: Vec<(f64, bool)>) -> bool {
    values.sort_by(|one, other| one.0.total_cmp(&other.0));
    let Some(last) = values.len().checked_sub(1) else { return false };
    values[last / 2].1 || values[last.div_ceil(2)].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_makes_the_median_counts() {
        let of = |values: &[(f64, bool)]| is_in_median(values.to_vec());
        assert!(!of(&[]));
        assert!(of(&[(1.0, true)]));
        assert!(!of(&[(9.0, true), (1.0, false), (2.0, false)]));
        assert!(of(&[(2.0, true), (1.0, false), (3.0, false)]));
        assert!(of(&[(1.0, false), (2.0, false), (3.0, true), (4.0, false)]));
        assert!(!of(&[(1.0, true), (2.0, false), (3.0, false), (4.0, true)]));
    }
}
