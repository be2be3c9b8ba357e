//! The scheduler: a state machine without I/O, clocks or hash order; time is an argument.
//!
//! An [`id::DeviceId`] is one GPU; a task is one process; a queue is what the hardware can
//! preempt; a ring is the part of a queue that can be read from outside; a
//! [`priority::Priority`] is a number from 0 to 15. The caller reports [`event::Event`]s, the
//! [`scheduler::Scheduler`] answers with [`backend::Command`]s, and records the reason of each in
//! a [`decision::Decision`].
//!
//! ```text
//!   rings, hints, processes              preempt, resume, slices, holds
//!            |                                        ^
//!            v                                        |
//!      handle_event --> ranks (policy) --> run order --> poll_command
//!            ^                                        |
//!            +-------- Preempted, Resumed, ... <------+
//! ```
//!
//! The [`scheduler_loop::SchedulerLoop`] is the loop body that daemon and simulator share.
#![warn(missing_docs)]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arrival_predictor;
pub mod backend;
pub mod busy_periods;
pub mod config;
pub mod decision;
pub mod event;
pub mod hold;
pub mod hold_policy;
pub mod id;
pub mod idle_allowance;
pub mod invariant;
pub mod latency_budget;
pub mod policy;
pub mod priority;
pub mod release_threshold;
mod request_length;
pub mod ring;
pub mod room;
pub mod scheduler;
pub mod scheduler_loop;
pub mod slice_plan;
pub mod statistics;
pub mod swap_turns;
pub mod time;
mod timer;

/// The run state of a queue and its transitions.
pub mod queue {
    pub use crate::scheduler::{RunState, Transition};
}
