//! When the loop has to turn although nothing happened.

use gpreempt_core::time::Duration;

/// A time on the clock of [`gpreempt_device::keeper::monotonic_ns`] until which the loop may sleep.
/// No timer of the kernel: setting one would be one more system call in every turn.
#[derive(Debug)]
pub(super) struct Alarm {
    due_ns: u64,
}

impl Alarm {
    /// One that never rings.
    pub(super) const fn new() -> Self {
        Self { due_ns: u64::MAX }
    }

    /// Rings at that time, and not before.
    pub(super) const fn set(&mut self, at_ns: u64) {
        self.due_ns = at_ns;
    }

    /// How long the loop may sleep.
    pub(super) const fn left(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.due_ns.saturating_sub(now_ns))
    }

    /// How late the loop is, if it rang.
    pub(super) fn late(&self, now_ns: u64) -> Option<Duration> {
        now_ns.checked_sub(self.due_ns).map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rings_when_its_time_has_come_and_says_how_long_ago_that_was() {
        let mut alarm = Alarm::new();
        assert_eq!(alarm.late(1 << 63), None);
        alarm.set(30);
        let late = [0, 29, 30, 37].map(|now_ns| alarm.late(now_ns).map(Duration::as_nanos));
        assert_eq!(late, [None, None, Some(0), Some(7)]);
        assert_eq!([0, 29, 30, 37].map(|now_ns| alarm.left(now_ns).as_nanos()), [30, 1, 0, 0]);
    }
}
