//! Every byte between our processes.
//!
//! Programs talk to `gpreemptd` over a Unix socket that keeps the borders of packets
//! (`SOCK_SEQPACKET`): one [`message::Message`] is one packet of at most 4 KiB, a [`header`] and a
//! body of fixed layout, little endian. `docs/protocol.md` has it byte by byte.
//!
//! ```text
//!   client::Client  -- request::Request -->  server::Connection
//!                   <-- reply::Reply -----
//!   client::HintWriter == hint_page::HintPage (shared memory) == hint_reader::HintReader
//! ```
//!
//! The emulated GPU and its KFD are reached in the same way: [`emulator`] and [`emulated_kfd`] have
//! their messages, shared memory and clients. All three protocols share the [`header`], the
//! [`packet_socket`] and the macros that define messages (`message_macros.rs`).
//!
//! Encoding and decoding are pure and total: any bytes are a message or one
//! [`decode_error::DecodeError`]. Values that a decoder returns are within the limits that their
//! types promise; whether the sender may ask for what it asks is the daemon's affair.
#![warn(missing_docs)]

mod codec;
#[macro_use]
mod message_macros;

pub mod client;
pub mod clock;
pub mod decode_error;
pub mod emulated_kfd;
pub mod emulator;
pub mod event;
pub mod header;
pub mod hint_page;
pub mod hint_reader;
pub mod message;
pub mod packet_socket;
pub mod policy;
pub mod process;
pub mod queue;
pub mod refusal;
pub mod reply;
pub mod request;
pub mod role;
pub mod server;
mod shared_memory;
pub mod snapshot;
pub mod socket_path;
#[cfg(feature = "state")]
pub mod state;
pub mod text;
pub mod token_bucket;
pub mod traits;
