//! The scheduler as a service: what an operator wrote, and what it means for a process.
//!
//! [`config::Config`] is the file, [`facts::ProcessFacts`] is what is known of one process, and
//! [`verdict::judge`] says what that process gets and why. All of it is pure except for two
//! readers: [`config::Config::load`] for the file and [`facts::ProcessFacts::read`] for /proc.
//! [`service::run`] is the daemon itself.
#![forbid(unsafe_code)]

pub mod accounts;
pub mod cgroup;
pub mod check;
pub mod config;
pub mod environment;
pub mod facts;
pub mod glob;
pub mod metrics;
pub mod rule;
pub mod service;
pub mod verdict;

pub use gpreempt_fields as fields;
