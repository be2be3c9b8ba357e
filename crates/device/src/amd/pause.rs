//! Pauses and unpauses a whole process (`AMDKFD_IOC_CRIU_OP`), and finds processes that are paused.
//!
//! For kernels and devices without a debugger's interface. It needs root, and the pause outlives
//! this program, so [`crate::journal`] records it first. The kernel counts pauses but accepts one
//! end: two pauses and one end would leave a process paused for ever. So [`pause`] ends an earlier
//! pause first.

use std::collections::BTreeMap;
use std::fs;

use rustix::io::Errno;

use super::KfdDebugCalls;
use super::abi::block::CriuOperation;
use super::change::AmdChange;
use super::kfd_instance::KfdLocation;
use super::mqd::{Dump, MqdQueue};
use super::queue::users;
use super::session::AttachError;
use super::tracer::{TraceError, TraceTarget, as_tracer};
use crate::journal::GpuChange;
use crate::process::{ProcessInfo, ProcessKey};

#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    #[error(transparent)]
    Unreachable(#[from] AttachError),
    #[error("process {0} does not use an AMD GPU; there is nothing to pause")]
    NoDevice(u32),
    #[error(
        "process {0} cannot be paused: that needs CAP_CHECKPOINT_RESTORE on the host; run this as \
         root, outside of containers"
    )]
    Denied(u32),
    #[error("the kernel cannot pause processes (KFD 1.7, Linux 5.18); use a newer one")]
    NoInterface,
    #[error("process {0}: the kernel refused: {1}")]
    Refused(u32, Errno),
}

impl PauseError {
    /// Whether the process has ended or has nothing to pause.
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::NoDevice(_) | Self::Unreachable(AttachError::Gone(_)))
    }
}

/// Takes every queue of a process off its devices, including queues that it creates later.
pub fn pause(kfd: &dyn KfdDebugCalls, target: impl Into<TraceTarget>) -> Result<(), PauseError> {
    let target = target.into();
    let pid = target.pid();
    perform(kfd, target, || {
        match kfd.criu(pid, CriuOperation::Unpause) {
            // It was not paused, as expected.
            Ok(()) | Err(Errno::INVAL) => kfd.criu(pid, CriuOperation::ProcessInfo),
            Err(errno) => Err(errno),
        }
    })
}

/// Ends the pause of a process, if there is one.
pub fn unpause(kfd: &dyn KfdDebugCalls, target: impl Into<TraceTarget>) -> Result<(), PauseError> {
    let target = target.into();
    let pid = target.pid();
    perform(kfd, target, || match kfd.criu(pid, CriuOperation::Unpause) {
        Err(Errno::INVAL) => Ok(()),
        result => result,
    })
}

fn perform(
    kfd: &dyn KfdDebugCalls,
    target: TraceTarget,
    calls: impl FnOnce() -> Result<(), Errno> + Send,
) -> Result<(), PauseError> {
    let pid = target.pid();
    match as_tracer(kfd, target, calls) {
        Ok(result) => result.map_err(|errno| match errno {
            Errno::NODEV => PauseError::NoDevice(pid),
            Errno::SRCH => AttachError::Gone(pid).into(),
            Errno::PERM | Errno::ACCESS => PauseError::Denied(pid),
            Errno::NOTTY => PauseError::NoInterface,
            errno => PauseError::Refused(pid, errno),
        }),
        Err(TraceError::Seize(errno)) => Err(AttachError::of_seize(kfd, pid, errno).into()),
        Err(TraceError::Thread(error)) => Err(AttachError::Thread(pid, error).into()),
    }
}

/// Processes none of whose compute queues is mapped to a device, each as the change that would have
/// paused it. None if debugfs is not mounted or this process may not read it.
pub(crate) fn stopped(name: &KfdLocation) -> Option<Vec<(ProcessKey, GpuChange)>> {
    let text = fs::read(name.paths().debugfs.join("mqds")).ok()?;
    // A process may appear twice in the text.
    let mut is_on: BTreeMap<u32, bool> = BTreeMap::new();
    for process in Dump::parse(&text).processes {
        for hardware in process.queues.iter().filter_map(MqdQueue::hardware) {
            *is_on.entry(process.pid).or_default() |= hardware.is_active;
        }
    }
    let off = is_on.into_iter().filter(|(_, is_on)| !is_on);
    let named = off.filter_map(|(pid, _)| {
        let key = ProcessInfo::read(pid).ok()?.key;
        Some((key, GpuChange::Amd(AmdChange::Pause { site: name.clone() })))
    });
    Some(named.collect())
}

pub(crate) fn uses(name: &KfdLocation, pid: u32) -> bool {
    users(&name.paths().sysfs).is_ok_and(|users| users.contains(&pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::abi::version::Version;
    use crate::amd::{FakeKfd, KfdProfile};

    #[test]
    fn a_pause_is_never_counted_twice() {
        let kfd = FakeKfd::new();
        let client = kfd.client(7);
        let queue = client.open_queue(1).unwrap();
        let debugger = kfd.debugger(1);
        unpause(&debugger, 7).unwrap();
        pause(&debugger, 7).unwrap();
        pause(&debugger, 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(false));
        let later = client.open_queue(1).unwrap();
        assert_eq!(kfd.is_running(7, later), Some(false), "later ones are paused too");
        unpause(&debugger, 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(true));
        unpause(&debugger, 7).unwrap();
        assert_eq!(kfd.is_running(7, later), Some(true));
    }

    #[test]
    fn a_pause_outlives_its_debugger_and_the_next_can_end_it() {
        let kfd = FakeKfd::new();
        let client = kfd.client(7);
        let queue = client.open_queue(1).unwrap();
        pause(&kfd.debugger(1), 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(false));
        unpause(&kfd.debugger(2), 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(true));
    }

    #[test]
    fn every_obstacle_to_a_pause_has_its_own_error() {
        let kfd = FakeKfd::new();
        let _client = kfd.client(7);
        let debugger = kfd.debugger(1);
        assert!(matches!(pause(&debugger, 7), Err(PauseError::NoDevice(7))));
        assert!(pause(&debugger, 9).is_err_and(|error| error.is_gone()));
        kfd.forbid_tracing(7);
        assert!(pause(&debugger, 7).is_err_and(|error| !error.is_gone()));
        let weak = kfd.debugger(2).without_capability();
        let client = kfd.client(8);
        client.open_queue(1).unwrap();
        assert!(matches!(pause(&weak, 8), Err(PauseError::Denied(8))));
        let version = Version { major: 1, minor: 6 };
        let old = FakeKfd::with(KfdProfile { version, ..KfdProfile::default() });
        let _client = old.client(7);
        assert!(matches!(pause(&old.debugger(1), 7), Err(PauseError::NoInterface)));
    }
}
