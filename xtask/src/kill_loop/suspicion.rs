//! Things that may be so for a moment, but not for long.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What is suspicious now, and since when.
#[derive(Debug)]
pub(super) struct Suspicions<K> {
    since: BTreeMap<K, Instant>,
    /// Those that were reported already.
    reported: BTreeSet<K>,
    worst: Duration,
}

impl<K: Copy + Ord> Suspicions<K> {
    pub(super) fn new() -> Self {
        Self { since: BTreeMap::new(), reported: BTreeSet::new(), worst: Duration::ZERO }
    }

    /// Takes in everything that is suspicious now. Returns what has been so for longer than
    /// `limit`, once.
    pub(super) fn take(
        &mut self,
        now: Instant,
        found: &BTreeSet<K>,
        limit: Duration,
    ) -> Vec<(K, Duration)> {
        // Until this very moment it may have lasted.
        for since in self.since.values() {
            self.worst = self.worst.max(now - *since);
        }
        self.since.retain(|key, _| found.contains(key));
        self.reported.retain(|key| found.contains(key));
        let mut late = Vec::new();
        for key in found {
            let lasted = now - *self.since.entry(*key).or_insert(now);
            if lasted > limit && self.reported.insert(*key) {
                late.push((*key, lasted));
            }
        }
        late
    }

    /// The longest that anything was suspicious.
    pub(super) const fn worst(&self) -> Duration {
        self.worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_too_long_is_told_once() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let limit = Duration::from_millis(100);
        let mut suspicions = Suspicions::new();
        let seven = BTreeSet::from([7]);
        assert!(suspicions.take(at(0), &seven, limit).is_empty());
        assert!(suspicions.take(at(90), &seven, limit).is_empty());
        assert!(suspicions.take(at(95), &BTreeSet::new(), limit).is_empty());
        assert!(suspicions.take(at(200), &seven, limit).is_empty(), "it began anew");
        let late = suspicions.take(at(310), &seven, limit);
        assert_eq!(late, [(7, Duration::from_millis(110))]);
        assert!(suspicions.take(at(400), &seven, limit).is_empty());
        assert_eq!(suspicions.worst(), Duration::from_millis(200));
    }
}
