//! The share of GPU time and the preempts of each task in the last second.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_core::id::{DeviceId, TaskId};
use gpreempt_core::time::{Duration, Instant};

/// The time between two samples.
pub(crate) const SAMPLE: Duration = Duration::from_millis(250);
/// How many samples make a second.
const SAMPLES: usize = 4;

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

/// The figures of a task for the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Recent {
    /// Part of the time in which the task ran on the device it used most, 0 to 1. Where several
    /// tasks may run at once the time is divided among them, because the device does not report
    /// which of them ran.
    pub(crate) share: f64,
    /// Preempts per second.
    pub(crate) preempts_per_s: f64,
}

/// The samples of the last second.
#[derive(Debug, Default)]
pub(crate) struct History {
    samples: VecDeque<(Instant, BTreeMap<TaskOnDevice, Total>)>,
}

impl History {
    pub(crate) fn sample(&mut self, now: Instant, totals: BTreeMap<TaskOnDevice, Total>) {
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, totals));
    }

    /// The figures of every task, given its totals now. The shares of one device never exceed 1
    /// together.
    pub(crate) fn recent_of_all(
        &self,
        now: Instant,
        totals: &BTreeMap<TaskOnDevice, Total>,
    ) -> BTreeMap<TaskId, Recent> {
        let entries: Vec<(TaskOnDevice, Recent)> = totals
            .iter()
            .map(|(entry, total)| (*entry, self.recent(now, *entry, *total)))
            .collect();
        let mut sums: BTreeMap<DeviceId, f64> = BTreeMap::new();
        for ((_, device), recent) in &entries {
            *sums.entry(*device).or_default() += recent.share;
        }
        let mut tasks: BTreeMap<TaskId, Recent> = BTreeMap::new();
        for ((task, device), recent) in entries {
            let sum = sums.get(&device).copied().unwrap_or_default().max(1.0);
            let known = tasks.entry(task).or_default();
            known.share = known.share.max(recent.share / sum);
            known.preempts_per_s += recent.preempts_per_s;
        }
        tasks
    }

    /// The figures of a task since the oldest sample that has it, given its total now.
    fn recent(&self, now: Instant, entry: TaskOnDevice, total: Total) -> Recent {
        let then = self.samples.iter().find_map(|(at, totals)| Some((*at, *totals.get(&entry)?)));
        let Some((at, before)) = then.filter(|(at, _)| *at < now) else {
            return Recent::default();
        };
        let elapsed = seconds(now.since(at));
        let ran = seconds(total.ran.saturating_sub(before.ran));
        let preempts = total.preempts.saturating_sub(before.preempts);
        let preempts = u32::try_from(preempts).map_or(f64::MAX, f64::from);
        Recent { share: (ran / elapsed).min(1.0), preempts_per_s: preempts / elapsed }
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
    fn only_the_last_second_counts() {
        let mut history = History::default();
        let entry = (TaskId(1), DeviceId(0));
        assert_eq!(history.recent(at(0), entry, total(5, 5)), Recent::default());
        for sample in 0..8 {
            // The task runs all the time at first and then half of it.
            let ran = if sample < 4 { sample * 250 } else { 1_000 + (sample - 4) * 125 };
            history.sample(at(sample * 250), BTreeMap::from([(entry, total(ran, sample))]));
        }
        let recent = history.recent(at(2_000), entry, total(1_500, 8));
        assert_eq!(recent, Recent { share: 0.5, preempts_per_s: 4.0 });
        let other = (TaskId(2), DeviceId(0));
        assert_eq!(history.recent(at(2_000), other, total(9, 9)), Recent::default());
        let several = history.recent(at(2_000), entry, total(9_000, 8));
        assert!(several.share <= 1.0, "with several queues at once");
    }

    #[test]
    fn the_shares_of_a_device_never_exceed_one_together() {
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
        let recent = history.recent_of_all(at(1_000), &now);
        let shares = [1, 2].map(|task| recent[&TaskId(task)].share);
        assert!((shares[0] + shares[1] - 1.0).abs() < 1e-9, "{shares:?}");
        assert!((shares[0] - 2.0 * shares[1]).abs() < 1e-9, "{shares:?}");
        assert!((recent[&TaskId(2)].preempts_per_s - 4.0).abs() < 1e-9);
    }
}
