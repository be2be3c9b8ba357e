//! `/dev/kfd`, and which processes hold it open.
//!
//! It is recognised by its number, not its name, so that processes in containers with another view
//! of `/dev` are found as well. The number is not fixed: our own `/dev/kfd` says which it is.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::process::device_number;

/// Where it is.
pub const PATH: &str = "/dev/kfd";

/// The number of our own `/dev/kfd`.
pub(crate) fn number() -> Option<u64> {
    device_number(Path::new(PATH))
}

/// The files of a process that are that device.
///
/// # Errors
/// If its files are not shown to us.
pub(crate) fn held_by(pid: u32, number: u64) -> io::Result<Vec<i32>> {
    let mut held = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(entry) = entry else { continue };
        // A file that was closed meanwhile is simply not there.
        if device_number(&entry.path()) == Some(number)
            && let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok())
        {
            held.push(fd);
        }
    }
    held.sort_unstable();
    Ok(held)
}

/// Second descriptors of the files of a process that are KFD's. Close them soon: while they are
/// open, what the process has on its devices stays even if it ends.
pub(super) fn borrowed_from(pid: u32) -> Result<Vec<OwnedFd>, Errno> {
    let Some(number) = number() else { return Ok(Vec::new()) };
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let process = pidfd_open(raw, PidfdFlags::empty())?;
    let held =
        held_by(pid, number).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let mut files = Vec::new();
    for fd in held {
        match pidfd_getfd(process.as_fd(), fd, PidfdGetfdFlags::empty()) {
            Ok(file) => files.push(file),
            // Closed meanwhile.
            Err(Errno::BADF) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_recognised_by_their_number() {
        let null = fs::File::open("/dev/null").unwrap();
        let number = device_number(Path::new("/dev/null")).unwrap();
        let held = held_by(std::process::id(), number).unwrap();
        assert!(held.contains(&std::os::fd::AsRawFd::as_raw_fd(&null)));
        assert_eq!(held_by(std::process::id(), u64::MAX).unwrap(), Vec::<i32>::new());
        assert!(held_by(u32::MAX, number).is_err());
    }
}
