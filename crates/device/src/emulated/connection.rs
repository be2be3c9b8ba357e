//! The connection a thread makes its control calls on.
//!
//! Acts name the emulator they are for, and are carried out by whoever is asked to: a worker, or a
//! keeper long after. So each thread keeps the connection of its last call, and makes another one
//! when that does not lead to the right emulator.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::emulator::control::{Control, Options};

thread_local! {
    static LAST: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Connection {
    socket: PathBuf,
    control: Control,
}

/// Why a call was not made, or not answered well.
#[derive(Debug)]
pub(super) enum CallError {
    /// That emulator is gone. There may be another one in its place.
    Gone,
    /// Something else.
    Emu(EmuError),
}

/// Makes a call to that very emulator. It may be made twice, if the connection of the last call
/// has ended meanwhile.
pub(super) fn call<T>(
    socket: &Path,
    instance: u64,
    call: impl Fn(&mut Control) -> Result<T, EmuError>,
) -> Result<T, CallError> {
    LAST.with_borrow_mut(|last| {
        let known = last.take().filter(|last| last.leads_to(socket, instance));
        if let Some(mut connection) = known {
            let result = call(&mut connection.control);
            if !result.as_ref().is_err_and(is_over) {
                *last = Some(connection);
                return result.map_err(CallError::Emu);
            }
        }
        let control = Control::connect(socket, Options::default()).map_err(|error| {
            if nobody_listens(&error) { CallError::Gone } else { CallError::Emu(error) }
        })?;
        let connection = last.insert(Connection { socket: socket.to_owned(), control });
        if connection.control.instance() != instance {
            return Err(CallError::Gone);
        }
        call(&mut connection.control).map_err(CallError::Emu)
    })
}

/// Whether there is no emulator, as opposed to one that cannot be reached.
pub(super) fn nobody_listens(error: &EmuError) -> bool {
    let EmuError::Connect { error, .. } = error else { return false };
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Whether nothing more can be said on the connection.
fn is_over(error: &EmuError) -> bool {
    !matches!(error, EmuError::Refused(_) | EmuError::TimedOut)
}

impl Connection {
    fn leads_to(&self, socket: &Path, instance: u64) -> bool {
        self.socket == socket && self.control.instance() == instance
    }
}
