//! How punctual the loop is.

use gpreempt_core::time::Duration;

/// How often, and how far, turns began later than they were due, and whether that was the loop's
/// own doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Punctuality {
    /// Turns that began more than [`Self::LATE`] after their time.
    pub(crate) late: u64,
    /// Turns that missed their deadline: the next one should have begun already.
    pub(crate) missed: u64,
    /// The worst of them.
    pub(crate) worst: Duration,
    /// Turns that took more than an interval of processor time: their lateness is ours. Others were
    /// late because the machine did not wake us up, or gave the processor to somebody else.
    pub(crate) overrun: u64,
    /// The most processor time that a turn took.
    pub(crate) busiest: Duration,
    /// The processor time that this thread had used when the last turn began.
    used: Option<Duration>,
}

impl Punctuality {
    const LATE: Duration = Duration::from_millis(1);

    /// A turn begins so long after its time, in a loop that has to turn once in an interval.
    pub(crate) fn note(&mut self, late: Duration, interval: Duration) {
        self.late += u64::from(late > Self::LATE);
        self.missed += u64::from(late > interval);
        self.worst = self.worst.max(late);
    }

    /// A turn begins when this thread has used so much processor time since it exists.
    pub(crate) fn begin(&mut self, used: Duration, interval: Duration) {
        let turn = self.used.map_or(Duration::ZERO, |before| used.saturating_sub(before));
        self.used = Some(used);
        self.overrun += u64::from(turn > interval);
        self.busiest = self.busiest.max(turn);
    }
}

/// The processor time that this thread has used since it exists.
pub(crate) fn processor_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let whole = u64::try_from(used.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    Duration::from_nanos(whole.saturating_add(u64::try_from(used.tv_nsec).unwrap_or(0)))
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
        let Punctuality { late, missed, worst, .. } = punctuality;
        assert_eq!((late, missed, worst), (3, 1, Duration::from_micros(5_001)));
    }

    #[test]
    fn what_the_loop_uses_itself_is_told_from_what_it_waits_for() {
        let mut punctuality = Punctuality::default();
        let interval = Duration::from_millis(5);
        // What was used before the first turn was used for something else.
        for used_us in [700_000, 700_010, 705_010, 710_011] {
            punctuality.begin(Duration::from_micros(used_us), interval);
        }
        let Punctuality { overrun, busiest, .. } = punctuality;
        assert_eq!((overrun, busiest), (1, Duration::from_micros(5_001)));
    }
}
