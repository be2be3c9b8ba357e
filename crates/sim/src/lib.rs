//! A simulated GPU that executes its kernels exactly, in virtual time.
//!
//! A [`scenario::Scenario`] says what is simulated; [`simulation::run`] simulates it and returns an
//! [`outcome::Outcome`]. Scheduler and loop are those of the daemon; hardware and processes are
//! simulated. Time is virtual and random numbers come from a seed, so a run is the same on every
//! machine, every time.
#![forbid(unsafe_code)]

mod checker;
mod client;
mod control;
mod event_queue;
mod eviction;
pub mod external_gpu;
mod gpu;
mod hold;
pub mod isa;
pub mod kernels;
pub mod memory;
pub mod model;
pub mod outcome;
pub mod prng;
pub mod process_memory;
pub mod random_scenario;
pub mod reference;
pub mod ring;
pub mod scenario;
mod sim_backend;
pub mod simulation;
pub mod track;
pub mod wave;

pub use gpreempt_fields as fields;
