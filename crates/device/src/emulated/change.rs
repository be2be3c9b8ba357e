//! Changes of emulated queues, and the connection on which a thread makes its control calls.
//!
//! A change names the emulator it is for, and any process may revert it: a worker, or a keeper long
//! after. So each thread keeps the connection of its last call, and opens another one when that is
//! not to the right emulator.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::emulator::{EmuError, Refusal, Request};
use serde::{Deserialize, Serialize};

use crate::change::{ChangeError, DeviceChange, Subject};
use crate::process::ProcessKey;

/// One change on an emulated GPU. `instance` identifies the emulator: another one on the same
/// socket has other queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum EmulatedChange {
    /// A queue that no longer runs.
    #[serde(rename = "emulated_stop")]
    Stop { socket: PathBuf, instance: u64, queue: u64 },
    /// A queue from whose ring the device fetches nothing more.
    #[serde(rename = "emulated_park")]
    Park { socket: PathBuf, instance: u64, queue: u64 },
    /// The time slice of a queue. Undoing it sets the device's own.
    #[serde(rename = "emulated_slice")]
    Slice { socket: PathBuf, instance: u64, queue: u64, set_ns: u64 },
}

impl DeviceChange for EmulatedChange {
    /// If the emulator or the queue no longer exists, there is nothing to revert.
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ChangeError> {
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

pub(super) fn explain(pid: u32, error: CallError) -> ChangeError {
    match error {
        CallError::Gone | CallError::Emu(EmuError::Refused(Refusal::NoSuchQueue)) => {
            ChangeError::ObjectGone(pid)
        }
        CallError::Emu(EmuError::TimedOut) => ChangeError::EmulatedTimeout(pid),
        CallError::Emu(error) => ChangeError::Emulated(pid, error.to_string()),
    }
}

/// Stops a queue. If that takes too long, a resume follows: the emulator carries out one call after
/// the other, so the late stop has no lasting effect.
fn stop(control: &mut Control, queue: QueueId) -> Result<(), EmuError> {
    let result = control.stop(queue);
    if matches!(result, Err(EmuError::TimedOut)) {
        let _ = control.begin(&Request::Resume(queue));
    }
    result
}

thread_local! {
    static LAST: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Connection {
    socket: PathBuf,
    control: Control,
}

#[derive(Debug)]
pub(super) enum CallError {
    /// That emulator has ended. There may be another one on its socket.
    Gone,
    Emu(EmuError),
}

/// Makes a call to that very emulator. It makes it twice if the connection of the last call has
/// ended meanwhile.
pub(super) fn call<T>(
    socket: &Path,
    instance: u64,
    call: impl Fn(&mut Control) -> Result<T, EmuError>,
) -> Result<T, CallError> {
    LAST.with_borrow_mut(|last| {
        let known = last.take().filter(|last| last.is_to(socket, instance));
        if let Some(mut connection) = known {
            let result = call(&mut connection.control);
            if !result.as_ref().is_err_and(is_over) {
                *last = Some(connection);
                return result.map_err(CallError::Emu);
            }
        }
        let control = Control::connect(socket, Options::default()).map_err(|error| {
            if is_absent(&error) { CallError::Gone } else { CallError::Emu(error) }
        })?;
        let connection = last.insert(Connection { socket: socket.to_owned(), control });
        if connection.control.instance() != instance {
            return Err(CallError::Gone);
        }
        call(&mut connection.control).map_err(CallError::Emu)
    })
}

/// Whether there is no emulator, as opposed to one that cannot be reached.
pub(crate) fn is_absent(error: &EmuError) -> bool {
    let EmuError::Connect { error, .. } = error else { return false };
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether the connection has ended.
fn is_over(error: &EmuError) -> bool {
    !matches!(error, EmuError::Refused(_) | EmuError::TimedOut)
}

impl Connection {
    fn is_to(&self, socket: &Path, instance: u64) -> bool {
        self.socket == socket && self.control.instance() == instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_that_has_ended_needs_no_undo() {
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let socket = PathBuf::from("/nonexistent/gpu");
        let stop = EmulatedChange::Stop { socket: socket.clone(), instance: 1, queue: 1 };
        let park = EmulatedChange::Park { socket: socket.clone(), instance: 1, queue: 1 };
        let slice = EmulatedChange::Slice { socket, instance: 1, queue: 1, set_ns: 1_000 };
        for change in [stop, park, slice] {
            assert!(change.perform(process, true).is_ok());
            assert!(matches!(change.perform(process, false), Err(ChangeError::ObjectGone(1))));
        }
    }

    #[test]
    fn an_emulator_that_cannot_be_reached_has_not_ended() {
        let process = ProcessKey { pid: 1, start_ticks: 1 };
        let too_long = PathBuf::from(format!("/{}", "x".repeat(200)));
        let stop = EmulatedChange::Stop { socket: too_long, instance: 1, queue: 1 };
        assert!(matches!(stop.perform(process, true), Err(ChangeError::Emulated(1, _))));
    }
}
