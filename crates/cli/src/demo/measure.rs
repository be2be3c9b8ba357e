//! What the demo measures.

use gpreempt_core::time::Duration;
use gpreempt_sim::outcome::{Outcome, percentile};

use super::workload::{Mode, Workload};
use crate::output::micros;

/// The numbers of all modes.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) modes: Vec<ModeNumbers>,
}

/// The numbers of one mode.
#[derive(Debug)]
pub(crate) struct ModeNumbers {
    pub(crate) mode: Mode,
    /// Online latencies, shortest first.
    pub(crate) latencies: Vec<Duration>,
    /// Offline kernels completed in time.
    pub(crate) offline_kernels: u64,
    /// Of the time that online work leaves, the part offline work made use of: 0 to 1.
    pub(crate) kept: f64,
    pub(crate) preemptions: u64,
    pub(crate) reexecuted: u64,
    pub(crate) lost: u64,
    pub(crate) exact: bool,
}

impl Measured {
    pub(crate) fn new(
        workload: &Workload,
        runs: &[(Mode, Outcome)],
        offline_alone: &Outcome,
    ) -> Self {
        let duration = micros(workload.duration.as_nanos());
        let online_busy: f64 = runs
            .iter()
            .find(|(mode, _)| *mode == Mode::Alone)
            .map(|(_, outcome)| outcome.tasks[0].latencies())
            .unwrap_or_default()
            .into_iter()
            .map(|latency| micros(latency.as_nanos()))
            .sum();
        // CAST: kernel counts are far below 2^53.
        let possible = offline_alone.tasks[0].launches_in_time as f64
            * (1.0 - online_busy / duration).max(0.0);
        let modes = runs
            .iter()
            .map(|(mode, outcome)| {
                let offline_kernels =
                    outcome.tasks.get(1).map_or(0, |offline| offline.launches_in_time);
                ModeNumbers {
                    mode: *mode,
                    latencies: outcome.tasks[0].latencies(),
                    offline_kernels,
                    kept: if possible > 0.0 {
                        (offline_kernels as f64 / possible).min(1.0)
                    } else {
                        0.0
                    },
                    preemptions: outcome.preemptions,
                    reexecuted: outcome.reexecuted,
                    lost: outcome.lost,
                    exact: outcome.exact,
                }
            })
            .collect();
        Self { modes }
    }

    pub(crate) fn of(&self, mode: Mode) -> Option<&ModeNumbers> {
        self.modes.iter().find(|numbers| numbers.mode == mode)
    }

    /// How many times longer a mode's p99 is than that of online work alone.
    pub(crate) fn ratio(&self, mode: Mode) -> Option<f64> {
        let p99 = |mode| Some(micros(self.of(mode)?.latency(990)?.as_nanos()));
        let alone = p99(Mode::Alone).filter(|&alone| alone > 0.0)?;
        Some(p99(mode)? / alone)
    }
}

impl ModeNumbers {
    pub(crate) fn latency(&self, permille: usize) -> Option<Duration> {
        percentile(&self.latencies, permille)
    }
}
