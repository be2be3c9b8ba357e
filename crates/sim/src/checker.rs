//! What must be true, whatever happens.
//!
//! Checkers look at the simulated hardware, not at the scheduler's opinion of it: packets are
//! neither lost nor run twice ([`packets`]), requests are not answered too soon ([`requests`]),
//! memory is what an undisturbed run leaves ([`memory`]), nothing stays of what is gone
//! ([`released`], [`orphans`]), no device idles beside work ([`idle`]), and no important queue
//! waits behind an unimportant one for longer than it may ([`inversion`]).

mod idle;
pub(crate) mod inversion;
pub(crate) mod memory;
mod orphans;
pub(crate) mod packets;
mod released;
mod requests;
