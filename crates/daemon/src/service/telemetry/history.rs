//! Shares of GPU time and preempts, over the last second and the last minute.
//!
//! A [`History`] keeps samples of totals that only grow, such as the time that a task ran, and
//! tells how much they grew. The daemon's loop samples what the scheduler estimates from the rings;
//! the thread that reads the devices' own counts samples those.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_core::id::{DeviceId, TaskId};
use gpreempt_core::time::{Duration, Instant};

/// The time between two samples of the daemon's loop.
pub(crate) const SAMPLE: Duration = Duration::from_millis(250);
const SECOND: Duration = Duration::from_millis(1_000);
const MINUTE: Duration = Duration::from_millis(60_000);
/// The time between two samples that are kept for a minute.
const MINUTE_SAMPLE: Duration = Duration::from_millis(5_000);

/// A task on one device.
pub(crate) type TaskOnDevice = (TaskId, DeviceId);

/// The totals of a task on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) ran: Duration,
    pub(crate) preempts: u64,
}

impl Total {
    /// Adds the totals of another queue.
    pub(crate) fn and(self, ran: Duration, preempts: u64) -> Self {
        Self { ran: self.ran + ran, preempts: self.preempts + preempts }
    }
}

/// How much totals grew lately.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Recent {
    /// Part of the last second that was run, 0 to 1.
    pub(crate) share: f64,
    /// Part of the last minute.
    pub(crate) share_minute: f64,
    /// Preempts per second.
    pub(crate) preempts_per_s: f64,
}

/// The samples at one time.
type Sample<K> = (Instant, BTreeMap<K, Total>);

/// The samples of the last second and of the last minute, oldest first.
#[derive(Debug)]
pub(crate) struct History<K> {
    second: VecDeque<Sample<K>>,
    minute: VecDeque<Sample<K>>,
}

impl<K> Default for History<K> {
    fn default() -> Self {
        Self { second: VecDeque::new(), minute: VecDeque::new() }
    }
}

impl<K: Ord + Clone> History<K> {
    pub(crate) fn sample(&mut self, now: Instant, totals: BTreeMap<K, Total>) {
        if self.minute.back().is_none_or(|(at, _)| now.since(*at) >= MINUTE_SAMPLE) {
            push(&mut self.minute, MINUTE, (now, totals.clone()));
        }
        push(&mut self.second, SECOND, (now, totals));
    }

    /// How much a total has grown, given its value now; none before there are two values.
    pub(crate) fn recent(&self, now: Instant, entry: &K, total: Total) -> Option<Recent> {
        let growth = |samples: &VecDeque<Sample<K>>, period| {
            let old = samples.iter().filter_map(|(at, totals)| Some((*at, *totals.get(entry)?)));
            let old: Vec<(Instant, Total)> = old.filter(|(at, _)| *at < now).collect();
            let full = old.iter().rev().find(|(at, _)| now.since(*at) >= period);
            let (at, before) = full.or_else(|| old.first())?;
            let elapsed = seconds(now.since(*at));
            let share = seconds(total.ran.saturating_sub(before.ran)) / elapsed;
            let preempts = total.preempts.saturating_sub(before.preempts);
            let preempts = u32::try_from(preempts).map_or(f64::MAX, f64::from);
            Some((share.min(1.0), preempts / elapsed))
        };
        let (share, preempts_per_s) = growth(&self.second, SECOND)?;
        let share_minute = growth(&self.minute, MINUTE).map_or(share, |(share, _)| share);
        Some(Recent { share, share_minute, preempts_per_s })
    }
}

/// Adds a sample. One that is older than the period is kept, as its beginning.
fn push<K>(samples: &mut VecDeque<Sample<K>>, period: Duration, sample: Sample<K>) {
    while samples.get(1).is_some_and(|(at, _)| sample.0.since(*at) >= period) {
        samples.pop_front();
    }
    samples.push_back(sample);
}

