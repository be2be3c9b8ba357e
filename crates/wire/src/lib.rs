//! Everything that gpreempt's processes exchange: messages, shared memory, and both ends of them.
//!
//! Programs talk to `gpreemptd` over a Unix socket of type `SOCK_SEQPACKET`: one
//! [`message::Message`] is one packet of at most 4 KiB, a header and a body of fixed layout, little
//! endian. `docs/reference/protocol.md` describes it byte by byte.
//!
//! ```text
//!   client::Client  -- request::Request -->  server::Connection
//!                   <-- reply::Reply -----
//!   client::HintWriter == hint_page::HintPage (shared memory) == hint_page::HintReader
//! ```
//!
//! The emulated GPU and its KFD use the same means: [`emulator`] and [`emulated_kfd`] have their
//! messages, shared memory and clients. All three protocols share the header of [`message`], the
//! [`packet_socket`] and the macros that define messages (`message_macros.rs`). The JSON of a
//! snapshot is in [`statistics`], which also defines metrics and columns.
//!
//! Encoding and decoding are pure and total: any bytes are a message or one
//! [`message::DecodeError`]. Values that a decoder returns are within the limits of their types;
//! whether the sender may ask for what it asks is decided by the daemon. This crate touches no
//! device.
#![warn(missing_docs)]

mod codec;
#[macro_use]
mod message_macros;

pub mod chunk;
pub mod client;
pub mod emulated_kfd;
pub mod emulator;
pub mod event;
pub mod hint_page;
pub mod lock_file;
pub mod memory_size;
pub mod message;
pub mod packet_socket;
pub mod policy;
pub mod process;
pub mod queue;
pub mod reply;
pub mod request;
pub mod server;
mod shared_memory;
pub mod socket_path;
#[cfg(feature = "state")]
pub mod statistics;
pub mod text;
pub mod token_bucket;

use gpreempt_core::time::Instant;

/// The time of `CLOCK_MONOTONIC`, by which events and rings are dated.
pub fn monotonic() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock begins at zero when the machine starts.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Instant::from_nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Compiles the example of the page about Rust.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/rust.md")]
struct RustPage;
