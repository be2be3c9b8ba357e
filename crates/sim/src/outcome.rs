//! What came of a simulation.

use gpreempt_core::decision::Decision;
use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use crate::isa::AssembleError;
use crate::track::Span;

/// Everything worth knowing after a run.
#[derive(Debug)]
pub struct Outcome {
    /// When the last launch was complete.
    pub ended_at: Instant,
    /// How long work arrived.
    pub duration: Duration,
    /// What each task got, in the scenario's order.
    pub tasks: Vec<TaskOutcome>,
    /// Times that running waves were taken off a device.
    pub preemptions: u64,
    /// Launches whose execution was begun more than once.
    pub reexecuted: u64,
    /// Launches of surviving tasks that never completed.
    pub lost: u64,
    /// Whether the memory of every surviving task is what an undisturbed run leaves, bit by bit.
    pub exact: bool,
    /// What the scheduler decided and why, up to the limit asked for.
    pub decisions: Vec<Decision>,
    /// Who was where and when, up to the limit asked for.
    pub spans: Vec<Span>,
    /// Every queue there was: its task and its device.
    pub queues: Vec<(QueueId, usize, usize)>,
    /// Steps of the simulation.
    pub events: u64,
}

/// What one task got.
#[derive(Debug)]
pub struct TaskOutcome {
    /// Its name.
    pub name: String,
    /// Its finished requests, in order of their ends.
    pub served: Vec<Served>,
    /// Launches completed while work arrived.
    pub launches_in_time: u64,
    /// Launches completed in all.
    pub launches: u64,
    /// Requests that missed their deadline.
    pub deadline_misses: u64,
    /// Whether it was killed.
    pub died: bool,
}

/// A finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// When it arrived.
    pub arrived: Instant,
    /// When its task began with it: later, if the one before took too long.
    pub began: Instant,
    /// When it was done.
    pub ended: Instant,
}

impl Served {
    /// From the arrival to the end: what whoever sent the request sees.
    pub fn latency(&self) -> Duration {
        self.ended.since(self.arrived)
    }
}

impl TaskOutcome {
    /// The latencies of its requests, shortest first.
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

/// Why a simulation has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    /// The assembly of a kernel is wrong.
    #[error("{0}")]
    Assemble(#[from] AssembleError),
    /// A setting of the scheduler makes no sense.
    #[error("scheduler: {0}")]
    Config(#[from] gpreempt_core::config::ConfigError),
    /// A kernel did something impossible.
    #[error("{0}")]
    Kernel(String),
    /// Something that must not be: a bug in the scheduler or in the simulator.
    #[error("violation at {}: {what}", at.since(Instant::ZERO))]
    Violation {
        /// When.
        at: Instant,
        /// What.
        what: String,
    },
    /// It takes too many steps.
    #[error("gave up after {0} steps; shorten the scenario or make its kernels longer")]
    TooLong(u64),
    /// Somebody did not want to know the end.
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
