//! The result of a simulation.

use gpreempt_core::decision::Decision;
use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use crate::isa::AssembleError;
use crate::track::Span;

#[derive(Debug)]
pub struct Outcome {
    /// When the last launch was complete.
    pub ended_at: Instant,
    /// How long work arrived.
    pub duration: Duration,
    /// In the scenario's order.
    pub tasks: Vec<TaskOutcome>,
    /// How often running waves were preempted.
    pub preemptions: u64,
    /// How often the memory of a process was moved to the host.
    pub evictions: u64,
    /// Launches whose execution began more than once.
    pub reexecuted: u64,
    /// Launches of surviving tasks that never completed.
    pub lost: u64,
    /// Whether the memory of every surviving task is bit by bit that of an undisturbed run.
    pub exact: bool,
    /// The first decisions, up to the requested number.
    pub decisions: Vec<Decision>,
    /// The activities of queues, up to the requested number.
    pub spans: Vec<Span>,
    /// Task and device of every queue.
    pub queues: Vec<(QueueId, usize, usize)>,
    /// Handled events.
    pub events: u64,
}

#[derive(Debug)]
pub struct TaskOutcome {
    pub name: String,
    /// Finished requests, in order of their ends.
    pub served: Vec<Served>,
    /// Launches completed while work arrived.
    pub launches_in_time: u64,
    /// Time with waves on compute units while work arrived, if [`Options::meters`] is set; over all
    /// devices.
    ///
    /// [`Options::meters`]: crate::simulation::Options::meters
    pub device_time: Duration,
    pub launches: u64,
    /// Requests that missed their deadline.
    pub deadline_misses: u64,
    pub died: bool,
    /// Whether it got no memory and never ran.
    pub refused: bool,
}

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub arrived: Instant,
    /// Later than the arrival if the request before took too long.
    pub began: Instant,
    pub ended: Instant,
}

impl Served {
    /// From the arrival to the end.
    pub fn latency(&self) -> Duration {
        self.ended.since(self.arrived)
    }
}

impl TaskOutcome {
    /// The latencies of all requests, the shortest first.
    pub fn latencies(&self) -> Vec<Duration> {
        let mut latencies: Vec<Duration> = self.served.iter().map(Served::latency).collect();
        latencies.sort_unstable();
        latencies
    }
}

/// The value that `permille` thousandths of a sorted list do not exceed (nearest rank).
pub fn percentile(sorted: &[Duration], permille: usize) -> Option<Duration> {
    let rank = (sorted.len() * permille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}

#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("{0}")]
    Assemble(#[from] AssembleError),
    #[error("scheduler: {0}")]
    Config(#[from] gpreempt_core::config::ConfigError),
    /// A kernel faulted.
    #[error("{0}")]
    Kernel(String),
    /// A checker failed: a bug in the scheduler or in the simulator.
    #[error("violation at {}: {what}", at.since(Instant::ZERO))]
    Violation { at: Instant, what: String },
    #[error("gave up after {0} steps; shorten the scenario or make its kernels longer")]
    TooLong(u64),
    /// The caller stopped the run.
    #[error("stopped")]
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let sorted: Vec<Duration> = (1..=200).map(Duration::from_micros).collect();
        assert_eq!(percentile(&sorted, 500), Some(Duration::from_micros(100)));
        assert_eq!(percentile(&sorted, 990), Some(Duration::from_micros(198)));
        assert_eq!(percentile(&sorted, 1000), Some(Duration::from_micros(200)));
        assert_eq!(percentile(&[], 500), None);
    }
}
