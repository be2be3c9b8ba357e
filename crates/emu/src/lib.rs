//! The emulated GPU as a process in real time.
//!
//! [`server`] is `sim`'s GPU with its time tied to `CLOCK_MONOTONIC`: rings in memory that client
//! processes share, doorbells, context save in the middle of a kernel, control calls with their
//! costs. [`client`] is what a program that computes uses, [`control`] what a scheduler's backend
//! uses; both speak [`protocol`] over a Unix socket. [`kfd`] is AMD's kernel driver on top of it,
//! with its rules and its files. Nothing in here decides who runs.
#![cfg_attr(
    not(feature = "server"),
    expect(dead_code, reason = "some parts of the protocol are the emulator's")
)]

pub mod client;
pub mod clock;
pub mod control;
mod error;
pub mod kfd;
#[cfg(feature = "server")]
pub mod load;
mod map;
pub mod page;
pub mod protocol;
#[cfg(feature = "server")]
pub mod server;
mod socket;
mod talk;

pub use error::EmuError;
