//! Changes in other processes, whatever device they are on.

use gpreempt_core::event::Fault;

use crate::amd;
use crate::amd::pause::PauseError;
use crate::emulated;
use crate::journal::{Act, Entry};
use crate::nvidia;
use crate::nvidia::abi::status::Status;
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
    /// KFD said no.
    #[error("process {0}: {1}")]
    Amd(u32, PauseError),
    /// The emulated GPU said no.
    #[error("process {0}: the emulated GPU refused: {1}")]
    Emulated(u32, String),
    /// The emulated GPU did not answer.
    #[error("process {0}: the emulated GPU did not answer in time")]
    EmulatedSilent(u32),
}

impl ActError {
    /// Whether the process has ended, so that there is nothing to do and nothing to undo.
    pub const fn is_ended(&self) -> bool {
        matches!(
            self,
            Self::Look(LookError::Process(ProcessError::Gone(_) | ProcessError::Replaced(_)))
        )
    }

    /// Whether the thing that was to be changed is simply not there any more.
    pub(crate) const fn is_gone(&self) -> bool {
        matches!(self, Self::Changed(_)) || self.is_ended()
    }

    /// What the scheduler is told.
    pub(crate) const fn fault(&self) -> Fault {
        match self {
            Self::Look(_) | Self::Changed(_) => Fault::Gone,
            Self::EmulatedSilent(_)
            | Self::Rm(_, RmError::Refused(Status::TIMEOUT | Status::TIMEOUT_RETRY)) => {
                Fault::TimedOut
            }
            Self::Rm(_, RmError::Refused(status)) => Fault::Refused(status.0),
            Self::Journal(_) | Self::Amd(..) | Self::Emulated(..) | Self::Rm(_, RmError::Os(_)) => {
                Fault::UNASKED
            }
        }
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
        | Act::NvidiaInterleave { .. }
        | Act::NvidiaHold(_) => nvidia::act::perform(process, act, undo),
        Act::EmulatedStop { .. } | Act::EmulatedPark { .. } | Act::EmulatedSlice { .. } => {
            emulated::act::perform(process, act, undo)
        }
        Act::AmdPause { .. }
        | Act::AmdSuspend { .. }
        | Act::AmdSession { .. }
        | Act::AmdPriority { .. } => amd::act::perform(process, act, undo),
    }
}

/// Puts a process back as it was. A process that is gone needs nothing.
///
/// # Errors
/// The first thing that could not be put back; everything else is.
pub fn undo(entry: &Entry) -> Result<(), String> {
    let mut problem = Ok(());
    // Whoever stands still comes first.
    let (stops, others): (Vec<&Act>, Vec<&Act>) =
        entry.acts.iter().rev().partition(|act| act.is_stop());
    for act in stops.into_iter().chain(others) {
        match perform(entry.process, act, true) {
            Ok(()) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => problem = problem.and_then(|()| Err(error.to_string())),
        }
    }
    problem
}
