//! Whether a context whose rings look empty still runs something.
//!
//! A ring that looks empty says that everything was fetched, not that it is done. But the device
//! counts how often it took a context off in the middle of a kernel, and how often it put it back:
//! if stopping a context interrupted nothing, it had nothing. It may have been off at that very
//! moment, so what was found is looked at again, soon and then ever more rarely: a context that was
//! put back on the device since then has something to do.

use std::time::{Duration, Instant};

use gpreempt_core::ring::RingView;

use crate::nvidia::abi::control::subdevice::SwitchCounts;

/// What the device counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Taken off in the middle of a kernel.
    interrupted: u32,
    /// Put back.
    restored: u32,
}

impl Counts {
    pub(super) fn of(counts: &SwitchCounts) -> Self {
        let interrupted = counts
            .saves_instruction
            .wrapping_add(counts.saves_work_group)
            .wrapping_add(counts.saves_graphics);
        Self { interrupted, restored: counts.restores }
    }
}

/// What is known of one context.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// What was found when it was last stopped, and the indices at that time.
    found: Option<Found>,
    checking: bool,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    at: (u64, u64),
    counts: Counts,
    is_running: bool,
    check_at: Instant,
    wait: Duration,
}

impl Doubt {
    const WAIT_MIN: Duration = Duration::from_millis(100);
    const WAIT_MAX: Duration = Duration::from_secs(2);

    /// What it was compared with last, as long as nothing was submitted since.
    pub(super) fn baseline(&self) -> Option<Counts> {
        self.found.map(|found| found.counts)
    }

    /// It was stopped, and these were the counts before and after.
    pub(super) fn stopped(&mut self, ring: RingView, counts: Option<(Counts, Counts)>) {
        let now = Instant::now();
        self.found = counts.map(|(before, after)| Found {
            at: (ring.put, ring.get),
            counts: after,
            is_running: before != after,
            check_at: now + Self::WAIT_MIN,
            wait: Self::WAIT_MIN,
        });
    }

    /// It was looked at again, and these are the counts now.
    pub(super) fn checked(&mut self, counts: Option<Counts>) {
        self.checking = false;
        if let Some(found) = &mut self.found {
            // Once it was put back, it has something to do: then the next stop will tell.
            found.is_running |= counts.is_none_or(|counts| counts != found.counts);
        }
    }

    /// Adds to a reading what is known beside it.
    pub(super) fn judge(&mut self, ring: RingView, is_off: bool) -> RingView {
        let found = self.found.filter(|found| found.at == (ring.put, ring.get));
        let Some(found) = found else {
            self.found = None;
            return ring;
        };
        // What was interrupted and may go on has perhaps ended meanwhile.
        let running = if is_off || !found.is_running { Some(found.is_running) } else { None };
        RingView { running, ..ring }
    }

    /// Whether it is time to look again at a context that was found to be idle.
    pub(super) fn wants_check(&mut self, now: Instant) -> bool {
        let Some(found) = &mut self.found else { return false };
        if found.is_running || self.checking || found.check_at > now {
            return false;
        }
        found.wait = (found.wait * 2).min(Self::WAIT_MAX);
        found.check_at = now + found.wait;
        self.checking = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: RingView = RingView { put: 7, get: 7, running: None };

    fn counts(interrupted: u32, restored: u32) -> Counts {
        Counts { interrupted, restored }
    }

    fn running(doubt: &mut Doubt, is_off: bool) -> Option<bool> {
        doubt.judge(RING, is_off).running
    }

    #[test]
    fn a_stop_that_interrupted_something_says_so_while_it_lasts() {
        let mut doubt = Doubt::default();
        assert_eq!(running(&mut doubt, false), None);
        doubt.stopped(RING, Some((counts(3, 9), counts(4, 9))));
        assert_eq!(running(&mut doubt, true), Some(true));
        assert_eq!(running(&mut doubt, false), None, "it may have ended since it goes on");
    }

    #[test]
    fn a_stop_that_interrupted_nothing_is_believed_until_something_is_submitted() {
        let mut doubt = Doubt::default();
        doubt.stopped(RING, Some((counts(3, 9), counts(3, 9))));
        for is_off in [true, false] {
            assert_eq!(running(&mut doubt, is_off), Some(false));
        }
        let moved = RingView { put: 8, get: 8, running: None };
        assert_eq!(doubt.judge(moved, false).running, None);
        assert_eq!(running(&mut doubt, false), None, "and what was known is forgotten");
    }

    #[test]
    fn a_context_that_was_put_back_was_not_idle() {
        let mut doubt = Doubt::default();
        doubt.stopped(RING, Some((counts(3, 9), counts(3, 9))));
        assert!(!doubt.wants_check(Instant::now()));
        let later = Instant::now() + Duration::from_secs(1);
        assert!(doubt.wants_check(later) && !doubt.wants_check(later));
        doubt.checked(Some(counts(3, 9)));
        assert_eq!(running(&mut doubt, false), Some(false));
        assert!(doubt.wants_check(later + Duration::from_secs(1)));
        doubt.checked(Some(counts(3, 10)));
        assert_eq!(running(&mut doubt, false), None);
        // The next stop is compared with what was known before.
        let before = doubt.baseline().unwrap();
        doubt.stopped(RING, Some((before, counts(3, 10))));
        assert_eq!(running(&mut doubt, true), Some(true));
    }

    #[test]
    fn without_counts_nothing_is_known() {
        let mut doubt = Doubt::default();
        doubt.stopped(RING, None);
        assert_eq!(running(&mut doubt, true), None);
    }
}
