//! An exact GPU in virtual time.
//!
//! A [`scenario::Scenario`] says what is simulated; [`world::run`] simulates it and returns an
//! [`outcome::Outcome`]. The scheduler in it is the real one, driven by the real loop; only the
//! hardware and the processes are simulated. Time is virtual and chance comes from a seed, so a
//! run is the same on every machine, every time.
#![forbid(unsafe_code)]

mod agenda;
mod checker;
mod client;
mod control;
mod fault;
mod gpu;
mod hold;
pub mod isa;
pub mod kernels;
pub mod live;
pub mod memory;
pub mod model;
pub mod outcome;
pub mod packet;
pub mod prng;
mod process;
pub mod reference;
mod rig;
pub mod ring;
pub mod scenario;
pub mod swarm;
pub mod track;
pub mod wave;
pub mod world;

pub use gpreempt_fields as fields;
