//! The snapshots so far: the last one, and rates that only several of them tell.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_wire::statistics::{DeviceSnapshot, Snapshot, TaskSnapshot};

/// The identity of a process: its pid, and when it started.
pub(super) type TaskKey = (u32, u64);

/// The most columns of a time line: more than any terminal has.
const COLUMNS_MAX: usize = 1_000;
/// The period over which preempts are counted.
const RATE_NS: u64 = 2_000_000_000;

#[derive(Debug, Default)]
pub(super) struct History {
    latest: Snapshot,
    /// The share of each process at each snapshot, oldest first.
    tracks: BTreeMap<TaskKey, VecDeque<f64>>,
    /// The length of each of these periods.
    periods_ns: VecDeque<u64>,
    /// The time, and the preempts of each device up to then.
    counts: VecDeque<(u64, BTreeMap<u32, u64>)>,
}

pub(super) const fn key(task: &TaskSnapshot) -> TaskKey {
    (task.pid, task.start_ticks)
}

impl History {
    /// Adds a snapshot.
    pub(super) fn push(&mut self, snapshot: Snapshot) {
        let is_first = self.latest.now_ns == 0;
        // Another daemon counts from zero again.
        if snapshot.daemon.pid != self.latest.daemon.pid || snapshot.now_ns < self.latest.now_ns {
            *self = Self::default();
        } else if !is_first && snapshot.now_ns > self.latest.now_ns {
            self.add_column(&snapshot);
        }
        let preempts = snapshot.devices.iter().map(|device| (device.id, device.preempts));
        self.counts.push_back((snapshot.now_ns, preempts.collect()));
        while self.counts.len() > 2
            && self.counts.get(1).is_some_and(|(at, _)| snapshot.now_ns - at >= RATE_NS)
        {
            self.counts.pop_front();
        }
        self.latest = snapshot;
    }

    fn add_column(&mut self, snapshot: &Snapshot) {
        let period_ns = snapshot.now_ns - self.latest.now_ns;
        let mut before = std::mem::take(&mut self.tracks);
        for task in &snapshot.tasks {
            let mut track = before.remove(&key(task)).unwrap_or_default();
            track.push_back(task.share.unwrap_or_default());
            if track.len() > COLUMNS_MAX {
                track.pop_front();
            }
            self.tracks.insert(key(task), track);
        }
        self.periods_ns.push_back(period_ns);
        if self.periods_ns.len() > COLUMNS_MAX {
            self.periods_ns.pop_front();
        }
    }

    pub(super) const fn latest(&self) -> &Snapshot {
        &self.latest
    }

    /// The last `columns` parts of a process, the newest first.
    pub(super) fn track(&self, task: TaskKey, columns: usize) -> impl Iterator<Item = f64> {
        let track = self.tracks.get(&task);
        let parts = track.map(|track| track.iter().rev().take(columns).copied());
        parts.into_iter().flatten()
    }

    /// The length of the last `columns` periods together, in nanoseconds.
    pub(super) fn length_ns(&self, columns: usize) -> u64 {
        self.periods_ns.iter().rev().take(columns).sum()
    }

    /// Preempts of a device per second.
    pub(super) fn preempts_per_s(&self, device: &DeviceSnapshot) -> f64 {
        let Some((begin, counts)) = self.counts.front() else { return 0.0 };
        let before = counts.get(&device.id).copied().unwrap_or(device.preempts);
        let period_ns = self.latest.now_ns - begin;
        if period_ns == 0 {
            return 0.0;
        }
        // CAST: a day in nanoseconds has 47 bits, and a float has 53.
        1e9 * device.preempts.saturating_sub(before) as f64 / period_ns as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(now_ms: u64, share: f64, preempts: u64) -> Snapshot {
        let task = TaskSnapshot { pid: 7, share: Some(share), ..TaskSnapshot::default() };
        let device = DeviceSnapshot { preempts, ..DeviceSnapshot::default() };
        Snapshot {
            now_ns: now_ms * 1_000_000,
            tasks: vec![task],
            devices: vec![device],
            ..Snapshot::default()
        }
    }

    #[test]
    fn shares_are_kept_and_rates_are_differences() {
        let mut history = History::default();
        history.push(snapshot(1_000, 0.5, 10));
        assert_eq!(history.track((7, 0), 10).count(), 0);
        history.push(snapshot(1_200, 0.25, 10));
        // A snapshot of the same time adds nothing.
        history.push(snapshot(1_200, 0.25, 10));
        history.push(snapshot(1_400, 1.0, 14));
        assert_eq!(history.track((7, 0), 10).collect::<Vec<_>>(), [1.0, 0.25]);
        assert_eq!(history.track((7, 0), 1).collect::<Vec<_>>(), [1.0]);
        assert_eq!(history.track((8, 0), 10).count(), 0);
        assert_eq!(history.length_ns(10), 400_000_000);
        let device = &history.latest().devices[0];
        assert_eq!(history.preempts_per_s(device), 10.0);
    }

    #[test]
    fn the_snapshots_of_another_daemon_begin_a_new_history() {
        let mut history = History::default();
        history.push(snapshot(1_000, 0.5, 10));
        history.push(snapshot(1_200, 0.25, 10));
        let mut other = snapshot(1_300, 0.0, 1);
        other.daemon.pid = 99;
        history.push(other);
        assert_eq!(history.track((7, 0), 10).count(), 0);
        assert_eq!(history.preempts_per_s(&history.latest().devices[0]), 0.0);
    }

    #[test]
    fn the_memory_of_a_history_is_limited() {
        let mut history = History::default();
        for turn in 1..2_000 {
            history.push(snapshot(turn * 200, 0.0, turn));
        }
        assert_eq!(history.track((7, 0), usize::MAX).count(), COLUMNS_MAX);
        assert!(history.counts.len() < 20 && history.periods_ns.len() == COLUMNS_MAX);
    }
}
