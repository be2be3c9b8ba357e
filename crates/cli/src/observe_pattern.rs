//! The submission pattern of a process: bursts, gaps, and how much work is pending.

use std::time::Duration;

use gpreempt_device::nvidia::ring::RingReading;
use serde::Serialize;

/// A ring that is empty and unchanged for this long is in a gap: about that long after its work is
/// done the hardware switches to another group that has work.
const GAP: Duration = Duration::from_micros(300);
/// A gap this long ends a burst: submissions with shorter gaps belong to one request.
const BURST_END: Duration = Duration::from_millis(3);

/// Statistics of the readings so far.
#[derive(Debug, Default)]
pub(crate) struct Pattern {
    looks: u64,
    looks_pending: u64,
    pending_max: u64,
    first: Option<(u64, u64)>,
    last: (u64, u64),
    /// When a packet was last submitted, fetched or pending.
    busy_at: Option<Duration>,
    submitted_at: Option<Duration>,
    intervals_us: Vec<u64>,
    gaps_us: Vec<u64>,
    bursts_us: Vec<u64>,
    burst: Option<Burst>,
    refills: u64,
    fills: u64,
    was_empty: bool,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    begin: Duration,
    end: Duration,
}

/// The statistics of all readings.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) looks: u64,
    pub(crate) submissions_per_s: f64,
    /// Part of the readings at which work was pending.
    pub(crate) pending_share: f64,
    pub(crate) pending_max: u64,
    /// Time between two readings that saw new submissions.
    pub(crate) interval_us: Percentiles,
    /// Times of more than 0.3 ms in which the ring was empty and unchanged.
    pub(crate) gap_us: Percentiles,
    pub(crate) gaps_per_s: f64,
    /// Times of submissions with no gap of more than 3 ms between them.
    pub(crate) burst_us: Percentiles,
    pub(crate) bursts_per_s: f64,
    /// Submissions into an empty ring, per burst: at each of them the GPU may run another process
    /// first.
    pub(crate) refills_per_burst: f64,
    /// Part of the submissions that found an empty ring.
    pub(crate) refill_share: f64,
    /// The time of one submission, where work is always pending.
    pub(crate) work_us: Option<f64>,
}

/// Percentiles of measured times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Pattern {
    /// Adds one reading.
    pub(crate) fn take(&mut self, at: Duration, reading: RingReading) {
        let ring = reading.ring;
        let indices = (ring.put, ring.get);
        let moved = self.first.is_some() && indices != self.last;
        self.first.get_or_insert(indices);
        self.last = indices;
        self.looks += 1;
        let pending = ring.pending();
        self.pending_max = self.pending_max.max(pending);
        self.looks_pending += u64::from(pending > 0);
        if reading.submitted {
            if let Some(before) = self.submitted_at.replace(at) {
                self.intervals_us.push(micros(at - before));
            }
            self.fills += 1;
            self.refills += u64::from(self.was_empty);
        }
        self.was_empty = pending == 0;
        if !moved && pending == 0 {
            return;
        }
        if let Some(before) = self.busy_at.replace(at) {
            let gap = at - before;
            if gap >= GAP {
                self.gaps_us.push(micros(gap));
            }
            if gap >= BURST_END {
                self.end_burst();
            }
        }
        let burst = self.burst.get_or_insert(Burst { begin: at, end: at });
        burst.end = at;
    }

    fn end_burst(&mut self) {
        if let Some(burst) = self.burst.take() {
            self.bursts_us.push(micros(burst.end - burst.begin));
        }
    }

    pub(crate) fn finish(mut self, took: Duration) -> Summary {
        self.end_burst();
        let seconds = took.as_secs_f64().max(1e-9);
        let (put, get) = self.first.map_or((0, 0), |(put, get)| {
            (self.last.0.saturating_sub(put), self.last.1.saturating_sub(get))
        });
        let pending_share = ratio(self.looks_pending, self.looks);
        // The time between fetches is the time of a submission only where work is always pending.
        let work_us = (pending_share > 0.95 && get > 0).then(|| seconds * 1e6 / float(get));
        let (bursts, gaps) = (count(&self.bursts_us), count(&self.gaps_us));
        Summary {
            looks: self.looks,
            submissions_per_s: float(put) / seconds,
            pending_share,
            pending_max: self.pending_max,
            interval_us: Percentiles::of(self.intervals_us),
            gap_us: Percentiles::of(self.gaps_us),
            gaps_per_s: float(gaps) / seconds,
            burst_us: Percentiles::of(self.bursts_us),
            bursts_per_s: float(bursts) / seconds,
            refills_per_burst: ratio(self.refills, bursts),
            refill_share: ratio(self.refills, self.fills),
            work_us,
        }
    }
}

