//! The programs of this repository as processes, for end-to-end tests and measurements.
//!
//! A [`Stage`] is a temporary folder with the programs that run in it. It starts
//!
//! ```text
//! Stage ── emulator(…), kfd(…) ──> Emulator ── load(…) ──> Load      gpreempt-emu, gpreempt-load
//!       ── daemon() ── start() ──> Daemon                            gpreemptd and its keeper
//!       ── gpreempt(…), run(…), stdout(…), failure(…)                gpreempt
//!       ── start(name, command) ─> Process                           any of them
//! ```
//!
//! Every process gets a clean environment: no `GPREEMPT_*` variable of the caller, and the socket
//! and the state folder of this stage. Every process ends with the value that stands for it, and
//! the folder is removed with the last value that refers to it.
//!
//! Product crates use this crate as a dev-dependency only; `xtask` uses it for the kill loop and
//! the service numbers. It never decides what is right: it starts, waits with limits, and reports.

mod daemon;
mod emulator;
mod error;
mod folder;
mod process;
mod programs;
mod stage;

pub use daemon::{Daemon, DaemonSpec};
pub use emulator::Load;
pub use emulator::{Emulator, EmulatorKind, EmulatorSpec};
pub use error::StageError;
pub use error::{LIMIT, until, until_some, wait_for};
pub use folder::WorkFolder;
pub use process::{Ended, Process, all_children, children, is_alive, signal};
pub use programs::program;
pub use stage::Stage;
