//! Which descriptor of KFD can be used by which process.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use gpreempt_device::amd::abi::block::CriuOperation;
use gpreempt_device::amd::abi::version::Version;
use gpreempt_device::amd::change::AmdChange;
use gpreempt_device::amd::kfd_instance::KfdLocation;
use gpreempt_device::amd::pause::{PauseError, pause, unpause};
use gpreempt_device::amd::{KernelKfd, KfdDebugCalls, kfd_file};
use gpreempt_device::change::{ChangeError, DeviceChange};
use gpreempt_device::process::ProcessInfo;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::child::{ChildProcess, ChildUser};
use crate::outcome::{CheckResult, failed, same, says, skipped, untouched};
use crate::{Machine, SessionCaller, raw};

/// Numbers that were once proposed for the patched calls, and that no kernel has.
const UNKNOWN: [u8; 2] = [0x87, 0x88];

/// The version is known and supports what is expected.
pub(super) fn version(machine: &Machine) -> CheckResult {
    same("major version", machine.version.major, 1)?;
    match machine.expected {
        Some(SessionCaller::NoSessions) => {
            same("sessions", machine.version >= Version::DEBUG, false)
        }
        Some(SessionCaller::Owner | SessionCaller::Tracer) => {
            same("sessions", machine.version >= Version::DEBUG, true)
        }
        None => Ok(()),
    }
}

/// A descriptor taken from another process is refused.
pub(super) fn borrowed(_: &Machine) -> CheckResult {
    let target = ChildProcess::target()?;
    let file = KernelKfd::new(file_of(target.pid())?);
    same("version through a borrowed file", file.version().err(), Some(Errno::BADF))
}

/// An inherited descriptor is refused.
pub(super) fn inherited(_: &Machine) -> CheckResult {
    let file = fs::File::options().read(true).write(true).open(kfd_file::PATH)?;
    let heir = ChildProcess::with_input("heir", file.into())?;
    same("version", heir.answer()?, format!("errno {}", Errno::BADF.raw_os_error()))
}

/// Unknown ioctl numbers are refused with `ENOTTY`.
pub(super) fn unknown_calls(_: &Machine) -> CheckResult {
    let file = fs::File::options().read(true).write(true).open(kfd_file::PATH)?;
    for number in UNKNOWN {
        same(&format!("{number:#x}"), raw::call(file.as_fd(), number), Err(Errno::NOTTY))?;
    }
    Ok(())
}

/// Only the tracer may pause a process, and pausing a process without a device is harmless.
pub(super) fn pause_needs_a_tracer(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    let (kfd, pid) = (&*machine.kfd, target.pid());
    let refused = kfd.criu(pid, CriuOperation::ProcessInfo);
    same("without tracing", refused, Err(Errno::BADF))?;
    match pause(kfd, pid) {
        Err(PauseError::NoDevice(_)) if !machine.has_gpu => {}
        Ok(()) if machine.has_gpu => {}
        result => return failed(format!("pause: {result:?}")),
    }
    unpause(kfd, pid).or_else(|error| if error.is_gone() { Ok(()) } else { Err(error) })?;
    untouched(pid)?;
    target.does("version")
}

/// An unprivileged user gets a message that names the missing capability.
pub(super) fn pause_needs_rights(machine: &Machine) -> CheckResult {
    is_open_to_users()?;
    let _setting = super::permission::Yama::set(machine, 0)?;
    let target = ChildProcess::start(&["target"], ChildUser::User)?;
    let mut user = ChildProcess::start(&["debugger"], ChildUser::User)?;
    let answer = user.ask(&format!("pause {}", target.pid()))?;
    says(&answer, &["cannot be paused", "CAP_CHECKPOINT_RESTORE", "as root"])?;
    untouched(target.pid())
}

/// A journal's pause of a process without a device succeeds.
pub(super) fn pause_by_the_journal(machine: &Machine) -> CheckResult {
    if machine.has_gpu {
        return skipped("this machine has a GPU, and nothing of the target's on it");
    }
    let target = ChildProcess::target()?;
    let process = ProcessInfo::read(target.pid())?.key;
    let pause = AmdChange::Pause { site: KfdLocation::Kernel };
    for undo in [false, true] {
        match pause.perform(process, undo) {
            Err(ChangeError::ObjectGone(_)) => {}
            // A process that is not paused needs nothing.
            Ok(()) if undo => {}
            result => return failed(format!("undo {undo}: {result:?}")),
        }
    }
    untouched(target.pid())
}

/// Queues on a device that does not exist are refused.
pub(super) fn no_queue_without_a_device(_: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    for call in ["create", "update", "destroy"] {
        let answer = target.ask(call)?;
        if !answer.starts_with("errno ") {
            return failed(format!("{call}: {answer}"));
        }
    }
    target.does("version")
}

/// Whether checks as an unprivileged user are possible.
pub(super) fn is_open_to_users() -> CheckResult {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(kfd_file::PATH)?.permissions().mode() & 0o006 == 0o006 {
        return Ok(());
    }
    skipped("/dev/kfd is not open to all users here")
}

/// A duplicate of a process's KFD descriptor.
fn file_of(pid: u32) -> CheckResult<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("a strange number")?;
    let process = pidfd_open(raw, PidfdFlags::empty())?;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        if fs::read_link(entry.path())? == Path::new(kfd_file::PATH) {
            let number: i32 = entry.file_name().to_string_lossy().parse()?;
            return Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?);
        }
    }
    failed("the target has no file of KFD's")
}
