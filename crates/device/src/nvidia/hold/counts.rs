//! What became of holds, as numbers that one thread writes and others show.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::controller::HoldFigures;

/// What became of the holds of one context, for whoever wants to show it.
#[derive(Debug, Default)]
pub struct HoldCounts {
    pub(super) placed: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) longest_us: AtomicU64,
    pub(super) is_held: AtomicBool,
    pub(super) quiet_us: AtomicU64,
    pub(super) late_looks: AtomicU64,
    pub(super) blind_us: AtomicU64,
}

impl HoldCounts {
    /// What there is now.
    pub fn figures(&self) -> HoldFigures {
        HoldFigures {
            placed: self.placed.load(Ordering::Relaxed),
            expired: self.expired.load(Ordering::Relaxed),
            longest_us: self.longest_us.load(Ordering::Relaxed),
            is_held: self.is_held.load(Ordering::Relaxed),
            quiet_us: self.quiet_us.load(Ordering::Relaxed),
            late_looks: self.late_looks.load(Ordering::Relaxed),
            blind_us: self.blind_us.load(Ordering::Relaxed),
        }
    }
}
