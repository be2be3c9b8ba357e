//! Measurements: the time totals of a queue, and histograms of durations.

use crate::busy_periods::BusyTime;
use crate::id::{DeviceId, TaskId};
use crate::priority::Priority;
use crate::time::{Duration, Instant};

const SUB_BITS: u32 = 4;
const SUB_COUNT: usize = 1 << SUB_BITS;
const BUCKET_COUNT: usize = (64 - SUB_BITS as usize) * SUB_COUNT + SUB_COUNT;

/// Totals since a queue appeared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Time with work while the queue was allowed to run.
    pub ran: Duration,
    /// Time with work while the queue was off.
    pub waited: Duration,
    /// Completed preempts.
    pub preempts: u64,
    /// Completed resumes.
    pub resumes: u64,
    /// Commands that failed or were late.
    pub faults: u64,
}

/// A wait or a preempt that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// What was measured.
    pub kind: MeasurementKind,
    /// The task that waited or was preempted.
    pub task: TaskId,
    /// Its device.
    pub device: DeviceId,
    /// The priority of its queue then.
    pub priority: Priority,
    /// How long it took.
    pub took: Duration,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasurementKind {
    /// A queue with work waited for its device: it was off and not suspended, or it was on and a
    /// queue of lower rank was being preempted for it. Work that may run at once is not counted.
    Wait,
    /// A queue was preempted: from the command to its completion.
    Preempt,
}

/// The total to which a queue's time is added now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Charge {
    #[default]
    Idle,
    Runs,
    Waits,
}

/// Totals, and the measurement that is running.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimeMeter {
    pub(crate) totals: QueueTotals,
    charge: Charge,
    since: Instant,
    waits_since: Option<Instant>,
}

impl TimeMeter {
    /// Adds the time since the last call to its total and starts to measure `charge`. Returns the
    /// wait that this ends.
    pub(crate) fn switch(&mut self, now: Instant, charge: Charge) -> Option<Duration> {
        self.totals = self.read(now);
        self.charge = charge;
        self.since = now;
        if charge == Charge::Waits {
            self.waits_since.get_or_insert(now);
            return None;
        }
        self.waits_since.take().map(|since| now.since(since))
    }

    /// The time from here on is not part of a wait.
    pub(crate) fn forget_wait(&mut self) {
        self.waits_since = None;
    }

    pub(crate) fn read(&self, now: Instant) -> QueueTotals {
        let mut totals = self.totals;
        let elapsed = now.since(self.since);
        match self.charge {
            Charge::Idle => {}
            Charge::Runs => totals.ran += elapsed,
            Charge::Waits => totals.waited += elapsed,
        }
        totals
    }
}

/// Counts of durations in buckets: 16 for each power of two, so that a percentile is at most one
/// sixteenth too long, in a fixed amount of memory.
#[derive(Clone)]
pub struct Histogram {
    counts: [u32; BUCKET_COUNT],
    total: u64,
    sum: Duration,
    max: Duration,
}

impl Histogram {
    /// Records one duration.
    pub fn record(&mut self, duration: Duration) {
        let count = &mut self.counts[bucket(duration.as_nanos())];
        *count = count.saturating_add(1);
        self.total += 1;
        self.sum += duration;
        self.max = self.max.max(duration);
    }

    /// Adds the recorded durations of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, others) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*others);
        }
        self.total += other.total;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// The number of recorded durations.
    pub const fn count(&self) -> u64 {
        self.total
    }

    /// The recorded durations together, exactly.
    pub const fn sum(&self) -> Duration {
        self.sum
    }

    /// How many recorded durations do not exceed `bound`. Those that exceed it by less than a
    /// sixteenth may be counted too.
    pub fn count_within(&self, bound: Duration) -> u64 {
        self.counts.iter().take(bucket(bound.as_nanos()) + 1).map(|&count| u64::from(count)).sum()
    }

    /// The longest recorded duration, exactly.
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// The duration that `percent` of all recorded ones did not exceed; none if there are none.
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let wanted = (self.total * percent.min(100)).div_ceil(100).max(1);
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= wanted && count > 0 {
                return Some(Duration::from_nanos(upper_edge(index)).min(self.max));
            }
        }
        None
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKET_COUNT], total: 0, sum: Duration::ZERO, max: Duration::ZERO }
    }
}

impl core::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.total)
            .field("p50", &self.percentile(50))
            .field("p99", &self.percentile(99))
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

fn bucket(ns: u64) -> usize {
    let top_bit = 63 - (ns | 1).leading_zeros();
    let shift = top_bit.saturating_sub(SUB_BITS);
    let row = if top_bit < SUB_BITS { 0 } else { shift as usize + 1 };
    // PANIC: the shifted value has at most five bits, of which the top one names the row.
    let column = usize::try_from((ns >> shift) & (SUB_COUNT as u64 - 1)).expect("four bits");
    row * SUB_COUNT + column
}

