//! What can be done to a process on AMD devices and outlives us.
//!
//! Suspending queues is not here: when a debugger dies, the kernel resumes what it suspended.

use std::io;

use super::door::KernelDoor;
use super::node;
use super::pause::{PauseError, pause, unpause};
use crate::act::ActError;
use crate::journal::Act;
use crate::process::ProcessKey;

/// Carries an act on AMD devices out, or with `undo` takes it back.
///
/// # Errors
/// If the process is gone or the kernel refuses.
pub(crate) fn perform(process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
    let pid = process.pid;
    if !matches!(act, Act::AmdPause) {
        // Somebody else's to do.
        return Err(ActError::Changed(pid));
    }
    process.check()?;
    let door = KernelDoor::open().map_err(|error| explain_open(pid, &error))?;
    let done = if undo { unpause(&door, pid) } else { pause(&door, pid) };
    done.map_err(|error| match error {
        error if error.is_gone() => ActError::Changed(pid),
        error => ActError::Amd(pid, error),
    })
}

/// Where the device is gone, nothing of the process is left on it.
fn explain_open(pid: u32, error: &io::Error) -> ActError {
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO) if node::number().is_none() => {
            ActError::Changed(pid)
        }
        errno => {
            ActError::Amd(pid, PauseError::Refused(pid, errno.unwrap_or(rustix::io::Errno::IO)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ProcessInfo;

    #[test]
    fn without_a_device_there_is_nothing_to_take_back() {
        if node::number().is_some() {
            println!("SKIPPED: this machine has AMD devices");
            return;
        }
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        for undo in [false, true] {
            let result = perform(own, &Act::AmdPause, undo);
            assert!(matches!(result, Err(ActError::Changed(_))), "{result:?}");
        }
        let gone = ProcessKey { pid: u32::MAX, start_ticks: 1 };
        assert!(perform(gone, &Act::AmdPause, true).is_err_and(|error| error.is_ended()));
    }

    #[test]
    fn other_acts_are_others() {
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        let slice = Act::NvidiaSlice { client: 1, group: 2, original_us: 3, set_us: 4 };
        assert!(matches!(perform(own, &slice, false), Err(ActError::Changed(_))));
    }
}
