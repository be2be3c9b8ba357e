//! Times that were measured, and what is said of them.

use serde_json::{Value, json};

/// Some times, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    ns: Vec<u64>,
}

impl Sample {
    /// One more.
    pub(super) fn push(&mut self, ns: u64) {
        self.ns.push(ns);
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.ns.len()
    }

    /// What so many in a thousand do not exceed (nearest rank), in microseconds. Zero if there is
    /// nothing.
    pub(super) fn us(&self, permille: usize) -> u64 {
        let mut sorted = self.ns.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * permille).div_ceil(1_000).max(1);
        sorted.get(rank - 1).copied().unwrap_or(0).div_ceil(1_000)
    }

    /// How many are longer than that.
    pub(super) fn beyond_us(&self, us: u64) -> usize {
        self.ns.iter().filter(|ns| **ns > us * 1_000).count()
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let [p50, p99, max] = [500, 990, 1_000].map(|permille| self.us(permille));
        json!({ "n": self.len(), "p50": p50, "p99": p99, "max": max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_times_that_occurred() {
        let mut sample = Sample::default();
        assert_eq!(sample.us(990), 0);
        for us in (1..=1_000).rev() {
            sample.push(us * 1_000);
        }
        assert_eq!([500, 990, 1_000].map(|permille| sample.us(permille)), [500, 990, 1_000]);
        assert_eq!((sample.beyond_us(998), sample.beyond_us(1_000)), (2, 0));
        sample.push(1);
        assert_eq!(sample.us(0), 1, "a part of a microsecond counts as one");
    }
}
