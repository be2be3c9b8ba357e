//! The share of a processor that the daemon uses for one user, measured and paid for over time.
//!
//! A user may exceed its share by a burst. Beyond that it is paused until the share has paid for
//! the excess.

use gpreempt_core::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkShare {
    /// The work that a user may cause is this part of the time: one in so many.
    one_in: u64,
    /// Work at once, before the share applies.
    burst: Duration,
    /// The time at which the share will have paid for all work so far.
    paid_at: Instant,
    is_paused: bool,
}

impl WorkShare {
    /// The longest pause. Some work cannot be prevented by one, such as refusing connections; a
    /// user does not owe it for longer. Other work is charged in pieces that need shorter pauses.
    const PAUSE_MAX: Duration = Duration::from_millis(2_000);
    /// Work that may be done after a pause before the next one.
    const AFTER_PAUSE: Duration = Duration::from_millis(1);

    pub(crate) const fn new(one_in: u64, burst: Duration, now: Instant) -> Self {
        Self { one_in, burst, paid_at: now, is_paused: false }
    }

    pub(crate) fn charge(&mut self, work: Duration, now: Instant) {
        let most = now + self.burst.times(self.one_in) + Self::PAUSE_MAX;
        self.paid_at = (self.paid_at.max(now) + work.times(self.one_in)).min(most);
        self.is_paused |= self.paid_at.since(now) > self.burst.times(self.one_in);
    }

    pub(crate) const fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The end of the pause, if there is one.
    pub(crate) fn resumes_at(&self) -> Option<Instant> {
        let credit = self.burst.saturating_sub(Self::AFTER_PAUSE).times(self.one_in);
        let at = self.paid_at.as_nanos().saturating_sub(credit.as_nanos());
        self.is_paused.then_some(Instant::from_nanos(at))
    }

    /// Ends the pause if its time has come. Returns whether it did.
    pub(crate) fn resume(&mut self, now: Instant) -> bool {
        let is_over = self.resumes_at().is_some_and(|at| at <= now);
        self.is_paused &= !is_over;
        is_over
    }

    /// How long ago the share had paid for everything; zero if it has not.
    pub(crate) fn rested(&self, now: Instant) -> Duration {
        now.since(self.paid_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_its_share_however_much_it_asks_for() {
        let (burst, step) = (Duration::from_millis(30), Duration::from_micros(100));
        let end = Instant::ZERO + Duration::from_millis(10_000);
        let (mut now, mut worked) = (Instant::ZERO, Duration::ZERO);
        let mut share = WorkShare::new(8, burst, now);
        while now < end {
            now += step;
            share.resume(now);
            if !share.is_paused() {
                worked += step;
                share.charge(step, now);
            }
        }
        let expected = Duration::from_millis(10_000 / 8) + burst;
        let error = worked.max(expected).saturating_sub(worked.min(expected));
        assert!(error < burst, "{worked:?} of {expected:?}");
        assert!(share.resumes_at().is_none_or(|at| at.since(end) < Duration::from_millis(20)));
        assert_eq!(share.rested(now), Duration::ZERO);
        let later = share.paid_at + burst;
        assert_eq!(share.rested(later), burst);
    }

    #[test]
    fn work_that_no_pause_prevents_is_not_owed_for_ever() {
        let mut share = WorkShare::new(8, Duration::from_millis(30), Instant::ZERO);
        for second in 0..3_600 {
            let now = Instant::ZERO + Duration::from_millis(second * 1_000);
            share.charge(Duration::from_millis(200), now);
            assert!(
                share.resumes_at().is_none_or(|at| at.since(now) < Duration::from_millis(2_100))
            );
        }
        assert!(share.is_paused());
    }
}
