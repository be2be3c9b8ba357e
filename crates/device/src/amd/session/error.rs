//! Why a process cannot be controlled, in messages that say what to do.

use std::io;

use rustix::io::Errno;

use crate::amd::abi::trap::RuntimeState;
use crate::amd::{KfdDebugCalls, kfd_file};
use crate::process::{ProcessError, ProcessInfo, all_pids, owner_of};

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("there is no process {0}, or it has ended")]
    Gone(u32),
    #[error(
        "process {pid} has a debugger already: {debugger}; there can be only one, so end that one \
         first"
    )]
    Debugged { pid: u32, debugger: String },
    #[error("process {pid} may not be controlled: {advice}")]
    Denied { pid: u32, advice: String },
    #[error(
        "process {0} cannot be controlled now: its device can have one debugged process at a time \
         and has one, or the process uses cooperative queues, a mask of compute units, or a \
         profiler; end that, or let it be paused as a whole"
    )]
    Busy(u32),
    #[error(
        "process {0} uses a device without support for debuggers (older than gfx9): its queues \
         cannot be suspended, only the whole process can be paused"
    )]
    Unsupported(u32),
    #[error(
        "the kernel has no interface to suspend queues (KFD 1.13, Linux 6.5); use a newer one, or \
         let whole processes be paused"
    )]
    NoInterface,
    #[error(
        "process {0} cannot be controlled: the amdgpu module runs without hardware scheduling \
         (sched_policy=2); load it with sched_policy=0"
    )]
    NoScheduler(u32),
    #[error("process {0} cannot be controlled: {1}")]
    Thread(u32, io::Error),
    #[error("process {0} cannot be controlled: {1}; the kernel's log may say why")]
    Failed(u32, Errno),
}

impl AttachError {
    /// Whether pausing the whole process may work instead: no other program controls it.
    pub const fn allows_pause(&self) -> bool {
        matches!(
            self,
            Self::Busy(_) | Self::Unsupported(_) | Self::NoInterface | Self::NoScheduler(_)
        )
    }

    /// Whether a later attempt may succeed.
    pub const fn may_change(&self) -> bool {
        !matches!(self, Self::Gone(_) | Self::Unsupported(_) | Self::NoInterface)
    }

    pub(crate) fn of_seize(kfd: &dyn KfdDebugCalls, pid: u32, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Gone(pid),
            Errno::PERM => match debugger_of(kfd, pid) {
                Some(debugger) => Self::Debugged { pid, debugger },
                None if is_ending(pid) => Self::Gone(pid),
                None => Self::Denied { pid, advice: advice() },
            },
            errno => Self::Failed(pid, errno),
        }
    }

    pub(super) fn of_enable(kfd: &dyn KfdDebugCalls, pid: u32, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Gone(pid),
            Errno::ALREADY => {
                let debugger = debugger_of(kfd, pid).unwrap_or_else(likely_debugger);
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

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(
        "process {0} is no longer under control: it has ended, or another program ended the debug \
         session"
    )]
    Over(u32),
    #[error(
        "process {0} has nothing to suspend: its ROCm runtime has not begun or has ended; try \
         again when it uses its device"
    )]
    NoRuntime(u32),
    #[error(
        "process {0} cannot be suspended: its device can have one debugged process at a time, and \
         has one"
    )]
    Busy(u32),
    #[error("process {pid} cannot be reached while {debugger} traces it; end that first")]
    Traced { pid: u32, debugger: String },
    #[error("process {0} cannot be reached: {1}")]
    Thread(u32, io::Error),
    #[error("process {0}: the kernel refused: {1}")]
    Refused(u32, Errno),
}

impl SessionError {
    pub(super) fn of_seize(kfd: &dyn KfdDebugCalls, pid: u32, errno: Errno) -> Self {
        match errno {
            Errno::SRCH => Self::Over(pid),
            errno => match debugger_of(kfd, pid) {
                Some(debugger) => Self::Traced { pid, debugger },
                None if is_ending(pid) || is_gone(pid) => Self::Over(pid),
                None => Self::Refused(pid, errno),
            },
        }
    }

    pub(super) const fn of_call(pid: u32, runtime: RuntimeState, errno: Errno) -> Self {
        match (errno, runtime) {
            // Without a session every call is `EINVAL`, and in a session no call of this module is.
            (Errno::SRCH | Errno::INVAL, _) => Self::Over(pid),
            (Errno::PERM, RuntimeState::Busy | RuntimeState::Failed) => Self::Busy(pid),
            // The kernel's header documents another number for this.
            (Errno::PERM | Errno::ACCESS, _) => Self::NoRuntime(pid),
            (errno, _) => Self::Refused(pid, errno),
        }
    }

    /// Whether nothing can be suspended because the session or the runtime is gone.
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::Over(_) | Self::NoRuntime(_))
    }
}

/// Whether a process is a zombie: the kernel replies `EPERM` for it.
fn is_ending(pid: u32) -> bool {
    ProcessInfo::read(pid).is_ok_and(|info| info.zombie)
}

fn is_gone(pid: u32) -> bool {
    matches!(ProcessInfo::read(pid), Err(ProcessError::Gone(_)))
}

/// The name and pid of the tracer of a process.
fn debugger_of(kfd: &dyn KfdDebugCalls, pid: u32) -> Option<String> {
    let thread = kfd.tracer_of(pid)?;
    Some(match owner_of(thread) {
        Some((owner, name)) => format!("{name} (process {owner})"),
        None => format!("process {thread}"),
    })
}

/// Programs that debug processes on AMD devices, by the beginnings of their names.
const DEBUGGERS: [&str; 3] = ["rocgdb", "gpreempt", "rocprof"];

/// The program that probably has the session. The kernel does not tell.
fn likely_debugger() -> String {
    let Some(number) = kfd_file::number() else { return "another program".to_owned() };
    let own = std::process::id();
    let found =
        all_pids().unwrap_or_default().into_iter().filter(|pid| *pid != own).find_map(|pid| {
            let name = ProcessInfo::read(pid).ok()?.name;
            let is_debugger = DEBUGGERS.iter().any(|debugger| name.starts_with(debugger));
            let has_device = || kfd_file::held_by(pid, number).is_ok_and(|held| !held.is_empty());
            (is_debugger && has_device()).then(|| format!("probably {name} (process {pid})"))
        });
    found.unwrap_or_else(|| "another program".to_owned())
}

fn advice() -> String {
    crate::amd::probe::Privileges::read().advice()
}
