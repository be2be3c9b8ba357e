//! Reversible changes to a process on AMD devices, as the journal records them.
//!
//! A debug session ends with its owner, and the kernel then resumes the suspended queues. An owner
//! that is stopped (`SIGSTOP`) does not end: then the keeper reverts its changes, which ends the
//! session.

use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::abi::patched::PRIORITY_DEFAULT;
use super::kfd_instance::KfdLocation;
use super::pause::{PauseError, pause, unpause};
use super::tracer::{TraceError, as_tracer};
use super::{KfdDebugCalls, QueueSelector, kfd_file};
use crate::change::{ChangeError, DeviceChange, Subject};
use crate::process::ProcessKey;

/// A change on AMD devices, with the KFD through which it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum AmdChange {
    /// All devices of the process are paused.
    #[serde(rename = "amd_pause")]
    Pause {
        #[serde(default)]
        site: KfdLocation,
    },
    /// Queues are suspended in a debug session of the journal's owner.
    #[serde(rename = "amd_suspend")]
    Suspend {
        #[serde(default)]
        site: KfdLocation,
    },
    /// The journal's owner has a debug session with the process, in which queues may be suspended.
    #[serde(rename = "amd_session")]
    Session {
        #[serde(default)]
        site: KfdLocation,
    },
    /// The process has a priority in the in-kernel scheduler of a patched KFD.
    #[serde(rename = "amd_priority")]
    Priority {
        #[serde(default)]
        site: KfdLocation,
    },
}

impl DeviceChange for AmdChange {
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ChangeError> {
        let pid = process.pid;
        let name = match self {
            // The thread that owns the session makes these changes.
            Self::Suspend { .. } | Self::Session { .. } | Self::Priority { .. } if !undo => {
                return Ok(());
            }
            Self::Pause { site }
            | Self::Suspend { site }
            | Self::Session { site }
            | Self::Priority { site } => site,
        };
        process.check()?;
        let site = name.open().map_err(|error| explain_open(pid, name, &error))?;
        let kfd = &*site.kfd;
        let paused = match self {
            Self::Priority { .. } => return forget_priority(kfd, pid),
            Self::Suspend { .. } => return end_session(kfd, process, true),
            Self::Session { .. } => return end_session(kfd, process, false),
            Self::Pause { .. } if undo => unpause(kfd, process),
            Self::Pause { .. } => pause(kfd, process),
        };
        paused.map_err(|error| match error {
            error if error.is_gone() => ChangeError::ObjectGone(pid),
            error => ChangeError::Amd(pid, error),
        })
    }

    fn is_stop(&self) -> bool {
        matches!(self, Self::Pause { .. } | Self::Suspend { .. })
    }

    fn subject(&self) -> Subject {
        let kind = match self {
            Self::Pause { .. } => 0,
            // Both are reverted by ending the session.
            Self::Suspend { .. } | Self::Session { .. } => 1,
            Self::Priority { .. } => 2,
        };
        Subject { kind, names: [0; 3] }
    }
}

/// Ends the debug session of a process. If another program traces the process, an end with
/// suspended queues is tried again later; without suspended queues nothing has to be reverted.
fn end_session(
    kfd: &dyn KfdDebugCalls,
    process: ProcessKey,
    is_suspended: bool,
) -> Result<(), ChangeError> {
    let pid = process.pid;
    let refused = |errno| ChangeError::Amd(pid, PauseError::Refused(pid, errno));
    match as_tracer(kfd, process, || kfd.disable(pid)) {
        Ok(Ok(()) | Err(Errno::INVAL | Errno::SRCH | Errno::PERM | Errno::NOTTY)) => Ok(()),
        Err(TraceError::Seize(_)) if !is_suspended => Ok(()),
        // Whether queues are still suspended is unknown, so the caller tries again.
        Err(TraceError::Seize(_)) => Err(refused(Errno::BUSY)),
        Ok(Err(errno)) => Err(refused(errno)),
        Err(TraceError::Thread(_)) => Err(refused(Errno::AGAIN)),
    }
}

/// Restores the default priority in the in-kernel scheduler. A KFD without one, and a process that
/// has ended, need nothing.
fn forget_priority(kfd: &dyn KfdDebugCalls, pid: u32) -> Result<(), ChangeError> {
    match kfd.set_preempt_priority(pid, QueueSelector::All, PRIORITY_DEFAULT) {
        Ok(_) | Err(Errno::SRCH | Errno::NOENT | Errno::NOTTY) => Ok(()),
        Err(errno) => Err(ChangeError::Amd(pid, PauseError::Refused(pid, errno))),
    }
}

