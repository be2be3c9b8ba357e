//! Runs calls as the tracer of a process.
//!
//! KFD accepts some calls only from the *thread* that traces the process. `as_tracer` starts a
//! thread for each use, which traces the process (`PTRACE_SEIZE` does not stop it), makes the calls
//! and ends. The kernel ends the tracing with the thread, so no signal of the process ever waits
//! for this program.
#![expect(unsafe_code, reason = "ptrace(2) has no safe form")]

use std::time::{Duration, Instant};
use std::{io, ptr, thread};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getuid, kill_process};

use super::KfdDebugCalls;
use crate::process::{ProcessKey, StatusFile};

/// How long a process may stay traced after the tracing thread has ended. It takes microseconds.
const LET_GO_MAX: Duration = Duration::from_secs(2);
/// The name of threads that trace a process for a moment; the keeper and other gpreempt programs
/// use the same.
const ERRAND: &str = "amd errand";
/// How long to wait for such a thread of another program. It takes milliseconds.
const ERRAND_MAX: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_micros(50);

#[derive(Debug)]
pub(crate) enum TraceError {
    /// The process may not be traced, or has another tracer.
    Seize(Errno),
    Thread(io::Error),
}

/// The process to trace. A pid alone may have been reused by the time of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceTarget {
    pid: u32,
    key: Option<ProcessKey>,
}

impl TraceTarget {
    pub const fn pid(self) -> u32 {
        self.pid
    }

    /// Whether the pid still belongs to the process, as far as that is known.
    fn check(self) -> Result<(), Errno> {
        if self.key.is_some_and(|key| key.check().is_err()) { Err(Errno::SRCH) } else { Ok(()) }
    }
}

impl From<u32> for TraceTarget {
    fn from(pid: u32) -> Self {
        Self { pid, key: None }
    }
}

impl From<ProcessKey> for TraceTarget {
    fn from(key: ProcessKey) -> Self {
        Self { pid: key.pid, key: Some(key) }
    }
}

/// Runs `errand` as the tracer of a process. When this returns, the process is no longer traced.
pub(crate) fn as_tracer<T: Send>(
    kfd: &dyn KfdDebugCalls,
    target: impl Into<TraceTarget>,
    errand: impl FnOnce() -> T + Send,
) -> Result<T, TraceError> {
    let target = target.into();
    let pid = target.pid();
    let run = || {
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap_or(0);
        // Checked after the seize: a traced process's pid cannot be reused.
        (own, seize_when_free(kfd, pid).and_then(|()| target.check()).map(|()| errand()))
    };
    let (tracer, result) = thread::scope(|scope| {
        let thread = thread::Builder::new().name(ERRAND.into());
        let thread = thread.spawn_scoped(scope, run).map_err(TraceError::Thread)?;
        thread.join().map_err(|_| TraceError::Thread(io::Error::other("an errand failed")))
    })?;
    // `join` may return before the kernel has ended the tracing.
    let since = Instant::now();
    while kfd.tracer_of(pid) == Some(tracer) && since.elapsed() < LET_GO_MAX {
        thread::sleep(LOOK);
    }
    result.map_err(TraceError::Seize)
}

/// Traces a process. Waits for a gpreempt thread that traces it already, such as the keeper's.
fn seize_when_free(kfd: &dyn KfdDebugCalls, pid: u32) -> Result<(), Errno> {
    let since = Instant::now();
    loop {
        match kfd.seize(pid) {
            Err(Errno::PERM) if since.elapsed() < ERRAND_MAX && has_errand(kfd, pid) => {
                thread::sleep(LOOK);
            }
            // The other thread may have ended before its name could be read.
            Err(Errno::PERM) => return kfd.seize(pid),
            result => return result,
        }
    }
}

/// Whether a gpreempt thread traces a process. If its program is stopped (`SIGSTOP`), this
/// continues it: until then no other program could resume the process's queues.
fn has_errand(kfd: &dyn KfdDebugCalls, pid: u32) -> bool {
    let Some(tracer) = kfd.tracer_of(pid) else { return false };
    let status = StatusFile::read(tracer).unwrap_or_default();
    if status.field("Name") != Some(ERRAND) {
        return false;
    }
    // `T`: stopped by a signal. A debugger's stop is `t` and is not ended here.
    let is_stopped = status.field("State").is_some_and(|state| state.starts_with('T'));
    // Any program can use this thread name, so only programs of root or of this user are continued.
    let uid: Option<u32> = status.number("Uid", 0);
    let is_ours = uid.is_some_and(|uid| uid == 0 || uid == getuid().as_raw());
    let owner = status.number("Tgid", 0).and_then(Pid::from_raw);
    // This program does not continue itself.
    if let Some(owner) = owner.filter(|owner| is_stopped && is_ours && *owner != getpid()) {
        let _ = kill_process(owner, Signal::CONT);
    }
    true
}

