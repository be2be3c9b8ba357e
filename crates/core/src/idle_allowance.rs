//! How long holds may keep a device idle in vain: at most 5 % of any second.
//!
//! Idle time is in vain if no work came before the hold was released. Gaps that holds bridged are
//! not charged.

use crate::time::{Duration, Instant};

/// Idle time per window.
const IDLE_MAX: Duration = Duration::from_millis(50);
/// Charges are counted in slots of this length.
const SLOT: Duration = Duration::from_millis(50);
/// The slots that have a part in the last second.
const SLOTS: usize = 21;

/// The idle time of one device.
#[derive(Clone, Debug)]
pub struct IdleAllowance {
    charged: [Duration; SLOTS],
    /// The number of the newest slot, counted from the epoch.
    newest: u64,
}

impl Default for IdleAllowance {
    fn default() -> Self {
        Self { charged: [Duration::ZERO; SLOTS], newest: 0 }
    }
}

impl IdleAllowance {
    /// How long the device may still be idle in vain.
    pub fn left(&self, now: Instant) -> Duration {
        let outdated = usize::try_from(slot(now).saturating_sub(self.newest)).unwrap_or(SLOTS);
        let counted = self.charged.iter().take(SLOTS.saturating_sub(outdated));
        counted.fold(IDLE_MAX, |left, &charged| left.saturating_sub(charged))
    }

    /// The device was idle in vain until now.
    pub fn charge(&mut self, now: Instant, idle: Duration) {
        let newest = slot(now).max(self.newest);
        let outdated = usize::try_from(newest - self.newest).unwrap_or(SLOTS).min(SLOTS);
        self.charged.rotate_right(outdated);
        self.charged[..outdated].fill(Duration::ZERO);
        self.charged[0] += idle;
        self.newest = newest;
    }
}

const fn slot(at: Instant) -> u64 {
    at.as_nanos() / SLOT.as_nanos()
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn what_was_charged_is_given_back_after_a_second() {
        let mut allowance = IdleAllowance::default();
        allowance.charge(at(3), Duration::from_millis(20));
        allowance.charge(at(500), Duration::from_millis(25));
        assert_eq!(allowance.left(at(500)), Duration::from_millis(5));
        assert_eq!(allowance.left(at(1_003)), Duration::from_millis(5));
        assert_eq!(allowance.left(at(1_053)), Duration::from_millis(25));
        assert_eq!(allowance.left(at(90_000)), IDLE_MAX);
        allowance.charge(at(90_000), Duration::from_millis(70));
        assert_eq!(allowance.left(at(90_000)), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn who_spends_only_what_is_left_stays_below_5_percent_of_every_second(
            wanted in prop::collection::vec((1..120_u64, 0..80_u64), 1..300)
        ) {
            let mut allowance = IdleAllowance::default();
            let (mut now, mut spent) = (0, Vec::new());
            for (pause, idle) in wanted {
                now += pause;
                let idle = Duration::from_millis(idle).min(allowance.left(at(now)));
                allowance.charge(at(now), idle);
                spent.push((now, idle));
                let second = spent.iter().filter(|(at, _)| at + 1_000 > now);
                let sum: u64 = second.map(|(_, idle)| idle.as_nanos()).sum();
                prop_assert!(sum <= IDLE_MAX.as_nanos(), "{sum} at {now}");
            }
        }
    }
}
