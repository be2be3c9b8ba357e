//! The time of the devices.

use gpreempt_core::time::{Duration, Instant};

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
