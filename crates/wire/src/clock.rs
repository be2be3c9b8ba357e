//! The clocks that the ends of a connection read.

use std::sync::OnceLock;

use gpreempt_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`.
pub fn monotonic() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock begins at zero when the machine starts.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// A clock for timeouts: its zero differs from process to process. It reads the C library's clock.
/// [`monotonic`] finds the kernel's clock page by itself, which crashes a process that runs under
/// a memory checker, and the clients of the emulator live in user programs.
pub(crate) fn stopwatch() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let passed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
}
