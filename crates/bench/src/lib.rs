//! Suites of measurements: what runs, in which modes, and what came out.
//!
//! A suite is a file in TOML; running it gives one file of results.
//! The program `gpreempt-load`, which this package also contains, is the load on real GPUs.

mod child;
pub mod comparison;
pub mod emulated;
pub mod engine;
mod lines;
mod machine;
pub mod nvidia;
pub mod plan;
pub mod predict;
pub mod report;
pub mod results;
pub mod round;
pub mod stability;
pub mod suite;
