//! A clock that never leaps.
//!
//! The clock outside may jump: a virtual machine wakes up, somebody sets the time, a reading is
//! garbled. The scheduler would take a leap ahead for hours of starvation and wait for hours
//! after a leap back. So it lives on the sum of plausible steps instead.

use crate::time::{Duration, Instant};

/// Turns readings of any clock into time that only moves forward, and never far at once.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    raw: Option<Instant>,
    steady: Instant,
    step_max: Duration,
}

impl SteadyClock {
    /// A clock on which no step is longer than `step_max`.
    pub const fn new(step_max: Duration) -> Self {
        Self { raw: None, steady: Instant::ZERO, step_max }
    }

    /// The steady time at which the outer clock shows `raw`.
    pub fn read(&mut self, raw: Instant) -> Instant {
        let step = match self.raw.replace(raw) {
            None => Duration::ZERO,
            Some(before) if raw < before => Duration::ZERO,
            Some(before) => raw.since(before).min(self.step_max),
        };
        self.steady += step;
        self.steady
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaps_become_short_steps_and_time_goes_on_after_them() {
        let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut clock = SteadyClock::new(Duration::from_millis(100));
        assert_eq!(clock.read(ms(50)), ms(0));
        assert_eq!(clock.read(ms(60)), ms(10));
        assert_eq!(clock.read(ms(3_600_000)), ms(110));
        assert_eq!(clock.read(ms(70)), ms(110));
        assert_eq!(clock.read(ms(75)), ms(115));
    }
}
