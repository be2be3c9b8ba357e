//! Processor time that the machine's host took away, as the kernel of the machine counts it.

/// What the kernel counts in: hundredths of a second, on all processors that have such GPUs.
const TICKS_PER_SECOND: f64 = 100.0;

/// What was stolen from all processors together up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// When it was read.
    pub(super) at_ns: u64,
    /// How much by then.
    pub(super) ticks: u64,
}

/// The ticks that were stolen, by the text of `/proc/stat` or its beginning.
pub(super) fn ticks(stat: &str) -> Option<u64> {
    /// Behind user, nice, system, idle, iowait, irq and softirq.
    const PLACE: usize = 7;
    // The first line is the sum of all processors. One that is cut off may end within a number.
    let (sum, _) = stat.split_once('\n')?;
    let mut words = sum.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    words.nth(PLACE)?.parse().ok()
}

/// The part of one processor that was stolen in a window; none if nobody looked twice within it.
pub(super) fn part(readings: &[Reading], window: (u64, u64)) -> Option<f64> {
    let mut inside = readings.iter().filter(|each| (window.0..=window.1).contains(&each.at_ns));
    let first = inside.next()?;
    let last = inside.next_back()?;
    // CAST: far below what a float counts exactly. A count that goes back counts as none.
    let seconds = last.at_ns.saturating_sub(first.at_ns) as f64 / 1e9;
    let stolen = last.ticks.saturating_sub(first.ticks) as f64 / TICKS_PER_SECOND;
    Some(stolen / seconds).filter(|part| part.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_of_all_processors_counts() {
        let stat = "cpu  10 20 30 40 50 60 70 22326 90 100\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 7\n";
        assert_eq!(ticks(stat), Some(22_326));
        assert_eq!(ticks("cpu 1 2 3 4 5 6 7 8\n"), Some(8), "a kernel without guests");
    }

    #[test]
    fn what_is_no_such_table_says_nothing() {
        for text in [
            "",
            "cpu  1 2 3 4\n",
            "cpu0 1 2 3 4 5 6 7 8 9 10\n",
            "cpu  1 2 3 4 5 6 7 many 9 10\n",
            // Cut off within the number.
            "cpu  1 2 3 4 5 6 7 223",
            "cpu  1 2 3 4 5 6 7 -8 9 10\n",
        ] {
            assert_eq!(ticks(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_the_window_counts() {
        let reading = |ms: u64, ticks: u64| Reading { at_ns: ms * 1_000_000, ticks };
        let readings =
            [reading(0, 100), reading(1_000, 150), reading(1_500, 160), reading(3_000, 200)];
        let between =
            |from_ms: u64, to_ms: u64| part(&readings, (from_ms * 1_000_000, to_ms * 1_000_000));
        assert_eq!(between(900, 2_900), Some(0.2), "10 ticks in half a second");
        assert_eq!(between(0, 3_000), Some(1.0 / 3.0));
        assert_eq!(between(1_200, 2_900), None, "one reading is no difference");
        assert_eq!(between(4_000, 5_000), None);
        assert_eq!(part(&[reading(1, 9), reading(2, 3)], (0, u64::MAX)), Some(0.0));
        assert_eq!(part(&[reading(1, 3), reading(1, 9)], (0, u64::MAX)), None);
    }
}