impl History<TaskOnDevice> {
    /// Estimates of every task, given its totals now, on the device that it used most. An estimate
    /// counts the time in which a task had work, so those of one device are scaled down to `busy`,
    /// the parts of the last second and minute in which that device executed kernels.
    pub(crate) fn recent_of_all(
        &self,
        now: Instant,
        totals: &BTreeMap<TaskOnDevice, Total>,
        busy: impl Fn(DeviceId) -> Option<(f64, f64)>,
    ) -> BTreeMap<TaskId, Recent> {
        let entries: Vec<(TaskOnDevice, Recent)> = totals
            .iter()
            .map(|(entry, total)| (*entry, self.recent(now, entry, *total).unwrap_or_default()))
            .collect();
        let mut sums: BTreeMap<DeviceId, (f64, f64)> = BTreeMap::new();
        for ((_, device), recent) in &entries {
            let sum = sums.entry(*device).or_default();
            *sum = (sum.0 + recent.share, sum.1 + recent.share_minute);
        }
        let mut tasks: BTreeMap<TaskId, Recent> = BTreeMap::new();
        for ((task, device), recent) in entries {
            let sum = sums.get(&device).copied().unwrap_or_default();
            let limit = busy(device).unwrap_or((1.0, 1.0));
            let scaled = |share: f64, sum: f64, limit: f64| {
                if sum > limit { share * limit / sum } else { share }
            };
            let known = tasks.entry(task).or_default();
            known.share = known.share.max(scaled(recent.share, sum.0, limit.0));
            let minute = scaled(recent.share_minute, sum.1, limit.1);
            known.share_minute = known.share_minute.max(minute);
            known.preempts_per_s += recent.preempts_per_s;
        }
        tasks
    }
}

fn seconds(duration: Duration) -> f64 {
    std::time::Duration::from_nanos(duration.as_nanos()).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn total(ran_ms: u64, preempts: u64) -> Total {
        Total { ran: Duration::from_millis(ran_ms), preempts }
    }

    #[test]
    fn only_the_last_second_counts_and_the_last_minute() {
        let mut history = History::default();
        assert_eq!(history.recent(at(0), &1, total(5, 5)), None);
        for sample in 0..8 {
            // The task runs all the time at first and then half of it.
            let ran = if sample < 4 { sample * 250 } else { 1_000 + (sample - 4) * 125 };
            history.sample(at(sample * 250), BTreeMap::from([(1, total(ran, sample))]));
        }
        let recent = history.recent(at(2_000), &1, total(1_500, 8)).unwrap();
        let expected = Recent { share: 0.5, share_minute: 0.75, preempts_per_s: 4.0 };
        assert_eq!(recent, expected);
        assert_eq!(history.recent(at(2_000), &2, total(9, 9)), None);
        let several = history.recent(at(2_000), &1, total(9_000, 8)).unwrap();
        assert!(several.share <= 1.0, "with several queues at once");
        for sample in 8..400 {
            history.sample(at(sample * 250), BTreeMap::from([(1, total(1_500, 8))]));
        }
        assert_eq!(history.recent(at(100_000), &1, total(1_500, 8)), Some(Recent::default()));
        assert!(history.second.len() <= 5 && history.minute.len() <= 13);
    }

    #[test]
    fn estimates_are_scaled_to_what_the_device_was_busy() {
        let mut history = History::default();
        let [first, second] = [1, 2].map(|task| (TaskId(task), DeviceId(0)));
        let elsewhere = (TaskId(2), DeviceId(1));
        let entries = [first, second, elsewhere];
        history.sample(at(0), entries.map(|entry| (entry, total(0, 0))).into());
        // The first one may run all the time and the second half of it, beside it.
        let now = BTreeMap::from([
            (first, total(1_000, 2)),
            (second, total(500, 3)),
            (elsewhere, total(250, 1)),
        ]);
        for (busy, sum) in [(None, 1.0), (Some((0.6, 0.6)), 0.6), (Some((1.0, 1.0)), 1.0)] {
            let busy = |device| if device == DeviceId(0) { busy } else { None };
            let recent = history.recent_of_all(at(1_000), &now, busy);
            let shares = [1, 2].map(|task| recent[&TaskId(task)].share);
            assert!((shares[0] - sum / 1.5).abs() < 1e-9, "{shares:?}");
            assert!((shares[1] - (sum / 3.0).max(0.25)).abs() < 1e-9, "{shares:?}");
            assert!((recent[&TaskId(2)].preempts_per_s - 4.0).abs() < 1e-9);
        }
    }
}
