//! gpreemptd: the configuration, the rules, and the service that applies them.
//!
//! [`config::Config`] is the configuration file, [`process_attributes::ProcessAttributes`] holds
//! what rules can match, and [`assignment::assign`] decides what a process gets and why. All of it
//! is pure except for two readers: [`config::Config::load`] for the file and
//! [`process_attributes::ProcessAttributes::read`] for /proc. [`service::run`] is the daemon.
#![forbid(unsafe_code)]

pub mod accounts;
pub mod assignment;
pub mod bounds;
pub mod capabilities;
pub mod cgroup;
pub mod check;
pub mod config;
pub mod environment;
pub mod glob;
pub mod live;
pub mod metrics;
pub mod process_attributes;
pub mod rule;
pub mod service;

pub use gpreempt_fields as fields;
