//! What can be done to a queue of the emulated GPU.

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::emulator::control::Control;
use gpreempt_wire::emulator::{Refusal, Request};

use super::connection::{CallError, call};
use crate::act::ActError;
use crate::journal::Act;
use crate::process::ProcessKey;

/// Carries an act on an emulated GPU out, or with `undo` takes it back. Of an emulator that is
/// gone, or a queue that is, there is nothing to take back.
///
/// # Errors
/// If the queue is gone, or the emulator refuses or does not answer.
pub(crate) fn perform(process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
    let pid = process.pid;
    let result = match act {
        Act::EmulatedStop { socket, instance, queue } if undo => {
            call(socket, *instance, |control| control.resume(QueueId(*queue)))
        }
        Act::EmulatedStop { socket, instance, queue } => {
            call(socket, *instance, |control| stop(control, QueueId(*queue)))
        }
        Act::EmulatedPark { socket, instance, queue } => call(socket, *instance, |control| {
            let queue = QueueId(*queue);
            if undo { control.unpark(queue) } else { control.park(queue) }
        }),
        Act::EmulatedSlice { socket, instance, queue, set_ns } => {
            let slice = (!undo).then_some(Duration::from_nanos(*set_ns));
            call(socket, *instance, |control| control.set_slice(QueueId(*queue), slice))
        }
        // Somebody else's to do.
        Act::NvidiaSlice { .. }
        | Act::NvidiaStop { .. }
        | Act::NvidiaMode { .. }
        | Act::NvidiaInterleave { .. }
        | Act::NvidiaHold(_)
        | Act::AmdPause { .. }
        | Act::AmdSuspend { .. }
        | Act::AmdSession { .. }
        | Act::AmdPriority { .. } => return Err(ActError::Changed(pid)),
    };
    match result {
        Err(CallError::Gone | CallError::Emu(EmuError::Refused(Refusal::NoSuchQueue))) if undo => {
            Ok(())
        }
        result => result.map_err(|error| explain(pid, error)),
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
    use std::path::PathBuf;

    #[test]
    fn an_emulator_that_is_gone_needs_no_undo() {
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let socket = PathBuf::from("/nonexistent/gpu");
        let stop = Act::EmulatedStop { socket: socket.clone(), instance: 1, queue: 1 };
        let park = Act::EmulatedPark { socket: socket.clone(), instance: 1, queue: 1 };
        let slice = Act::EmulatedSlice { socket, instance: 1, queue: 1, set_ns: 1_000 };
        for act in [stop, park, slice] {
            assert!(perform(process, &act, true).is_ok());
            assert!(matches!(perform(process, &act, false), Err(ActError::Changed(1))));
        }
    }

    #[test]
    fn an_emulator_that_cannot_be_reached_is_not_gone() {
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let too_long = PathBuf::from(format!("/{}", "x".repeat(200)));
        let stop = Act::EmulatedStop { socket: too_long, instance: 1, queue: 1 };
        assert!(matches!(perform(process, &stop, true), Err(ActError::Emulated(1, _))));
    }
}
