//! Who may speak through which file.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use gpreempt_device::act::{ActError, DeviceAct};
use gpreempt_device::amd::abi::block::CriuOperation;
use gpreempt_device::amd::abi::version::Version;
use gpreempt_device::amd::act::AmdAct;
use gpreempt_device::amd::door::{Door, KernelDoor};
use gpreempt_device::amd::node;
use gpreempt_device::amd::pause::{PauseError, pause, unpause};
use gpreempt_device::amd::site::SiteName;
use gpreempt_device::process::ProcessInfo;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::actor::{Actor, Whose};
use crate::args::Listens;
use crate::machine::Machine;
use crate::raw;
use crate::tracing::untouched;
use crate::verdict::{Verdict, failed, same, says, skipped};

/// Numbers that were once proposed for calls of our own, and which no kernel has.
const UNKNOWN: [u8; 2] = [0x87, 0x88];

/// The version is one we know, and offers what is expected.
pub(super) fn version(machine: &Machine) -> Verdict {
    same("major version", machine.version.major, 1)?;
    match machine.expected {
        Some(Listens::Nobody) => same("sessions", machine.version >= Version::DEBUG, false),
        Some(Listens::Owner | Listens::Tracer) => {
            same("sessions", machine.version >= Version::DEBUG, true)
        }
        None => Ok(()),
    }
}

/// A file taken from another process answers nothing.
pub(super) fn borrowed(_: &Machine) -> Verdict {
    let target = Actor::target()?;
    let file = KernelDoor::new(file_of(target.pid())?);
    same("version through a borrowed file", file.version().err(), Some(Errno::BADF))
}

/// A file that a process has from its parent neither.
pub(super) fn inherited(_: &Machine) -> Verdict {
    let file = fs::File::options().read(true).write(true).open(node::PATH)?;
    let heir = Actor::with_input("heir", file.into())?;
    same("version", heir.answer()?, format!("errno {}", Errno::BADF.raw_os_error()))
}

/// Numbers that KFD does not know are refused in the way that tells so.
pub(super) fn unknown_calls(_: &Machine) -> Verdict {
    let file = fs::File::options().read(true).write(true).open(node::PATH)?;
    for number in UNKNOWN {
        same(&format!("{number:#x}"), raw::call(file.as_fd(), number), Err(Errno::NOTTY))?;
    }
    Ok(())
}

/// Pausing is for the tracer, and harmless where there is nothing to pause.
pub(super) fn pause_needs_a_tracer(machine: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    let (door, pid) = (&*machine.door, target.pid());
    let refused = door.criu(pid, CriuOperation::ProcessInfo);
    same("without tracing", refused, Err(Errno::BADF))?;
    match pause(door, pid) {
        Err(PauseError::NoDevice(_)) if !machine.has_gpu => {}
        Ok(()) if machine.has_gpu => {}
        result => return failed(format!("pause: {result:?}")),
    }
    unpause(door, pid).or_else(|error| if error.is_gone() { Ok(()) } else { Err(error) })?;
    untouched(pid)?;
    target.does("version")
}

/// A user without rights is told which one it takes.
pub(super) fn pause_needs_rights(machine: &Machine) -> Verdict {
    is_open_to_users()?;
    let _setting = super::permission::Yama::set(machine, 0)?;
    let target = Actor::start(&["target"], Whose::User)?;
    let mut user = Actor::start(&["debugger"], Whose::User)?;
    let answer = user.ask(&format!("pause {}", target.pid()))?;
    says(&answer, &["cannot be paused", "CAP_CHECKPOINT_RESTORE", "as root"])?;
    untouched(target.pid())
}

/// The same through what the journal knows: a process without a device needs nothing.
pub(super) fn pause_by_the_journal(machine: &Machine) -> Verdict {
    if machine.has_gpu {
        return skipped("this machine has a GPU, and nothing of the target's on it");
    }
    let target = Actor::target()?;
    let process = ProcessInfo::read(target.pid())?.key;
    let pause = AmdAct::Pause { site: SiteName::Kernel };
    for undo in [false, true] {
        match pause.perform(process, undo) {
            Err(ActError::Changed(_)) => {}
            // Who is not paused is as it should be.
            Ok(()) if undo => {}
            result => return failed(format!("undo {undo}: {result:?}")),
        }
    }
    untouched(target.pid())
}

/// Queues on a device that is not there are refused, and change nothing.
pub(super) fn no_queue_without_a_device(_: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    for call in ["create", "update", "destroy"] {
        let answer = target.ask(call)?;
        if !answer.starts_with("errno ") {
            return failed(format!("{call}: {answer}"));
        }
    }
    target.does("version")
}

/// Whether users without rights can be tried out.
pub(super) fn is_open_to_users() -> Verdict {
    use std::os::unix::fs::PermissionsExt;
    if fs::metadata(node::PATH)?.permissions().mode() & 0o006 == 0o006 {
        return Ok(());
    }
    skipped("/dev/kfd is not open to all users here")
}

/// A second descriptor of the file that a process has open.
fn file_of(pid: u32) -> Verdict<OwnedFd> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or("a strange number")?;
    let process = pidfd_open(raw, PidfdFlags::empty())?;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        if fs::read_link(entry.path())? == Path::new(node::PATH) {
            let number: i32 = entry.file_name().to_string_lossy().parse()?;
            return Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?);
        }
    }
    failed("the target has no file of KFD's")
}
