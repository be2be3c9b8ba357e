//! How punctual the loop is.

use gpreempt_core::time::Duration;

/// How often, and how far, turns began later than they were due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Punctuality {
    /// Turns that began more than [`Self::LATE`] after their time.
    pub(super) late: u64,
    /// Turns that missed their deadline: the next one should have begun already.
    pub(super) missed: u64,
    /// The worst of them.
    pub(super) worst: Duration,
}

impl Punctuality {
    const LATE: Duration = Duration::from_millis(1);

    /// A turn begins so long after its time, in a loop that has to turn once in an interval.
    pub(super) fn note(&mut self, late: Duration, interval: Duration) {
        self.late += u64::from(late > Self::LATE);
        self.missed += u64::from(late > interval);
        self.worst = self.worst.max(late);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_begins_an_interval_too_late_has_missed_its_deadline() {
        let mut punctuality = Punctuality::default();
        let interval = Duration::from_millis(5);
        for late_us in [0, 1_000, 1_001, 5_000, 5_001] {
            punctuality.note(Duration::from_micros(late_us), interval);
        }
        let worst = Duration::from_micros(5_001);
        assert_eq!(punctuality, Punctuality { late: 3, missed: 1, worst });
    }
}
