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
mod counts;
mod grip;
mod site;
pub mod watcher;

pub use attach::{attach, detach, is_attached};
pub use channel::HoldChannel;
pub use counts::HoldCounts;
pub use grip::{Ending, Grip, GripSettings, Look, Move};
pub use site::{HoldSite, channel_names};
