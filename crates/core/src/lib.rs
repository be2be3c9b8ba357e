//! The scheduler without a world.
//!
//! Nouns: a [`id::DeviceId`] is one GPU; a task is one process; a queue is what the hardware can
//! stop; a ring is what a queue shows from the outside; a [`priority::Priority`] is a number from 0
//! to 15. The world reports [`event::Event`]s, the [`scheduler::Scheduler`] answers with
//! [`command::Command`]s, and every choice leaves a [`decision::Decision`] that says why.
//!
//! ```text
//!   rings, hints, processes            preempt, resume, slices, holds
//!            |                                      ^
//!            v                                      |
//!      handle_event --> ranks (policy) --> lanes --> poll_command
//!            ^                                      |
//!            +------- Preempted, Resumed, ... <-----+
//! ```
//!
//! Nothing in here does I/O, reads a clock or depends on hash order; time is an argument. The
//! [`driver::Driver`] is the loop body that the daemon and the simulator share.
#![warn(missing_docs)]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod account;
pub mod backend;
pub mod capability;
pub mod clock;
pub mod command;
pub mod config;
pub mod decision;
pub mod driver;
pub mod event;
pub mod histogram;
pub mod id;
pub mod invariant;
pub mod policy;
pub mod priority;
pub mod ring;
pub mod scheduler;
pub mod time;
mod timer;

/// Where a queue stands.
pub mod queue {
    pub use crate::scheduler::{Edge, Standing};
}
