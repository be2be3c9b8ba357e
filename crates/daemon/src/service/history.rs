//! What tasks had in the last second.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_core::id::TaskId;
use gpreempt_core::time::{Duration, Instant};

/// How often it is looked at.
pub(super) const SAMPLE: Duration = Duration::from_millis(250);
/// How many looks make a second.
const SAMPLES: usize = 4;

/// What a task had so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) ran: Duration,
    pub(super) preempts: u64,
}

impl Total {
    /// The same with that of another queue.
    pub(super) fn and(self, ran: Duration, preempts: u64) -> Self {
        Self { ran: self.ran + ran, preempts: self.preempts + preempts }
    }
}

/// What a task had in the last second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Recent {
    /// Part of the time in which it had a device, 0 to 1.
    pub(super) share: f64,
    /// Preempts in a second.
    pub(super) preempts_per_s: f64,
}

/// The last second.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<(Instant, BTreeMap<TaskId, Total>)>,
}

impl History {
    /// Takes note of how things are now.
    pub(super) fn sample(&mut self, now: Instant, totals: BTreeMap<TaskId, Total>) {
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now, totals));
    }

    /// What a task had since the oldest look in which it was there, if it has `total` now.
    pub(super) fn recent(&self, now: Instant, task: TaskId, total: Total) -> Recent {
        let then = self.samples.iter().find_map(|(at, totals)| Some((*at, *totals.get(&task)?)));
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
        let task = TaskId(1);
        assert_eq!(history.recent(at(0), task, total(5, 5)), Recent::default());
        for sample in 0..8 {
            // It has the device all the time at first and then half of it.
            let ran = if sample < 4 { sample * 250 } else { 1_000 + (sample - 4) * 125 };
            history.sample(at(sample * 250), BTreeMap::from([(task, total(ran, sample))]));
        }
        let recent = history.recent(at(2_000), task, total(1_500, 8));
        assert_eq!(recent, Recent { share: 0.5, preempts_per_s: 4.0 });
        assert_eq!(history.recent(at(2_000), TaskId(2), total(9, 9)), Recent::default());
        let several = history.recent(at(2_000), task, total(9_000, 8));
        assert!(several.share <= 1.0, "on several devices at once");
    }
}
