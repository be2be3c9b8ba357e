//! The AMD backend, as the daemon runs it.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, thread};

use gpreempt_core::backend::Backend;
use gpreempt_core::id::TaskId;
use gpreempt_device::amd::AmdBackend;
use gpreempt_device::amd::kfd_instance::KfdInstance;
use gpreempt_device::amd::session::DebugSession;
use gpreempt_device::amd::stop_method::PatchedCalls;
use gpreempt_device::controller::{Controller, ControllerReport, Numbering, Rescanning, Waker};
use gpreempt_device::journal::Journal;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_device::undo_log::UndoLog;

use super::session::kfd;
use crate::Machine;
use crate::child::ChildProcess;
use crate::outcome::{CheckResult, PATIENCE, failed, same, says, untouched, wait_until};

const TASK: TaskId = TaskId(1);
/// The name of the backend's threads that have a session.
const WORKER: &str = "amd process";
/// The numbers of the system calls `poll` and `ppoll`.
const POLLS: [&str; 2] = ["7", "271"];

/// The backend finds a process that uses KFD, adopts it without stopping it, and releases it.
pub(super) fn adopts(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    let (mut backend, process, _folder) = adopted(machine, &target)?;
    wait_until("the session", || is_polling(WORKER))?;
    match DebugSession::attach(kfd(machine), process.pid) {
        Err(error) => says(&error.to_string(), &["has a debugger already"])?,
        Ok(_) => return failed("the backend has no session"),
    }
    untouched(process.pid)?;
    target.does("end")?;
    target.does("begin")?;
    backend.release_all()?;
    untouched(process.pid)?;
    DebugSession::attach(kfd(machine), process.pid)?.detach()?;
    target.leave()
}

/// The backend reports the end of an adopted process.
pub(super) fn sees_the_end(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::running_target()?;
    let (mut backend, _, _folder) = adopted(machine, &target)?;
    target.kill()?;
    note(&mut backend, |note| *note == ControllerReport::Ended(TASK))?;
    backend.release_all()?;
    Ok(())
}

/// On a kernel without sessions the backend reports that it pauses the process as a whole, and why.
pub(super) fn says_why(machine: &Machine) -> CheckResult {
    let mut target = ChildProcess::target()?;
    let (mut backend, process, _folder) = adopted(machine, &target)?;
    let said = note(&mut backend, |note| matches!(note, ControllerReport::Problem(_)))?;
    says(&format!("{said:?}"), &["paused as a whole", "no interface to suspend queues"])?;
    backend.release_all()?;
    untouched(process.pid)?;
    target.does("version")
}

/// A folder for a journal. Dropping it removes the folder.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn adopted(
    machine: &Machine,
    target: &ChildProcess,
) -> CheckResult<(AmdBackend, ProcessKey, Folder)> {
    let process = ProcessInfo::read(target.pid())?.key;
    let folder = std::env::temp_dir().join(format!("gpreempt-kfd-check-{}", target.pid()));
    let folder = Folder(folder);
    let session = Journal::at(folder.0.clone())?.begin()?;
    let instance = KfdInstance::kernel()?;
    if machine.expected.is_some() {
        same("patched calls", instance.patched_calls, PatchedCalls::Absent)?;
    }
    let (undo_log, waker) = (UndoLog::new(session), Waker::new()?);
    let mut backend = AmdBackend::new(instance, undo_log, Numbering::of(1), waker)?;
    backend.set_rescan(Duration::from_millis(10));
    let since = Instant::now();
    while !backend.users().contains(&process) {
        if since.elapsed() > PATIENCE {
            return failed("the backend does not see a process that uses KFD");
        }
        thread::sleep(Duration::from_millis(2));
    }
    backend.adopt(TASK, process)?;
    Ok((backend, process, folder))
}

fn note(
    backend: &mut AmdBackend,
    is_wanted: impl Fn(&ControllerReport) -> bool,
) -> CheckResult<ControllerReport> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        while backend.poll_event().is_some() {}
        match backend.poll_report() {
            Some(note) if is_wanted(&note) => return Ok(note),
            Some(_) => {}
            None => thread::sleep(Duration::from_millis(2)),
        }
    }
    failed("the backend never said what it should")
}

/// Whether a thread of this process with that name is blocked in `poll`. A KFD call about the
/// session could interfere with its start.
fn is_polling(name: &str) -> bool {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    threads.map(|thread| thread.path()).any(|thread| {
        let call = read(thread.join("syscall"));
        let number = call.split(' ').next().unwrap_or_default();
        read(thread.join("comm")).trim() == name && POLLS.contains(&number)
    })
}
