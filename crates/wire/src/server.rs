//! The daemon's end of the socket: descriptors for its event loop, and limits for its clients.
//!
//! Nothing here blocks or loops. The daemon polls [`Listener`] and every [`Connection`] for
//! reading, and a connection also for writing while [`Connection::wants_write`] says so. Whatever
//! a client does, the worst that comes of it is one [`Offence`]: say it ([`Connection::close`]),
//! log it, go on.

mod connection;
mod listener;
mod offence;
mod outgoing;
mod socket_file;

pub use connection::{Connection, Peer, SnapshotError};
pub use listener::{Accepted, BindError, Listener};
pub use offence::Offence;

/// What a client may do at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packets at once, before the rate counts.
    pub packets_burst: u32,
    /// Packets in a second.
    pub packets_per_second: u32,
    /// Replies that wait because the client does not read. One more, and it is closed.
    pub waiting_max: usize,
    /// How many of those may be events. Further ones are left out and counted.
    pub waiting_events_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            packets_burst: 1_000,
            packets_per_second: 5_000,
            waiting_max: 64,
            waiting_events_max: 32,
        }
    }
}
