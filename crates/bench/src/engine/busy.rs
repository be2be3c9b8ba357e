//! How much of the time somebody is at work.

/// The part of `length_ns` in which at least one of these times lasts: two that overlap count once.
pub fn busy_part(mut times: Vec<(u64, u64)>, length_ns: u64) -> f64 {
    times.sort_unstable();
    let (mut busy, mut until) = (0_u64, 0_u64);
    for (from, to) in times {
        busy += to.saturating_sub(from.max(until));
        until = until.max(to);
    }
    // CAST: far below what a float counts exactly.
    (busy as f64 / length_ns.max(1) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_overlap_count_once() {
        assert_eq!(busy_part(vec![(10, 20), (30, 40)], 100), 0.2);
        assert_eq!(busy_part(vec![(30, 40), (10, 35), (12, 14)], 100), 0.3);
        assert_eq!(busy_part(vec![(0, 500)], 100), 1.0);
        assert_eq!(busy_part(Vec::new(), 100), 0.0);
    }
}
