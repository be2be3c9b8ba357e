//! The emulated GPU (`gpreempt-emu`), so that everything above works on any machine.
//!
//! [`EmulatedBackend`] is to an emulator what [`crate::nvidia::backend::NvidiaBackend`] is to real
//! devices. It may be there before the emulator, and outlives it.

pub mod act;
mod backend;
mod connection;
mod name;
mod report;
mod stopped;
mod target;
mod view;
mod watcher;
mod worker;

pub use backend::EmulatedBackend;
pub(crate) use stopped::stopped;
