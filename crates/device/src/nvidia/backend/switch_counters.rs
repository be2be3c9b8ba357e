//! Tells from the device's context-switch counters whether a context with empty rings still runs.
//!
//! An empty ring says that all work was fetched, not that it is done. But the device counts how
//! often it switched a context off in the middle of a kernel, and how often it switched it on
//! again: if stopping a context interrupted nothing, it ran nothing. It may have been off at that
//! very moment, so the counters are read again, soon and then ever more rarely: a context that was
//! switched on since then has work.

use std::time::{Duration, Instant};

use gpreempt_core::ring::RingView;

use crate::nvidia::abi::control::SwitchCounts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SwitchTotals {
    /// Switched off in the middle of a kernel.
    interrupted: u32,
    /// Switched on again.
    restored: u32,
}

impl SwitchTotals {
    pub(super) fn of(counts: &SwitchCounts) -> Self {
        let interrupted = counts
            .saves_instruction
            .wrapping_add(counts.saves_work_group)
            .wrapping_add(counts.saves_graphics);
        Self { interrupted, restored: counts.restores }
    }
}

/// Whether a context still runs, as far as that is known.
#[derive(Debug, Default)]
pub(super) struct SwitchCounterCheck {
    last_stop: Option<StopResult>,
    is_checking: bool,
}

/// The counters of the last stop, and the ring indices at that time.
#[derive(Clone, Copy, Debug)]
struct StopResult {
    at: (u64, u64),
    totals: SwitchTotals,
    is_running: bool,
    check_at: Instant,
    wait: Duration,
}

impl SwitchCounterCheck {
    const WAIT_MIN: Duration = Duration::from_millis(100);
    const WAIT_MAX: Duration = Duration::from_secs(2);

    /// The totals to compare the next stop with, as long as nothing was submitted since.
    pub(super) fn baseline(&self) -> Option<SwitchTotals> {
        self.last_stop.map(|last| last.totals)
    }

    /// The context was stopped; these are the totals before and after.
    pub(super) fn stopped(&mut self, ring: RingView, totals: Option<(SwitchTotals, SwitchTotals)>) {
        let now = Instant::now();
        self.last_stop = totals.map(|(before, after)| StopResult {
            at: (ring.put, ring.get),
            totals: after,
            is_running: before != after,
            check_at: now + Self::WAIT_MIN,
            wait: Self::WAIT_MIN,
        });
    }

    /// The counters were read again.
    pub(super) fn checked(&mut self, totals: Option<SwitchTotals>) {
        self.is_checking = false;
        if let Some(last) = &mut self.last_stop {
            // Once it was switched on, it has work: then the next stop will show it.
            last.is_running |= totals.is_none_or(|totals| totals != last.totals);
        }
    }

    /// Adds to a reading of the rings what the counters show.
    pub(super) fn apply(&mut self, ring: RingView, is_off: bool) -> RingView {
        let last = self.last_stop.filter(|last| last.at == (ring.put, ring.get));
        let Some(last) = last else {
            self.last_stop = None;
            return ring;
        };
        // Work that was interrupted and resumed may have ended meanwhile.
        let running = if is_off || !last.is_running { Some(last.is_running) } else { None };
        RingView { running, ..ring }
    }

    /// Whether it is time to read the counters of an idle context again.
    pub(super) fn wants_check(&mut self, now: Instant) -> bool {
        let Some(last) = &mut self.last_stop else { return false };
        if last.is_running || self.is_checking || last.check_at > now {
            return false;
        }
        last.wait = (last.wait * 2).min(Self::WAIT_MAX);
        last.check_at = now + last.wait;
        self.is_checking = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: RingView = RingView { put: 7, get: 7, running: None };

    fn totals(interrupted: u32, restored: u32) -> SwitchTotals {
        SwitchTotals { interrupted, restored }
    }

    fn running(check: &mut SwitchCounterCheck, is_off: bool) -> Option<bool> {
        check.apply(RING, is_off).running
    }

    #[test]
    fn a_stop_that_interrupted_a_kernel_shows_it_while_it_lasts() {
        let mut check = SwitchCounterCheck::default();
        assert_eq!(running(&mut check, false), None);
        check.stopped(RING, Some((totals(3, 9), totals(4, 9))));
        assert_eq!(running(&mut check, true), Some(true));
        assert_eq!(running(&mut check, false), None, "it may have ended since it was resumed");
    }

    #[test]
    fn after_a_stop_that_interrupted_nothing_a_context_is_idle_until_work_is_submitted() {
        let mut check = SwitchCounterCheck::default();
        check.stopped(RING, Some((totals(3, 9), totals(3, 9))));
        for is_off in [true, false] {
            assert_eq!(running(&mut check, is_off), Some(false));
        }
        let moved = RingView { put: 8, get: 8, running: None };
        assert_eq!(check.apply(moved, false).running, None);
        assert_eq!(running(&mut check, false), None, "the stop is outdated");
    }

    #[test]
    fn a_context_that_was_switched_on_was_not_idle() {
        let mut check = SwitchCounterCheck::default();
        check.stopped(RING, Some((totals(3, 9), totals(3, 9))));
        assert!(!check.wants_check(Instant::now()));
        let later = Instant::now() + Duration::from_secs(1);
        assert!(check.wants_check(later) && !check.wants_check(later));
        check.checked(Some(totals(3, 9)));
        assert_eq!(running(&mut check, false), Some(false));
        assert!(check.wants_check(later + Duration::from_secs(1)));
        check.checked(Some(totals(3, 10)));
        assert_eq!(running(&mut check, false), None);
        // The next stop is compared with the totals of this one.
        let before = check.baseline().unwrap();
        check.stopped(RING, Some((before, totals(3, 10))));
        assert_eq!(running(&mut check, true), Some(true));
    }

    #[test]
    fn without_counters_nothing_is_known() {
        let mut check = SwitchCounterCheck::default();
        check.stopped(RING, None);
        assert_eq!(running(&mut check, true), None);
    }
}
