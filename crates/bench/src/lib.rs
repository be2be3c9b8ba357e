//! Suites of measurements: what runs, in which modes, and what came out.
//!
//! A suite is a file in TOML; running it gives one file of results.
//! The program `gpreempt-load`, which this package also contains, is the load on real GPUs.

pub mod comparison;
pub mod emulated;
pub mod engine;
mod machine;
pub mod plan;
pub mod report;
pub mod results;
pub mod suite;
