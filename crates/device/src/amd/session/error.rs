//! Why a process cannot be controlled, in sentences that say what to do.

use std::io;

use rustix::io::Errno;

use crate::amd::abi::trap::RuntimeState;
use crate::amd::door::Door;
use crate::amd::{node, ptrace};
use crate::process::{ProcessError, ProcessInfo, all_pids};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no process.
    #[error("there is no process {0}, or it has ended")]
    Gone(u32),
    /// Somebody else traces or debugs it.
    #[error(
        "process {pid} has a debugger already: {debugger}; there can be only one, so end that one \
         first"
    )]
    Debugged {
        /// Which process.
        pid: u32,
        /// Who debugs it.
        debugger: String,
    },
    /// We may not.
    #[error("process {pid} may not be controlled: {advice}")]
    Denied {
        /// Which process.
        pid: u32,
        /// What to do about it.
        advice: String,
    },
    /// Another process has the device's only place for a debugged one, or something like that.
    #[error(
        "process {0} cannot be controlled now: its device can have one debugged process at a time \
         and has one, or the process uses cooperative queues, a mask of compute units, or a \
         profiler; end that, or let it be paused as a whole"
    )]
    Busy(u32),
    /// The device is too old.
    #[error(
        "process {0} uses a device without support for debuggers (older than gfx9): its queues \
         cannot be suspended, only the whole process can be paused"
    )]
    Unsupported(u32),
    /// The kernel is too old.
    #[error(
        "the kernel has no interface to suspend queues (KFD 1.13, Linux 6.5); use a newer one, or \
         let whole processes be paused"
    )]
    NoInterface,
    /// Queues are not scheduled by the device.
    #[error(
        "process {0} cannot be controlled: the amdgpu module runs without hardware scheduling \
         (sched_policy=2); load it with sched_policy=0"
    )]
    NoScheduler(u32),
    /// There are no more threads.
    #[error("process {0} cannot be controlled: {1}")]
    Thread(u32, io::Error),
    /// Something else.
    #[error("process {0} cannot be controlled: {1}; the kernel's log may say why")]
    Failed(u32, Errno),
}

impl AttachError {
    /// Whether the process may be paused as a whole instead: nobody else has it, and it is only
    /// this way that is closed.
    pub const fn allows_pause(&self) -> bool {
        matches!(
            self,
            Self::Busy(_) | Self::Unsupported(_) | Self::NoInterface | Self::NoScheduler(_)
        )
    }

    /// Whether it may be different later.
    pub const fn may_change(&self) -> bool {
        !matches!(self, Self::Gone(_) | Self::Unsupported(_) | Self::NoInterface)
    }

    /// Why a process could not be traced.
    pub(crate) fn of_seize(door: &dyn Door, pid: u32, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Gone(pid),
            Errno::PERM => match debugger_of(door, pid) {
                Some(debugger) => Self::Debugged { pid, debugger },
                None if is_ending(pid) => Self::Gone(pid),
                None => Self::Denied { pid, advice: advice() },
            },
            errno => Self::Failed(pid, errno),
        }
    }

    /// Why a session could not be begun.
    pub(super) fn of_enable(door: &dyn Door, pid: u32, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Gone(pid),
            Errno::ALREADY => {
                let debugger = debugger_of(door, pid).unwrap_or_else(likely_debugger);
                Self::Debugged { pid, debugger }
            }
            Errno::PERM => Self::Denied { pid, advice: advice() },
            Errno::BUSY => Self::Busy(pid),
            Errno::NODEV => Self::Unsupported(pid),
            Errno::NOTTY => Self::NoInterface,
            Errno::INVAL => Self::NoScheduler(pid),
            errno => Self::Failed(pid, errno),
        }
    }
}

/// Why something in a session did not work.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The session is over: the process has ended, or somebody ended the session.
    #[error("process {0} is no longer under control: it has ended, or somebody took it over")]
    Over(u32),
    /// The process has no runtime now.
    #[error(
        "process {0} has nothing to suspend: its ROCm runtime has not begun or has ended; try \
         again when it uses its device"
    )]
    NoRuntime(u32),
    /// Another process has the device's only place for a debugged one.
    #[error(
        "process {0} cannot be suspended: its device can have one debugged process at a time, and \
         has one"
    )]
    Busy(u32),
    /// Somebody else traces it, which kernels before 6.12.103 do not forgive.
    #[error("process {pid} cannot be reached while {debugger} traces it; end that first")]
    Traced {
        /// Which process.
        pid: u32,
        /// Who traces it.
        debugger: String,
    },
    /// There are no more threads.
    #[error("process {0} cannot be reached: {1}")]
    Thread(u32, io::Error),
    /// Something else.
    #[error("process {0}: the kernel refused: {1}")]
    Refused(u32, Errno),
}

impl SessionError {
    pub(super) fn of_seize(door: &dyn Door, pid: u32, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Over(pid),
            errno => match debugger_of(door, pid) {
                Some(debugger) => Self::Traced { pid, debugger },
                None if is_ending(pid) || is_gone(pid) => Self::Over(pid),
                None => Self::Refused(pid, errno),
            },
        }
    }

    pub(super) const fn of_call(pid: u32, runtime: RuntimeState, errno: Errno) -> Self {
        match (errno, runtime) {
            // Without a session everything is invalid, and everything we say in one is valid.
            (Errno::SRCH | Errno::INVAL, _) => Self::Over(pid),
            (Errno::PERM, RuntimeState::Busy | RuntimeState::Failed) => Self::Busy(pid),
            // The kernel's header promises another number for this.
            (Errno::PERM | Errno::ACCESS, _) => Self::NoRuntime(pid),
            (errno, _) => Self::Refused(pid, errno),
        }
    }

    /// Whether nothing can be suspended any more, because nothing is there.
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::Over(_) | Self::NoRuntime(_))
    }
}

/// Whether a process has ended and only its number is left: the kernel says of it that we may not.
fn is_ending(pid: u32) -> bool {
    ProcessInfo::read(pid).is_ok_and(|info| info.zombie)
}

/// Whether not even that is left, by now.
fn is_gone(pid: u32) -> bool {
    matches!(ProcessInfo::read(pid), Err(ProcessError::Gone(_)))
}

/// Who traces a process, in words.
fn debugger_of(door: &dyn Door, pid: u32) -> Option<String> {
    let thread = door.tracer_of(pid)?;
    Some(match ptrace::owner_of(thread) {
        Some((owner, name)) => format!("{name} (process {owner})"),
        None => format!("process {thread}"),
    })
}

/// Programs that debug processes on AMD devices, by the beginnings of their names.
const DEBUGGERS: [&str; 3] = ["rocgdb", "gpreempt", "rocprof"];

/// Who probably has the session that we are told of: the kernel does not say.
fn likely_debugger() -> String {
    let Some(number) = node::number() else { return "another program".to_owned() };
    let own = std::process::id();
    let found =
        all_pids().unwrap_or_default().into_iter().filter(|pid| *pid != own).find_map(|pid| {
            let name = ProcessInfo::read(pid).ok()?.name;
            let is_debugger = DEBUGGERS.iter().any(|debugger| name.starts_with(debugger));
            let has_device = || node::held_by(pid, number).is_ok_and(|held| !held.is_empty());
            (is_debugger && has_device()).then(|| format!("probably {name} (process {pid})"))
        });
    found.unwrap_or_else(|| "another program".to_owned())
}

/// What to do when we may not trace.
fn advice() -> String {
    crate::amd::probe::Powers::read().advice()
}
