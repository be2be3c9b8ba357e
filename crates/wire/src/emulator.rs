//! Every byte on the emulator's socket.
//!
//! A Unix socket of type `SOCK_SEQPACKET`: a message is a packet. Each begins with 16 bytes, and
//! each kind of message has one size (only [`Reply::Data`] ends in as many bytes as it has):
//!
//! ```text
//!   0  u32  magic "GPEM"
//!   4  u16  version          6  u16  kind
//!   8  u64  request: chosen by whoever asks, not 0; answers carry it; events have 0
//! ```
//!
//! Everything is little-endian. Any bytes are a message or a [`WireError`]; the emulator closes a
//! connection after the first error. The first message must be [`Request::Hello`]. Who may control
//! is decided by the peer's credentials: root, or the user the emulator runs as.

mod body;
pub mod client;
mod connection;
pub mod control;
mod device;
mod error;
mod header;
pub mod launch;
mod reply;
mod request;
pub mod ring_page;

pub use device::DeviceInfo;
pub use error::EmuError;
pub use header::{HEADER_BYTES, VERSION, WireError};
pub use reply::{QueueInfo, Refusal, Reply, TaskInfo, UsageInfo};
pub use request::{Request, Role};

/// No request is longer.
pub const REQUEST_BYTES_MAX: usize = 64;

/// Most bytes of memory in one [`Reply::Data`].
pub const DATA_BYTES_MAX: usize = 32 * 1024;

/// No reply is longer.
pub const REPLY_BYTES_MAX: usize = HEADER_BYTES + 8 + DATA_BYTES_MAX;
