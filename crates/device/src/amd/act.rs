//! What can be done to a process on AMD devices and outlives us.
//!
//! Suspending queues is not here: when a debugger dies, the kernel resumes what it suspended.

use std::io;

use super::node;
use super::pause::{PauseError, pause, unpause};
use super::site::SiteName;
use crate::act::ActError;
use crate::journal::Act;
use crate::process::ProcessKey;

/// Carries an act on AMD devices out, or with `undo` takes it back.
///
/// # Errors
/// If the process is gone or the kernel refuses.
pub(crate) fn perform(process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
    let pid = process.pid;
    let name = match act {
        Act::AmdPause { site } => site,
        // The kernel does it when whoever suspended them ends, and nobody else could.
        Act::AmdSuspend => return Ok(()),
        // Somebody else's to do.
        Act::NvidiaSlice { .. }
        | Act::NvidiaStop { .. }
        | Act::NvidiaMode { .. }
        | Act::NvidiaInterleave { .. }
        | Act::NvidiaHold(_)
        | Act::EmulatedStop { .. }
        | Act::EmulatedPark { .. }
        | Act::EmulatedSlice { .. } => return Err(ActError::Changed(pid)),
    };
    process.check()?;
    let site = name.open().map_err(|error| explain_open(pid, name, &error))?;
    let door = &*site.door;
    let done = if undo { unpause(door, pid) } else { pause(door, pid) };
    done.map_err(|error| match error {
        error if error.is_gone() => ActError::Changed(pid),
        error => ActError::Amd(pid, error),
    })
}

/// Where the device is gone, nothing of the process is left on it.
fn explain_open(pid: u32, name: &SiteName, error: &io::Error) -> ActError {
    let is_gone = matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
    );
    if *name != SiteName::Kernel && is_gone {
        return ActError::Changed(pid);
    }
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
    use crate::amd::fake::FakeKfd;
    use crate::amd::site;
    use crate::process::ProcessInfo;

    #[test]
    fn without_a_device_there_is_nothing_to_take_back() {
        if node::number().is_some() {
            println!("SKIPPED: this machine has AMD devices");
            return;
        }
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        for undo in [false, true] {
            let result = perform(own, &Act::AmdPause { site: SiteName::Kernel }, undo);
            assert!(matches!(result, Err(ActError::Changed(_))), "{result:?}");
        }
        let gone = ProcessKey { pid: u32::MAX, start_ticks: 1 };
        let pause = Act::AmdPause { site: SiteName::Kernel };
        assert!(perform(gone, &pause, true).is_err_and(|error| error.is_ended()));
    }

    #[test]
    fn an_emulated_kfd_is_found_by_its_name_and_one_that_is_gone_needs_nothing() {
        let folder = std::path::Path::new("/nonexistent/act");
        let act = Act::AmdPause { site: SiteName::emulated(folder) };
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        assert!(perform(own, &act, true).is_err_and(|error| error.is_gone()));
        let kfd = FakeKfd::new();
        // Our own process cannot trace itself, so a child is the one that is paused.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = ProcessInfo::read(child.id()).unwrap().key;
        let client = kfd.client(key.pid);
        let queue = client.open_queue(1).unwrap();
        site::fakes::put(folder, &kfd, true);
        perform(key, &act, false).unwrap();
        assert_eq!(kfd.is_running(key.pid, queue), Some(false));
        perform(key, &act, true).unwrap();
        assert_eq!(kfd.is_running(key.pid, queue), Some(true));
        site::fakes::put(folder, &kfd, false);
        let refused = perform(key, &act, false).unwrap_err().to_string();
        assert!(refused.contains("CAP_CHECKPOINT_RESTORE"), "{refused}");
        assert!(perform(key, &Act::AmdSuspend, true).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn other_acts_are_others() {
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        let slice = Act::NvidiaSlice { client: 1, group: 2, original_us: 3, set_us: 4 };
        assert!(matches!(perform(own, &slice, false), Err(ActError::Changed(_))));
    }
}
