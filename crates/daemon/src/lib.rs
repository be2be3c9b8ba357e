//! The scheduler as a service: what an operator wrote, and what it means for a process.
//!
//! [`config::Config`] is the file, [`facts::ProcessFacts`] is what is known of one process, and
//! [`verdict::judge`] says what that process gets and why. All of it is pure except for two
//! readers: [`config::Config::load`] for the file and [`facts::ProcessFacts::read`] for /proc.
#![forbid(unsafe_code)]

pub mod accounts;
pub mod cgroup;
pub mod check;
pub mod config;
pub mod environment;
pub mod facts;
pub mod glob;
pub mod rule;
pub mod verdict;

/// The reader of TOML is the simulator's own source, compiled here a second time: a service that
/// runs as root should not link a simulator to read a file.
#[path = "../../sim/src"]
mod shared {
    #[cfg_attr(not(test), expect(dead_code, reason = "it also reads what only scenarios have"))]
    pub mod fields;
}

pub use shared::fields;
