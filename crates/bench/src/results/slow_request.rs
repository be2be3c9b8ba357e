//! A request that was slow: when, so that one sees whether slow ones come together.

use serde::{Deserialize, Serialize};

/// So many of the slowest requests are kept.
pub const SLOWEST_MAX: usize = 20;

/// A slow request. Times count from the beginning of the window that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowRequest {
    /// When it was due.
    pub due_ns: i64,
    /// When it began; for one that never began, as its end.
    pub begin_ns: i64,
    /// When it ended; for one that never began, when the measurement did.
    pub end_ns: i64,
}

impl SlowRequest {
    /// A request by a clock that stood at `from_ns` when the window began.
    pub(crate) fn since(from_ns: u64, due_ns: u64, begin_ns: u64, end_ns: u64) -> Self {
        let since = |ns: u64| {
            let away = i64::try_from(ns.abs_diff(from_ns)).unwrap_or(i64::MAX);
            if ns < from_ns { -away } else { away }
        };
        Self { due_ns: since(due_ns), begin_ns: since(begin_ns), end_ns: since(end_ns) }
    }

    /// The slowest of these, from due to done, in the order in which they were due.
    pub(crate) fn slowest(mut requests: Vec<Self>) -> Vec<Self> {
        // Of equally slow ones the earlier come first, so that the same run keeps the same.
        requests.sort_by_key(|each| (each.due_ns.saturating_sub(each.end_ns), each.due_ns));
        requests.truncate(SLOWEST_MAX);
        requests.sort_by_key(|each| (each.due_ns, each.end_ns));
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_are_kept_in_the_order_of_their_times() {
        let request = |due: u64, takes: u64| SlowRequest::since(1_000, due, due + 1, due + takes);
        let all = (0..100).map(|n| request(1_000 + n * 50, (n * 37) % 100)).collect();
        let slowest = SlowRequest::slowest(all);
        assert_eq!(slowest.len(), SLOWEST_MAX);
        assert!(slowest.is_sorted_by_key(|each| each.due_ns));
        assert!(slowest.iter().all(|each| each.end_ns - each.due_ns >= 80), "{slowest:?}");
        assert_eq!(SlowRequest::slowest(vec![request(1_100, 7)]), [request(1_100, 7)]);
    }

    #[test]
    fn times_count_from_the_window() {
        let SlowRequest { due_ns, begin_ns, end_ns } = SlowRequest::since(100, 90, 100, 130);
        assert_eq!((due_ns, begin_ns, end_ns), (-10, 0, 30));
    }
}