impl Summary {
    pub(crate) fn text(&self) -> String {
        if self.submissions_per_s == 0.0 {
            return "  submitted nothing\n".to_owned();
        }
        let mut text = format!(
            "  {:.0} submissions a second; work pending at {:.0} % of the readings, {} at most\n",
            self.submissions_per_s,
            self.pending_share * 100.0,
            self.pending_max
        );
        text.push_str(&format!(
            "  {:.1} bursts a second, {} long, with {:.1} refills of an empty ring in each\n",
            self.bursts_per_s,
            self.burst_us.text(),
            self.refills_per_burst
        ));
        text.push_str(&format!(
            "  {:.1} gaps a second of more than 0.3 ms, {} long\n",
            self.gaps_per_s,
            self.gap_us.text()
        ));
        if let Some(work_us) = self.work_us {
            text.push_str(&format!("  one submission takes about {work_us:.0} us\n"));
        }
        text
    }
}

impl Percentiles {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let Some(last) = values.len().checked_sub(1) else { return Self::default() };
        let at = |percent: usize| values[last * percent / 100];
        Self { p50: at(50), p99: at(99), max: values[last] }
    }

    fn text(&self) -> String {
        format!("{} us (p99 {}, max {})", self.p50, self.p99, self.max)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn count(values: &[u64]) -> u64 {
    u64::try_from(values.len()).unwrap_or(u64::MAX)
}

fn float(count: u64) -> f64 {
    // CAST: counts of a few minutes are far below 2^52.
    count as f64
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::ring::RingView;

    fn reading(put: u64, get: u64, submitted: bool) -> RingReading {
        RingReading {
            ring: RingView { put, get, running: None },
            submitted,
            fetched: false,
            reads: 1,
        }
    }

    /// Requests of three kernels, each submitted into an empty ring, every 10 ms for 100 ms.
    fn requests() -> Summary {
        let mut pattern = Pattern::default();
        let mut put = 0;
        for step in 0..1000_u64 {
            let in_period = step % 100;
            let submits = in_period < 9 && in_period % 3 == 0;
            put += u64::from(submits);
            pattern.take(Duration::from_micros(step * 100), reading(put, put, submits));
        }
        pattern.finish(Duration::from_millis(100))
    }

    #[test]
    fn requests_are_bursts_with_refills() {
        let summary = requests();
        assert_eq!(summary.looks, 1000);
        assert!((summary.bursts_per_s - 100.0).abs() < 1.0, "{summary:?}");
        assert!((summary.refills_per_burst - 3.0).abs() < 0.2, "{summary:?}");
        assert_eq!(summary.burst_us.p50, 600);
        assert!((9_300..=9_500).contains(&summary.gap_us.max), "{summary:?}");
        assert_eq!(summary.pending_share, 0.0);
        assert_eq!(summary.work_us, None);
    }

    #[test]
    fn the_time_of_a_submission_follows_from_a_ring_that_is_never_empty() {
        let mut pattern = Pattern::default();
        for step in 0..1000_u64 {
            // One submission fetched every 2 ms, eight waiting.
            let get = step / 20;
            pattern.take(
                Duration::from_micros(step * 100),
                reading(get + 8, get, step % 20 == 0 && step > 0),
            );
        }
        let summary = pattern.finish(Duration::from_millis(100));
        let work_us = summary.work_us.unwrap();
        assert!((1_900.0..2_200.0).contains(&work_us), "{work_us}");
        assert_eq!((summary.pending_max, summary.gap_us.max), (8, 0));
        assert!((summary.bursts_per_s - 10.0).abs() < 0.1, "one burst in 0.1 s");
    }

    #[test]
    fn a_process_without_submissions_is_reported_as_such() {
        let mut pattern = Pattern::default();
        pattern.take(Duration::ZERO, reading(7, 7, false));
        pattern.take(Duration::from_millis(1), reading(7, 7, false));
        assert_eq!(pattern.finish(Duration::from_millis(2)).text(), "  submitted nothing\n");
    }
}