/// Makes the calling thread the tracer of a process (`PTRACE_SEIZE`). The process keeps running,
/// also when the thread ends; signals that arrive meanwhile are delivered normally.
pub(super) fn ptrace_seize(pid: u32) -> Result<(), Errno> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::SRCH)?;
    let nothing = ptr::null_mut::<libc::c_void>();
    // SAFETY: this request takes no address and no options (both zero), and writes no memory of
    // this process.
    let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) };
    if result == -1 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::PERM));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::amd::{DebuggerIoctl, FakeKfd};
    use crate::process::{owner_of, tracer_in, tracer_of};

    #[test]
    fn an_errand_runs_as_the_tracer_and_ends_the_tracing() {
        let kfd = FakeKfd::new();
        let client = kfd.client(7);
        let debugger = kfd.debugger(1);
        let seen = as_tracer(&debugger, client.pid(), || debugger.tracer_of(7)).unwrap();
        assert!(seen.is_some_and(|tracer| tracer != 0));
        assert_eq!(debugger.tracer_of(7), None);
        let failed = as_tracer(&debugger, 99, || ());
        assert!(matches!(failed, Err(TraceError::Seize(Errno::SRCH))));
    }

    #[test]
    fn a_program_stopped_in_an_errand_is_continued() {
        let folder = gpreempt_stage::WorkFolder::new("errand").unwrap();
        let folder = folder.root();
        // The name of a program is that of its file.
        let program = folder.join(ERRAND);
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        let mut owner = Command::new(&program);
        // Some programs behave according to `argv[0]`.
        let mut owner = owner.arg0("sleep").arg("1000").spawn().unwrap();
        let state = || StatusFile::read(owner.id()).unwrap().field("State").unwrap().as_bytes()[0];
        let until = |wanted: fn(u8) -> bool| {
            let since = Instant::now();
            while !wanted(state()) && since.elapsed() < Duration::from_secs(10) {
                thread::sleep(LOOK);
            }
            wanted(state())
        };
        kill_process(Pid::from_child(&owner), Signal::STOP).unwrap();
        let is_stopped = until(|state| state == b'T');
        let kfd = FakeKfd::new();
        let _client = kfd.client(7);
        kfd.trace_externally(7, owner.id());
        let is_ours = has_errand(&kfd.debugger(1), 7);
        let is_continued = until(|state| state != b'T');
        owner.kill().unwrap();
        owner.wait().unwrap();
        assert!(is_stopped && is_ours && is_continued);
    }

    #[test]
    fn a_reused_pid_is_not_traced() {
        let kfd = FakeKfd::new();
        let own = crate::process::ProcessInfo::read(std::process::id()).unwrap().key;
        let _client = kfd.client(own.pid);
        let debugger = kfd.debugger(1);
        assert!(as_tracer(&debugger, own, || ()).is_ok());
        let before = ProcessKey { start_ticks: own.start_ticks + 1, ..own };
        let mut is_done = false;
        let failed = as_tracer(&debugger, before, || is_done = true);
        assert!(matches!(failed, Err(TraceError::Seize(Errno::SRCH))) && !is_done);
        assert_eq!(debugger.tracer_of(own.pid), None);
    }

    #[test]
    fn the_tracer_is_read_from_the_status() {
        assert_eq!(tracer_in(&"Name:\tx\nTracerPid:\t17\nUid:\t0\n".into()), Some(17));
        assert_eq!(tracer_in(&"TracerPid:\t0\n".into()), None);
        assert_eq!(tracer_in(&"Name:\tTracerPid:\t1\n".into()), None);
        assert_eq!(tracer_in(&"".into()), None);
    }

    #[test]
    fn a_process_that_does_not_exist_has_no_tracer() {
        assert_eq!(ptrace_seize(u32::MAX), Err(Errno::SRCH));
        assert_eq!(tracer_of(u32::MAX), None);
        assert_eq!(owner_of(u32::MAX), None);
        let own = std::process::id();
        assert_eq!(owner_of(own).map(|(owner, _)| owner), Some(own));
    }

    #[test]
    fn a_seized_process_keeps_running() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cat is everywhere");
        let pid = child.id();
        let seized = thread::spawn(move || {
            let seized = ptrace_seize(pid);
            (seized, tracer_of(pid), rustix::thread::gettid().as_raw_nonzero().get())
        });
        let (seized, tracer, thread) = seized.join().unwrap();
        if seized == Err(Errno::PERM) {
            println!("SKIPPED: this machine does not allow tracing one's own children");
        } else {
            assert_eq!((seized, tracer), (Ok(()), u32::try_from(thread).ok()));
        }
        // It still does its work: input is copied to output.
        io::Write::write_all(child.stdin.as_mut().unwrap(), b"on\n").unwrap();
        drop(child.stdin.take());
        let mut out = String::new();
        io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut out).unwrap();
        assert_eq!(out, "on\n");
        child.wait().unwrap();
    }
}
