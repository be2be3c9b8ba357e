//! Changes in other processes, whatever device they are on.

use crate::journal::{Act, Entry};
use crate::nvidia;
use crate::nvidia::rm::RmError;
use crate::nvidia::survey::LookError;
use crate::process::{ProcessError, ProcessKey};

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// The process cannot be reached.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The process has no such client any more.
    #[error("process {0} no longer has what was to be changed; it may have reset its GPU")]
    Changed(u32),
    /// It could not be written down, so it was not done.
    #[error("the journal cannot be written ({0}), so nothing was changed")]
    Journal(String),
    /// The driver said no.
    #[error("process {0}: {1}")]
    Rm(u32, RmError),
    /// The emulated GPU said no.
    #[error("process {0}: the emulated GPU refused: {1}")]
    Emulated(u32, String),
}

impl ActError {
    /// Whether the process has ended, so that there is nothing to do and nothing to undo.
    pub const fn is_ended(&self) -> bool {
        matches!(
            self,
            Self::Look(LookError::Process(ProcessError::Gone(_) | ProcessError::Replaced(_)))
        )
    }
}

impl From<ProcessError> for ActError {
    fn from(error: ProcessError) -> Self {
        Self::Look(error.into())
    }
}

/// Carries an act out, or with `undo` takes it back. Nothing here writes the journal: whoever acts
/// writes first ([`crate::ledger`]).
///
/// # Errors
/// If the process is gone or the device refuses.
pub fn perform(process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
    match act {
        Act::NvidiaSlice { .. }
        | Act::NvidiaStop { .. }
        | Act::NvidiaMode { .. }
        | Act::NvidiaInterleave { .. } => nvidia::act::perform(process, act, undo),
        Act::EmulatedStop { .. } | Act::EmulatedSlice { .. } => {
            Err(ActError::Emulated(process.pid, "it is not supported yet".to_owned()))
        }
    }
}

/// Puts a process back as it was. A process that is gone needs nothing.
///
/// # Errors
/// If it is there and cannot be put back.
pub fn undo(entry: &Entry) -> Result<(), String> {
    for act in entry.acts.iter().rev() {
        match perform(entry.process, act, true) {
            Ok(()) | Err(ActError::Changed(_)) => {}
            Err(error) if error.is_ended() => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}
