//! The time that everything follows.

use std::sync::OnceLock;

use gpreempt_core::time::{Duration, Instant};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`.
pub fn monotonic() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    // The clock begins at zero when the machine starts.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// A clock for waiting, the same in every process only in how fast it goes. It is the C library's:
/// the one above looks for the kernel's page by itself, which a process that runs in a debugger
/// for memory does not survive, and clients live in other people's processes.
pub(crate) fn stopwatch() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let passed = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX))
}

/// The device's time: the machine's, less what the device could not keep up with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceClock {
    lost: Duration,
}

/// A device that is further behind than this gives the time up for lost. It is then a slower
/// device, instead of one that does nothing but catch up.
const BEHIND_MAX: Duration = Duration::from_millis(20);

impl DeviceClock {
    /// How late it is on the device when it is that late on the machine.
    pub(crate) fn at(self, machine: Instant) -> Instant {
        Instant::from_nanos(machine.as_nanos().saturating_sub(self.lost.as_nanos()))
    }

    /// How late it is on the machine when it is that late on the device.
    pub(crate) fn machine_time(self, device: Instant) -> Instant {
        device + self.lost
    }

    /// The device should be at `due` and is only at `now`.
    pub(crate) fn fall_behind(&mut self, due: Instant, now: Instant) {
        let behind = due.since(now);
        if behind > BEHIND_MAX {
            self.lost += behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_cannot_be_caught_up_with_is_lost() {
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        let mut clock = DeviceClock::default();
        clock.fall_behind(at(100), at(90));
        assert_eq!(clock.at(at(100)), at(100));
        clock.fall_behind(at(100), at(40));
        assert_eq!(clock.at(at(100)), at(40));
        assert_eq!(clock.machine_time(at(41)), at(101));
    }
}
