//! The clock that everything is measured with.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Sleeping is only good to within this; the rest of a wait is spent looking at the clock.
const SPIN: Duration = Duration::from_micros(1_000);

/// Tells the time, and lets it pass.
pub(crate) trait Clock {
    /// Nanoseconds since an epoch that never changes while the program runs.
    fn now_ns(&self) -> u64;

    /// Returns when it is that late, exactly: at once if it already is.
    fn wait_until(&self, ns: u64);

    /// Keeps the processor busy for a while, as a program does between kernels.
    fn spin(&self, ns: u64);

    /// Lets others run for about that long; a short while is not worth going to sleep for.
    fn pause(&self, ns: u64);
}

/// `CLOCK_MONOTONIC`: other programs on the machine read the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        let time = clock_gettime(ClockId::Monotonic);
        // The clock begins at zero when the machine starts.
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
    }

    fn wait_until(&self, ns: u64) {
        let left = Duration::from_nanos(ns.saturating_sub(self.now_ns()));
        if let Some(asleep) = left.checked_sub(SPIN) {
            std::thread::sleep(asleep);
        }
        while self.now_ns() < ns {
            std::hint::spin_loop();
        }
    }

    fn spin(&self, ns: u64) {
        let end = self.now_ns() + ns;
        while self.now_ns() < end {
            std::hint::spin_loop();
        }
    }

    fn pause(&self, ns: u64) {
        if ns < 20_000 {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(Duration::from_nanos(ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_never_ends_early() {
        let due = Monotonic.now_ns() + 700_000;
        Monotonic.wait_until(due);
        assert!(Monotonic.now_ns() >= due);
        let begin = Monotonic.now_ns();
        Monotonic.spin(50_000);
        assert!(Monotonic.now_ns() >= begin + 50_000);
    }
}
