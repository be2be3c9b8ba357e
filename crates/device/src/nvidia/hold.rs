//! Holding a device for one context across its gaps, from outside.
//!
//! One channel of ours is added to the context's compute group. When the device comes to it, it
//! finds an order to wait for a word in memory, without letting other groups in: the context's
//! own channels go on meanwhile, and others do not come between two kernels. Ending the hold is a
//! store to that word. The program knows nothing of it: nothing is injected, no call of its is
//! hooked, and its own synchronisation does not wait for our channel.
//!
//! What is added is written down first ([`crate::journal`]) and taken out again by [`detach`], by
//! whoever comes to do that; the word is in memory that our keeper shares ([`crate::hold_pages`]).

mod attach;
mod channel;
mod grip;
mod site;
pub mod watcher;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::controller::HoldFigures;
pub use attach::{attach, detach, is_attached};
pub use channel::HoldChannel;
pub use grip::{Ending, Grip, GripSettings, Look, Move};
pub use site::{HoldSite, channel_names};

/// What became of the holds of one context: the watcher counts, and others show it.
#[derive(Debug, Default)]
pub struct HoldCounts {
    placed: AtomicU64,
    expired: AtomicU64,
    longest_us: AtomicU64,
    is_held: AtomicBool,
    quiet_us: AtomicU64,
    late_looks: AtomicU64,
    blind_us: AtomicU64,
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
