//! The emulated GPU (`gpreempt-emu`): its messages, its rings in shared memory, its clients.
//!
//! A Unix socket of type `SOCK_SEQPACKET`: one message is one packet, with the [`header`] that all
//! our protocols have. The first message must be [`Request::Hello`]. Any bytes are a message or a
//! [`DecodeError`](crate::decode_error::DecodeError); the emulator closes a connection after the
//! first error. The credentials of the peer decide whether it may control: root, or the user that
//! the emulator runs as.
//!
//! ```text
//!   client::Client    -- request::Request -->  the emulator
//!   control::Control  <-- reply::Reply -----
//!   client::Queue     == ring_page::QueuePage (shared memory) ==  a device of the emulator
//! ```
//!
//! [`client`] is for programs that compute, [`control`] for the backend of a scheduler.
//!
//! [`header`]: crate::header

pub mod client;
mod connection;
pub mod control;
mod device;
mod error;
pub mod launch;
mod reply;
mod request;
pub mod ring_page;

pub use device::DeviceInfo;
pub use error::EmuError;
pub use reply::{QueueInfo, Refusal, Reply, TaskInfo, UsageInfo};
pub use request::{Request, Role};

use crate::header::{HEADER_BYTES, Protocol};

/// The protocol. Version 1 had a shorter header.
pub const PROTOCOL: Protocol =
    Protocol { magic: u32::from_le_bytes(*b"GPEM"), version: 2, packet_bytes_max: REPLY_BYTES_MAX };

/// No request is longer.
pub const REQUEST_BYTES_MAX: usize = 64;

/// Most bytes of memory in one [`Reply::Data`].
pub const DATA_BYTES_MAX: usize = 32 * 1024;

/// No reply is longer: address, length and bytes of [`Reply::Data`].
pub const REPLY_BYTES_MAX: usize = HEADER_BYTES + 8 + DATA_BYTES_MAX;
