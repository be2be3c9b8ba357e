//! What must be true, whatever happens.
//!
//! Checkers look at the simulated hardware, not at the scheduler's opinion of it: packets are
//! neither lost nor run twice ([`packets`]), memory is what an undisturbed run leaves ([`memory`]),
//! and no important queue waits behind an unimportant one for longer than it may ([`inversion`]).

pub(crate) mod inversion;
pub(crate) mod memory;
pub(crate) mod packets;
