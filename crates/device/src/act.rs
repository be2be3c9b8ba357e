//! Changes in other processes, whatever device they are on.
//!
//! Each vendor has an enum of its own acts beside the code that carries them out; [`Act`] is one of
//! them. The journal holds acts, and an act holds what it takes to undo it. Nothing here writes the
//! journal: the [`crate::ledger`] writes an act down before it is carried out.

use std::fmt::Debug;
use std::io;

use gpreempt_core::event::Fault;
use serde::{Deserialize, Serialize};

use crate::amd::act::AmdAct;
use crate::amd::pause::PauseError;
use crate::emulated::act::EmulatedAct;
use crate::journal::Entry;
use crate::nvidia::abi::status::Status;
use crate::nvidia::act::NvidiaAct;
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
    Journal(io::Error),
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
        if self.is_gone() {
            return Fault::Gone;
        }
        match self {
            Self::EmulatedSilent(_)
            | Self::Rm(_, RmError::Refused(Status::TIMEOUT | Status::TIMEOUT_RETRY)) => {
                Fault::TimedOut
            }
            Self::Rm(_, RmError::Refused(status)) => Fault::Refused(status.0),
            Self::Look(_)
            | Self::Changed(_)
            | Self::Journal(_)
            | Self::Amd(..)
            | Self::Emulated(..)
            | Self::Rm(_, RmError::Os(_)) => Fault::NOT_SENT,
        }
    }
}

impl From<ProcessError> for ActError {
    fn from(error: ProcessError) -> Self {
        Self::Look(error.into())
    }
}

/// Why a process could not be put back as it was. The journal still says what was done to it.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// An act could not be taken back.
    #[error(transparent)]
    Act(#[from] ActError),
    /// A call about the process does not return.
    #[error("process {0} does not answer; the keeper undoes what was done to it")]
    Silent(ProcessKey),
    /// A call about all processes of a device does not return.
    #[error("{0} does not answer; the keeper undoes what was done there")]
    SilentDevice(&'static str),
}

/// One change, with what it takes to undo it.
///
/// On disk an act is what its vendor's enum says: an object whose `kind` names vendor and variant,
/// so that a daemon reads what an older one wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Act {
    /// On an NVIDIA device.
    Nvidia(NvidiaAct),
    /// On AMD devices.
    Amd(AmdAct),
    /// On an emulated GPU.
    Emulated(EmulatedAct),
}

/// What every vendor's acts can do.
pub trait DeviceAct: Debug {
    /// Carries the act out, or with `undo` takes it back.
    ///
    /// # Errors
    /// If the process is gone or the device refuses. Of an act in several calls, some may have been
    /// done; the caller, who wrote it down, undoes it.
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ActError>;

    /// Whether it keeps a process from running.
    fn is_stop(&self) -> bool;

    /// What is changed. Undoing one of two acts with the same subject undoes the other.
    fn subject(&self) -> Subject;
}

/// The thing that an act changes, among all that its vendor's acts change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The kind of thing: for example a slice, or a stop.
    pub kind: u8,
    /// The names that tell it from others of that kind, from the outermost to the innermost.
    pub names: [u64; 3],
}

impl Act {
    /// The act as its vendor's code knows it.
    pub fn on_device(&self) -> &dyn DeviceAct {
        match self {
            Self::Nvidia(act) => act,
            Self::Amd(act) => act,
            Self::Emulated(act) => act,
        }
    }

    /// Whether undoing one of two acts undoes the other.
    pub fn concerns_the_same(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && self.on_device().subject() == other.on_device().subject()
    }

    /// This act, and where both are lists, what only the other one names.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Nvidia(act), Self::Nvidia(other)) => act.joined(other).into(),
            _ => self.clone(),
        }
    }

    /// Whether it keeps a process from running.
    pub fn is_stop(&self) -> bool {
        self.on_device().is_stop()
    }
}

impl From<NvidiaAct> for Act {
    fn from(act: NvidiaAct) -> Self {
        Self::Nvidia(act)
    }
}

impl From<AmdAct> for Act {
    fn from(act: AmdAct) -> Self {
        Self::Amd(act)
    }
}

impl From<EmulatedAct> for Act {
    fn from(act: EmulatedAct) -> Self {
        Self::Emulated(act)
    }
}

/// Puts a process back as it was. A process that is gone needs nothing.
///
/// # Errors
/// The first act that could not be taken back; all others are.
pub fn undo(entry: &Entry) -> Result<(), UndoError> {
    let mut problem = Ok(());
    // What keeps the process from running is taken back first.
    let (stops, others): (Vec<&Act>, Vec<&Act>) =
        entry.acts.iter().rev().partition(|act| act.is_stop());
    for act in stops.into_iter().chain(others) {
        match act.on_device().perform(entry.process, true) {
            Ok(()) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => problem = problem.and_then(|()| Err(error.into())),
        }
    }
    problem
}

#[cfg(test)]
mod tests;
