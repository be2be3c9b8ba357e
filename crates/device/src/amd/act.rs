//! What can be done to a process on AMD devices and outlives us.
//!
//! A session ends with its owner, and the kernel resumes what was suspended in it. It does not end
//! with an owner that stands still; then whoever undoes the owner's acts ends it.

use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::abi::own::PRIORITY_DEFAULT;
use super::door::{Door, Meant};
use super::node;
use super::pause::{PauseError, pause, unpause};
use super::site::SiteName;
use super::tracer::{TraceError, as_tracer};
use crate::act::{ActError, DeviceAct, Subject};
use crate::process::ProcessKey;

/// One change on AMD devices. Each names the KFD it was made through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum AmdAct {
    /// A process that is paused on all its devices.
    #[serde(rename = "amd_pause")]
    Pause {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
    /// Queues of a process that are suspended in a session of the process that wrote this. The
    /// session ends with its owner, and the kernel resumes them then. An owner that is stopped does
    /// not end, so its keeper ends the session.
    #[serde(rename = "amd_suspend")]
    Suspend {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
    /// A session with a process, in which queues may be suspended or not; likewise.
    #[serde(rename = "amd_session")]
    Session {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
    /// The priority of a process to the scheduler inside of a patched KFD.
    #[serde(rename = "amd_priority")]
    Priority {
        /// Through which KFD.
        #[serde(default)]
        site: SiteName,
    },
}

impl DeviceAct for AmdAct {
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ActError> {
        let pid = process.pid;
        let name = match self {
            // Done by the thread that has the session.
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
        let door = &*site.door;
        let paused = match self {
            Self::Priority { .. } => return forget_priority(door, pid),
            Self::Suspend { .. } => return end_session(door, process, true),
            Self::Session { .. } => return end_session(door, process, false),
            Self::Pause { .. } if undo => unpause(door, process),
            Self::Pause { .. } => pause(door, process),
        };
        paused.map_err(|error| match error {
            error if error.is_gone() => ActError::Changed(pid),
            error => ActError::Amd(pid, error),
        })
    }

    fn is_stop(&self) -> bool {
        matches!(self, Self::Pause { .. } | Self::Suspend { .. })
    }

    fn subject(&self) -> Subject {
        let kind = match self {
            Self::Pause { .. } => 0,
            // Both are ended by ending the session.
            Self::Suspend { .. } | Self::Session { .. } => 1,
            Self::Priority { .. } => 2,
        };
        Subject { kind, names: [0; 3] }
    }
}

/// Ends whatever session a process is in. If somebody traces it, that has to wait where queues may
/// be suspended; where none is, the session is theirs, or its owner will have ended it.
fn end_session(door: &dyn Door, process: ProcessKey, is_suspended: bool) -> Result<(), ActError> {
    let pid = process.pid;
    let refused = |errno| ActError::Amd(pid, PauseError::Refused(pid, errno));
    match as_tracer(door, process, || door.disable(pid)) {
        Ok(Ok(()) | Err(Errno::INVAL | Errno::SRCH | Errno::PERM | Errno::NOTTY)) => Ok(()),
        Err(TraceError::Seize(_)) if !is_suspended => Ok(()),
        // Whether it is still suspended nobody can tell: it is tried again until somebody can.
        Err(TraceError::Seize(_)) => Err(refused(Errno::BUSY)),
        Ok(Err(errno)) => Err(refused(errno)),
        Err(TraceError::Thread(_)) => Err(refused(Errno::AGAIN)),
    }
}

/// A process has the priority again that everybody begins with, to the kernel's scheduler. A KFD
/// without one, and a process that is gone, need nothing.
fn forget_priority(door: &dyn Door, pid: u32) -> Result<(), ActError> {
    match door.set_preempt_priority(pid, Meant::All, PRIORITY_DEFAULT) {
        Ok(_) | Err(Errno::SRCH | Errno::NOENT | Errno::NOTTY) => Ok(()),
        Err(errno) => Err(ActError::Amd(pid, PauseError::Refused(pid, errno))),
    }
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
    match Errno::from_io_error(error) {
        Some(Errno::NOENT | Errno::NXIO) if node::number().is_none() => ActError::Changed(pid),
        errno => ActError::Amd(pid, PauseError::Refused(pid, errno.unwrap_or(Errno::IO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::door::ClientDoor;
    use crate::amd::fake::FakeKfd;
    use crate::amd::session::Session;
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
            let result = AmdAct::Pause { site: SiteName::Kernel }.perform(own, undo);
            assert!(matches!(result, Err(ActError::Changed(_))), "{result:?}");
        }
        let gone = ProcessKey { pid: u32::MAX, start_ticks: 1 };
        let pause = AmdAct::Pause { site: SiteName::Kernel };
        assert!(pause.perform(gone, true).is_err_and(|error| error.is_ended()));
    }

    #[test]
    fn an_emulated_kfd_is_found_by_its_name_and_one_that_is_gone_needs_nothing() {
        let folder = std::path::Path::new("/nonexistent/act");
        let act = AmdAct::Pause { site: SiteName::emulated(folder) };
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        assert!(act.perform(own, true).is_err_and(|error| error.is_gone()));
        let kfd = FakeKfd::new();
        // Our own process cannot trace itself, so a child is the one that is paused.
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let key = ProcessInfo::read(child.id()).unwrap().key;
        let client = kfd.client(key.pid);
        let queue = client.open_queue(1).unwrap();
        site::fakes::put(folder, &kfd, true);
        act.perform(key, false).unwrap();
        assert_eq!(kfd.is_running(key.pid, queue), Some(false));
        act.perform(key, true).unwrap();
        assert_eq!(kfd.is_running(key.pid, queue), Some(true));
        site::fakes::put(folder, &kfd, false);
        let refused = act.perform(key, false).unwrap_err().to_string();
        assert!(refused.contains("CAP_CHECKPOINT_RESTORE"), "{refused}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A process with a queue that a session of ours keeps suspended.
    struct Suspended {
        kfd: FakeKfd,
        child: std::process::Child,
        key: ProcessKey,
        queue: u32,
        _client: crate::amd::fake::FakeClient,
        _session: Session,
    }

    impl Suspended {
        fn new(folder: &std::path::Path) -> Self {
            let kfd = FakeKfd::new();
            let child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            let key = ProcessInfo::read(child.id()).unwrap().key;
            let client = kfd.client(key.pid);
            client.runtime_enable(true).unwrap();
            let queue = client.open_queue(1).unwrap();
            site::fakes::put(folder, &kfd, true);
            let door: std::sync::Arc<dyn Door> = std::sync::Arc::new(kfd.door(1));
            let mut session = Session::attach(door, key.pid).unwrap();
            session.queues().unwrap();
            session.suspend(&[queue], 0).unwrap();
            Self { kfd, child, key, queue, _client: client, _session: session }
        }

        fn end(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }

    #[test]
    fn a_session_whose_owner_stands_still_is_ended_and_nothing_stays_suspended() {
        let folder = std::path::Path::new("/nonexistent/act-session");
        let mut scene = Suspended::new(folder);
        let (kfd, key, queue) = (scene.kfd.clone(), scene.key, scene.queue);
        assert_eq!(kfd.is_running(key.pid, queue), Some(false));
        for act in [
            AmdAct::Session { site: SiteName::emulated(folder) },
            AmdAct::Suspend { site: SiteName::emulated(folder) },
        ] {
            act.perform(key, false).unwrap();
            act.perform(key, true).unwrap();
            assert_eq!(kfd.is_running(key.pid, queue), Some(true));
            assert!(!kfd.is_debugged(key.pid));
        }
        scene.end();
    }

    #[test]
    fn a_tracer_puts_off_the_end_of_a_session_in_which_queues_are_suspended() {
        let folder = std::path::Path::new("/nonexistent/act-tracer");
        let mut scene = Suspended::new(folder);
        let (kfd, key, queue) = (scene.kfd.clone(), scene.key, scene.queue);
        kfd.trace_by_somebody(key.pid, 4242);
        let suspended = AmdAct::Suspend { site: SiteName::emulated(folder) };
        let session_only = AmdAct::Session { site: SiteName::emulated(folder) };
        assert!(suspended.perform(key, true).is_err_and(|error| !error.is_gone()));
        assert!(session_only.perform(key, true).is_ok());
        kfd.end_tracing(key.pid);
        let undone = suspended.perform(key, true);
        let is_running = kfd.is_running(key.pid, queue);
        scene.end();
        assert!(undone.is_ok() && is_running == Some(true), "{undone:?}");
    }
}
