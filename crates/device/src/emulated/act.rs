//! What can be done to a queue of the emulated GPU.

use std::path::PathBuf;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::emulator::control::Control;
use gpreempt_wire::emulator::{Refusal, Request};
use serde::{Deserialize, Serialize};

use super::connection::{CallError, call};
use crate::act::{ActError, DeviceAct, Subject};
use crate::process::ProcessKey;

/// One change on an emulated GPU. Each names the emulator it is for: another one on the same socket
/// has other queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum EmulatedAct {
    /// A queue that no longer runs.
    #[serde(rename = "emulated_stop")]
    Stop {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is.
        instance: u64,
        /// Which queue.
        queue: u64,
    },
    /// A queue from whose ring nothing more is fetched.
    #[serde(rename = "emulated_park")]
    Park {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is.
        instance: u64,
        /// Which queue.
        queue: u64,
    },
    /// The slice of a queue, which is put back to the device's own.
    #[serde(rename = "emulated_slice")]
    Slice {
        /// Where the emulator listens.
        socket: PathBuf,
        /// Which emulator it is.
        instance: u64,
        /// Which queue.
        queue: u64,
        /// What it is now, in nanoseconds.
        set_ns: u64,
    },
}

impl DeviceAct for EmulatedAct {
    /// Of an emulator that is gone, or a queue that is, there is nothing to take back.
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ActError> {
        let result = match self {
            Self::Stop { socket, instance, queue } if undo => {
                call(socket, *instance, |control| control.resume(QueueId(*queue)))
            }
            Self::Stop { socket, instance, queue } => {
                call(socket, *instance, |control| stop(control, QueueId(*queue)))
            }
            Self::Park { socket, instance, queue } => call(socket, *instance, |control| {
                let queue = QueueId(*queue);
                if undo { control.unpark(queue) } else { control.park(queue) }
            }),
            Self::Slice { socket, instance, queue, set_ns } => {
                let slice = (!undo).then_some(Duration::from_nanos(*set_ns));
                call(socket, *instance, |control| control.set_slice(QueueId(*queue), slice))
            }
        };
        match result {
            Err(CallError::Gone | CallError::Emu(EmuError::Refused(Refusal::NoSuchQueue)))
                if undo =>
            {
                Ok(())
            }
            result => result.map_err(|error| explain(process.pid, error)),
        }
    }

    fn is_stop(&self) -> bool {
        matches!(self, Self::Stop { .. } | Self::Park { .. })
    }

    fn subject(&self) -> Subject {
        let (kind, instance, queue) = match *self {
            Self::Stop { instance, queue, .. } => (0, instance, queue),
            Self::Slice { instance, queue, .. } => (1, instance, queue),
            Self::Park { instance, queue, .. } => (2, instance, queue),
        };
        Subject { kind, names: [instance, queue, 0] }
    }
}

/// What happened, in the words of all acts.
pub(super) fn explain(pid: u32, error: CallError) -> ActError {
    match error {
        CallError::Gone | CallError::Emu(EmuError::Refused(Refusal::NoSuchQueue)) => {
            ActError::Changed(pid)
        }
        CallError::Emu(EmuError::TimedOut) => ActError::EmulatedSilent(pid),
        CallError::Emu(error) => ActError::Emulated(pid, error.to_string()),
    }
}

/// Stops a queue. If that takes too long, it is as if it had never been asked for: the emulator
/// carries out one call after the other, so what is late is followed by its end.
fn stop(control: &mut Control, queue: QueueId) -> Result<(), EmuError> {
    let result = control.stop(queue);
    if matches!(result, Err(EmuError::TimedOut)) {
        let _ = control.begin(&Request::Resume(queue));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_that_is_gone_needs_no_undo() {
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let socket = PathBuf::from("/nonexistent/gpu");
        let stop = EmulatedAct::Stop { socket: socket.clone(), instance: 1, queue: 1 };
        let park = EmulatedAct::Park { socket: socket.clone(), instance: 1, queue: 1 };
        let slice = EmulatedAct::Slice { socket, instance: 1, queue: 1, set_ns: 1_000 };
        for act in [stop, park, slice] {
            assert!(act.perform(process, true).is_ok());
            assert!(matches!(act.perform(process, false), Err(ActError::Changed(1))));
        }
    }

    #[test]
    fn an_emulator_that_cannot_be_reached_is_not_gone() {
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let too_long = PathBuf::from(format!("/{}", "x".repeat(200)));
        let stop = EmulatedAct::Stop { socket: too_long, instance: 1, queue: 1 };
        assert!(matches!(stop.perform(process, true), Err(ActError::Emulated(1, _))));
    }
}