fn upper_edge(index: usize) -> u64 {
    let (row, column) = (index / SUB_COUNT, (index % SUB_COUNT) as u64);
    if row == 0 {
        return column;
    }
    let shift = row - 1;
    let next = u128::from(column + SUB_COUNT as u64 + 1) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

/// How much slower a queue was than without other work: an average of about its last second with
/// work, and totals.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slowdown {
    busy: Duration,
    lost: Duration,
    pub(crate) totals: SlowdownTotals,
}

/// The busy periods of a queue since it appeared, as far as they were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlowdownTotals {
    /// How long they were.
    pub busy: Duration,
    /// How long of that the queue was off the engine.
    pub off: Duration,
    /// How long of that its program waited for it.
    pub lost: Duration,
    /// How long of the busy time slices of a latency budget were in force.
    pub shared: Duration,
}

impl Slowdown {
    const LENGTH: Duration = Duration::from_millis(1_000);

    /// Adds a measurement, and whether slices of a latency budget were in force.
    pub(crate) fn add(&mut self, time: BusyTime, is_shared: bool) {
        self.totals.busy += time.busy;
        self.totals.off += time.off;
        self.totals.lost += time.lost;
        self.totals.shared += if is_shared { time.busy } else { Duration::ZERO };
        self.busy += time.busy;
        self.lost += time.lost.min(time.busy);
        while self.busy > Self::LENGTH.times(2) {
            self.busy = Duration::from_nanos(self.busy.as_nanos() / 2);
            self.lost = Duration::from_nanos(self.lost.as_nanos() / 2);
        }
    }

    /// In per cent; none before the first measurement.
    pub(crate) fn percent(&self) -> Option<u32> {
        let useful = self.busy.saturating_sub(self.lost).as_nanos();
        let percent = self.lost.as_nanos().saturating_mul(100).checked_div(useful);
        (!self.busy.is_zero())
            .then(|| percent.and_then(|percent| u32::try_from(percent).ok()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_an_average_of_about_the_last_second() {
        let ms = Duration::from_millis;
        let time =
            |busy, lost| BusyTime { busy: ms(busy), off: ms(lost), lost: ms(lost), packets: 0 };
        let mut slowdown = Slowdown::default();
        assert_eq!(slowdown.percent(), None);
        slowdown.add(BusyTime { off: ms(20), ..time(30, 10) }, false);
        assert_eq!(slowdown.percent(), Some(50));
        for _ in 0..100 {
            slowdown.add(time(100, 0), true);
        }
        assert_eq!(slowdown.percent(), Some(0));
        slowdown.add(time(9_000, 9_000), false);
        assert!(slowdown.percent() > Some(400));
        let totals = SlowdownTotals {
            busy: ms(19_030),
            off: ms(9_020),
            lost: ms(9_010),
            shared: ms(10_000),
        };
        assert_eq!(slowdown.totals, totals);
    }

    #[test]
    fn elapsed_time_is_added_to_the_total_of_the_current_charge() {
        let at = Instant::from_nanos;
        let mut meter = TimeMeter::default();
        assert_eq!(meter.switch(at(10), Charge::Runs), None);
        assert_eq!(meter.switch(at(30), Charge::Waits), None);
        assert_eq!(meter.read(at(35)).waited, Duration::from_nanos(5));
        assert_eq!(meter.switch(at(36), Charge::Waits), None, "the wait continues");
        assert_eq!(meter.switch(at(40), Charge::Idle), Some(Duration::from_nanos(10)));
        let totals = meter.read(at(99));
        assert_eq!(totals.ran, Duration::from_nanos(20));
        assert_eq!(totals.waited, Duration::from_nanos(10));
    }

    #[test]
    fn every_value_is_in_a_bucket_that_ends_at_most_a_sixteenth_above_it() {
        for shift in 0..64 {
            for offset in [0u64, 1, 7] {
                let ns = (1u64 << shift).saturating_add(offset << (shift / 2));
                let edge = upper_edge(bucket(ns));
                assert!(edge >= ns && edge - ns <= ns / 16, "{ns} {edge}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKET_COUNT - 1);
    }

    #[test]
    fn percentiles_of_a_ramp() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50), None);
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        let p50 = histogram.percentile(50).unwrap().as_micros();
        assert!((500..=532).contains(&p50), "{p50}");
        assert_eq!(histogram.percentile(100), Some(Duration::from_millis(1)));
        assert_eq!(histogram.max(), Duration::from_millis(1));
    }

    #[test]
    fn sums_and_cumulative_counts_survive_a_merge() {
        let mut short = Histogram::default();
        (1..=10).for_each(|us| short.record(Duration::from_micros(us)));
        let mut both = Histogram::default();
        both.record(Duration::from_millis(8));
        both.merge(&short);
        assert_eq!((both.count(), both.sum()), (11, Duration::from_micros(8_055)));
        assert_eq!(both.max(), Duration::from_millis(8));
        let within = [1, 5, 10, 8_000].map(|us| both.count_within(Duration::from_micros(us)));
        assert_eq!(within, [1, 5, 10, 11]);
        assert_eq!(both.count_within(Duration::ZERO), 0);
    }
}