/// If the device is gone, no change is left on it.
fn explain_open(pid: u32, name: &KfdLocation, error: &io::Error) -> ChangeError {
    let is_gone = matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
    );
    if *name != KfdLocation::Kernel && is_gone {
        return ChangeError::ObjectGone(pid);
    }
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NXIO) if kfd_file::number().is_none() => {
            ChangeError::ObjectGone(pid)
        }
        errno => ChangeError::Amd(pid, PauseError::Refused(pid, errno.unwrap_or(Errno::IO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::session::DebugSession;
    use crate::amd::{FakeKfd, KfdClientCalls, kfd_instance};
    use crate::process::{ProcessInfo, SleepingChild};

    #[test]
    fn without_a_device_there_is_nothing_to_revert() {
        if kfd_file::number().is_some() {
            println!("SKIPPED: this machine has AMD devices");
            return;
        }
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        for undo in [false, true] {
            let result = AmdChange::Pause { site: KfdLocation::Kernel }.perform(own, undo);
            assert!(matches!(result, Err(ChangeError::ObjectGone(_))), "{result:?}");
        }
        let gone = ProcessKey { pid: u32::MAX, start_ticks: 1 };
        let pause = AmdChange::Pause { site: KfdLocation::Kernel };
        assert!(pause.perform(gone, true).is_err_and(|error| error.is_ended()));
    }

    #[test]
    fn an_emulated_kfd_is_found_by_its_folder_and_a_missing_one_needs_nothing() {
        let folder = std::path::Path::new("/nonexistent/act");
        let act = AmdChange::Pause { site: KfdLocation::emulated(folder) };
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        assert!(act.perform(own, true).is_err_and(|error| error.is_gone()));
        let kfd = FakeKfd::new();
        // A process cannot trace itself, so a child is paused.
        let child = SleepingChild::start();
        let key = child.key;
        let client = kfd.client(key.pid);
        let queue = client.open_queue(1).unwrap();
        kfd_instance::fakes::put(folder, &kfd, true);
        act.perform(key, false).unwrap();
        assert_eq!(kfd.is_running(key.pid, queue), Some(false));
        act.perform(key, true).unwrap();
        assert_eq!(kfd.is_running(key.pid, queue), Some(true));
        kfd_instance::fakes::put(folder, &kfd, false);
        let refused = act.perform(key, false).unwrap_err().to_string();
        assert!(refused.contains("CAP_CHECKPOINT_RESTORE"), "{refused}");
    }

    /// A process with a queue that a debug session keeps suspended.
    struct Suspended {
        kfd: FakeKfd,
        child: SleepingChild,
        queue: u32,
        _client: crate::amd::FakeClient,
        _session: DebugSession,
    }

    impl Suspended {
        fn new(folder: &std::path::Path) -> Self {
            let kfd = FakeKfd::new();
            let child = SleepingChild::start();
            let pid = child.key.pid;
            let client = kfd.client(pid);
            client.runtime_enable(true).unwrap();
            let queue = client.open_queue(1).unwrap();
            kfd_instance::fakes::put(folder, &kfd, true);
            let debugger: std::sync::Arc<dyn KfdDebugCalls> = std::sync::Arc::new(kfd.debugger(1));
            let mut session = DebugSession::attach(debugger, pid).unwrap();
            session.queues().unwrap();
            session.suspend(&[queue], 0).unwrap();
            Self { kfd, child, queue, _client: client, _session: session }
        }
    }

    #[test]
    fn undo_ends_the_session_of_a_stopped_owner() {
        let folder = std::path::Path::new("/nonexistent/act-session");
        let scene = Suspended::new(folder);
        let (kfd, key, queue) = (scene.kfd.clone(), scene.child.key, scene.queue);
        assert_eq!(kfd.is_running(key.pid, queue), Some(false));
        for act in [
            AmdChange::Session { site: KfdLocation::emulated(folder) },
            AmdChange::Suspend { site: KfdLocation::emulated(folder) },
        ] {
            act.perform(key, false).unwrap();
            act.perform(key, true).unwrap();
            assert_eq!(kfd.is_running(key.pid, queue), Some(true));
            assert!(!kfd.is_debugged(key.pid));
        }
    }

    #[test]
    fn a_tracer_delays_the_end_of_a_session_with_suspended_queues() {
        let folder = std::path::Path::new("/nonexistent/act-tracer");
        let scene = Suspended::new(folder);
        let (kfd, key, queue) = (scene.kfd.clone(), scene.child.key, scene.queue);
        kfd.trace_externally(key.pid, 4242);
        let suspended = AmdChange::Suspend { site: KfdLocation::emulated(folder) };
        let session_only = AmdChange::Session { site: KfdLocation::emulated(folder) };
        assert!(suspended.perform(key, true).is_err_and(|error| !error.is_gone()));
        assert!(session_only.perform(key, true).is_ok());
        kfd.end_tracing(key.pid);
        let undone = suspended.perform(key, true);
        let is_running = kfd.is_running(key.pid, queue);
        assert!(undone.is_ok() && is_running == Some(true), "{undone:?}");
    }
}
