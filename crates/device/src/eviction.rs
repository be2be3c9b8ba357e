//! Evicts the GPU memory of processes to the host, and restores it.
//!
//! The driver does the work, inside the process itself; five calls begin it: GetState, Lock,
//! Checkpoint, Restore and Unlock. The program `gpreempt-evictor` makes these calls ([`program`]),
//! never the daemon or the keeper: libcuda starts threads and opens devices.
//!
//! ```text
//!   Evictor (daemon)  record -> journal   then order -> gpreempt-evictor  -- calls --> driver
//!                     <- reports, one JSON line for each step -
//!   keeper, next start                    recover   -> gpreempt-evictor  -- calls --> driver
//! ```
//!
//! The record of an eviction is in the journal from before Lock until after Unlock. The evictor
//! program makes no call without it, nor after its owner has ended (`procedure`). It holds one
//! lock file for each process while it makes calls (`target_lock`), so two of them never work on
//! one process.

pub mod adoption;
pub mod change;
pub mod check;
pub(crate) mod child;
mod emulated;
pub mod evictor;
#[cfg(test)]
pub(crate) mod fake;
pub mod host_memory;
mod libcuda;
mod measure;
mod nvidia;
pub(crate) mod order;
pub mod probe;
pub(crate) mod procedure;
pub mod program;
mod target_lock;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::ProcessKey;

/// Removes files that killed evictors left in the folder of all journals.
pub(crate) fn sweep(root: &Path) {
    target_lock::TargetLock::sweep(root);
}

pub use adoption::{LeftEviction, left_evictions};
pub use check::StateError;
pub use check::{EvictRefusal, check};
pub use evictor::{EvictJob, Evictor, EvictorReport, NotRestored};

/// A process whose memory is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictTarget {
    pub key: ProcessKey,
    pub device: EvictDevice,
}

/// Through which driver a process uses its GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "on", rename_all = "snake_case")]
pub enum EvictDevice {
    Nvidia,
    /// `instance` identifies the emulator: another one may use its socket later.
    Emulated {
        socket: PathBuf,
        instance: u64,
    },
}

/// The driver's state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    Running,
    /// Its calls to the driver wait. Its memory is on the GPU.
    Locked,
    /// Its memory is on the host.
    Checkpointed,
    /// The driver could not complete a checkpoint or restore. It knows no way out of this state.
    Failed,
}

/// What an evictor does for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Locking,
    Evicting,
    Evicted,
    Restoring,
    Unlocking,
}

/// Why a call of a driver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("it has ended, or uses this GPU no more")]
    Gone,
    #[error("its kernels did not end in time")]
    TimedOut,
    #[error("the GPU has no room for its memory")]
    NoRoom,
    #[error("{0}")]
    Refused(String),
    /// The same call will be refused for as long as the process lives.
    #[error("{0}")]
    Lost(String),
}

/// The calls of a driver for one process.
pub trait CheckpointCalls: fmt::Debug {
    fn state(&mut self) -> Result<CheckpointState, CallError>;

    /// Waits for the kernels of the process, for at most `timeout`.
    fn lock(&mut self, timeout: Duration) -> Result<(), CallError>;

    fn checkpoint(&mut self) -> Result<(), CallError>;

    fn restore(&mut self) -> Result<(), CallError>;

    fn unlock(&mut self) -> Result<(), CallError>;

    /// How much GPU memory a restore may use where the process belongs, if that is known. An error
    /// where a restore without room would lose the process, and it cannot be known.
    fn free_bytes(&mut self) -> Result<Option<u64>, CallError>;

    /// Whether [`Self::state`] waits for a call that is in flight.
    fn state_waits(&self) -> bool {
        false
    }

    /// Restores what the driver does not: time slices. Called when the process runs again.
    fn put_back(&mut self) -> Result<(), CallError> {
        Ok(())
    }
}
