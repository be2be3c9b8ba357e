//! A process as a whole, taken off its devices and let on again.
//!
//! For kernels and devices without a debugger's interface. It needs root, and it stays when we die:
//! so it is written down first ([`crate::journal`]), like everything that does. The kernel counts
//! pauses but not their ends. Two pauses and one end would leave a process paused for ever, so
//! every pause here ends an earlier one first.

use rustix::io::Errno;

use super::abi::block::CriuOperation;
use super::door::Door;
use super::session::AttachError;
use super::tracer::{Subject, TraceError, as_tracer};

/// Why a process was not paused, or not let on.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// It cannot be reached.
    #[error(transparent)]
    Unreachable(#[from] AttachError),
    /// It uses no device.
    #[error("process {0} does not use an AMD GPU; there is nothing to pause")]
    NoDevice(u32),
    /// We may not.
    #[error(
        "process {0} cannot be paused: that needs CAP_CHECKPOINT_RESTORE on the host; run this as \
         root, outside of containers"
    )]
    Denied(u32),
    /// The kernel is too old.
    #[error("the kernel cannot pause processes (KFD 1.7, Linux 5.18); use a newer one")]
    NoInterface,
    /// Something else.
    #[error("process {0}: the kernel refused: {1}")]
    Refused(u32, Errno),
}

impl PauseError {
    /// Whether the process is gone, or has nothing that could be paused.
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::NoDevice(_) | Self::Unreachable(AttachError::Gone(_)))
    }
}

/// Takes every queue of a process off its devices, those it makes later included.
///
/// # Errors
/// If it cannot be reached or the kernel refuses. It runs on then.
pub fn pause(door: &dyn Door, subject: impl Into<Subject>) -> Result<(), PauseError> {
    let subject = subject.into();
    let pid = subject.pid();
    perform(door, subject, || {
        match door.criu(pid, CriuOperation::Unpause) {
            // It was not paused, as it should be.
            Ok(()) | Err(Errno::INVAL) => door.criu(pid, CriuOperation::ProcessInfo),
            Err(errno) => Err(errno),
        }
    })
}

/// Lets a process on again. One that was not paused needs nothing.
///
/// # Errors
/// If it cannot be reached or the kernel refuses.
pub fn unpause(door: &dyn Door, subject: impl Into<Subject>) -> Result<(), PauseError> {
    let subject = subject.into();
    let pid = subject.pid();
    perform(door, subject, || match door.criu(pid, CriuOperation::Unpause) {
        Err(Errno::INVAL) => Ok(()),
        result => result,
    })
}

fn perform(
    door: &dyn Door,
    subject: Subject,
    calls: impl FnOnce() -> Result<(), Errno> + Send,
) -> Result<(), PauseError> {
    let pid = subject.pid();
    match as_tracer(door, subject, calls) {
        Ok(result) => result.map_err(|errno| match errno {
            Errno::NODEV => PauseError::NoDevice(pid),
            Errno::SRCH => AttachError::Gone(pid).into(),
            Errno::PERM | Errno::ACCESS => PauseError::Denied(pid),
            Errno::NOTTY => PauseError::NoInterface,
            errno => PauseError::Refused(pid, errno),
        }),
        Err(TraceError::Seize(errno)) => Err(AttachError::of_seize(door, pid, errno).into()),
        Err(TraceError::Thread(error)) => Err(AttachError::Thread(pid, error).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::abi::version::Version;
    use crate::amd::fake::{FakeKfd, Rules};

    #[test]
    fn a_pause_is_never_counted_twice() {
        let kfd = FakeKfd::new();
        let client = kfd.client(7);
        let queue = client.open_queue(1).unwrap();
        let door = kfd.door(1);
        unpause(&door, 7).unwrap();
        pause(&door, 7).unwrap();
        pause(&door, 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(false));
        let later = client.open_queue(1).unwrap();
        assert_eq!(kfd.is_running(7, later), Some(false), "later ones are paused too");
        unpause(&door, 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(true));
        unpause(&door, 7).unwrap();
        assert_eq!(kfd.is_running(7, later), Some(true));
    }

    #[test]
    fn a_pause_outlives_us_and_can_be_ended_by_the_next() {
        let kfd = FakeKfd::new();
        let client = kfd.client(7);
        let queue = client.open_queue(1).unwrap();
        pause(&kfd.door(1), 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(false));
        unpause(&kfd.door(2), 7).unwrap();
        assert_eq!(kfd.is_running(7, queue), Some(true));
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        let kfd = FakeKfd::new();
        let _client = kfd.client(7);
        let door = kfd.door(1);
        assert!(matches!(pause(&door, 7), Err(PauseError::NoDevice(7))));
        assert!(pause(&door, 9).is_err_and(|error| error.is_gone()));
        kfd.forbid_tracing(7);
        assert!(pause(&door, 7).is_err_and(|error| !error.is_gone()));
        let weak = kfd.door(2).without_capability();
        let client = kfd.client(8);
        client.open_queue(1).unwrap();
        assert!(matches!(pause(&weak, 8), Err(PauseError::Denied(8))));
        let version = Version { major: 1, minor: 6 };
        let old = FakeKfd::with(Rules { version, ..Rules::default() });
        let _client = old.client(7);
        assert!(matches!(pause(&old.door(1), 7), Err(PauseError::NoInterface)));
    }
}
