//! The real daemon, with real clients.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed test is a panic")]

mod amd;
mod contention;
mod emulated;
mod gpus;
mod lifecycle;
mod offences;
mod patched;
mod requests;
mod systemd;
mod turns;
mod undo;
mod untouched;
