//! Suites of measurements: what runs, in which modes, and the results.
//!
//! A suite ([`suite`]) is a TOML file. The engine ([`engine`]) measures its cases on a backend, the
//! simulator ([`emulated`]) or an NVIDIA GPU ([`nvidia`]), and gives a results file ([`results`]).
//! One page shows it ([`report`]). `gpreempt demo` and `compare` are built-in suites
//! ([`demonstration`]); `gpreempt demo --live` runs real processes ([`live`]). The
//! program `gpreempt-load`, also in this package, is the load on GPUs.

mod child;
pub mod comparison;
mod daemon_process;
pub mod demonstration;
pub mod emulated;
pub mod engine;
mod lines;
pub mod live;
mod machine;
pub mod nvidia;
pub mod plan;
pub mod predict;
pub mod report;
pub mod results;
pub mod round;
pub mod stability;
pub mod suite;
