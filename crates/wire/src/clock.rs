//! The clock that events and rings are dated by.

use gpreempt_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`.
pub fn monotonic() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock begins at zero when the machine starts.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}
