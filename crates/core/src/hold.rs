//! Holds: keeping a device on one context between its kernels.
//!
//! A hold watcher samples a context far more often than the scheduler's loop and passes each
//! [`ContextSample`] to the [`HoldPolicy`](crate::hold_policy::HoldPolicy) of that context, which
//! answers with a [`HoldAction`]. Everything here is pure: it makes no calls and reads no clock.

use crate::time::{Duration, Instant};

/// The limits of all holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLimits {
    /// The longest hold without new work.
    pub hold_max: Duration,
    /// What a switch between two contexts is taken to last before one was measured.
    pub switch: Duration,
    /// How many times more the time of the held process counts than that of the others.
    pub latency_weight: u32,
}

impl HoldLimits {
    /// What releasing a hold too early costs: a switch to the others, and one back.
    pub(crate) const fn release_cost(&self, switch: Duration) -> Duration {
        switch.times(2 * self.latency_weight as u64)
    }
}

impl Default for HoldLimits {
    fn default() -> Self {
        Self {
            hold_max: Duration::from_millis(50),
            // Measured on an H200: 180 to 190 us.
            switch: Duration::from_micros(185),
            latency_weight: 4,
        }
    }
}

/// What one sample of a context showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextSample {
    /// The program submitted work since the last sample.
    pub submitted: bool,
    /// The packets that it has submitted since it was first observed.
    pub packets: u64,
    /// The device fetched work since the last sample.
    pub fetched: bool,
    /// The device has not fetched all work.
    pub pending: bool,
    /// The device has reached the hold: the context is on the engine.
    pub loaded: bool,
    /// Whether fetched work still runs, where the watcher can tell.
    pub execution: Execution,
}

/// Whether the fetched work of a context still runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// The watcher has no idle fence: rings show what was fetched, not what has finished. The
    /// policy counts gaps from the last movement of a ring.
    #[default]
    Unknown,
    /// Work may run: an idle fence has not answered yet, or work came after its last answer.
    Running,
    /// Everything that was submitted had finished at this time. The policy counts gaps from then.
    FinishedAt(Instant),
}

/// What the watcher has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldAction {
    /// Place the hold.
    Place,
    /// Release it.
    Release(ReleaseReason),
}

/// Why a hold is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseReason {
    /// The context was idle for the release threshold, or the hint ended.
    Quiet,
    /// It lasted for the maximum time without new work.
    Expired,
    /// The scheduler no longer permits it.
    Forbidden,
}
