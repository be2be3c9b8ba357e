//! The backend, as the daemon runs it.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use gpreempt_core::backend::Backend;
use gpreempt_core::id::TaskId;
use gpreempt_device::amd::AmdBackend;
use gpreempt_device::amd::own_calls::OwnCalls;
use gpreempt_device::amd::session::Session;
use gpreempt_device::amd::site::Site;
use gpreempt_device::controller::{Controller, Note, Numbering, Rescanning, Waker};
use gpreempt_device::journal::Journal;
use gpreempt_device::ledger::Ledger;
use gpreempt_device::process::{ProcessInfo, ProcessKey};

use super::session::door;
use crate::actor::Actor;
use crate::machine::Machine;
use crate::tracing::{PATIENCE, untouched, wait_until};
use crate::verdict::{Verdict, failed, same, says};

const TASK: TaskId = TaskId(1);
/// What the backend calls a thread that has a session.
const WORKER: &str = "amd process";
/// `poll` and `ppoll`, as the kernel counts.
const POLLS: [&str; 2] = ["7", "271"];

/// A process that uses KFD is noticed, adopted without stopping it, and released.
pub(super) fn adopts(machine: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    let (mut backend, process, _folder) = adopted(machine, &target)?;
    wait_until("the session", || is_polling(WORKER))?;
    match Session::attach(door(machine), process.pid) {
        Err(error) => says(&error.to_string(), &["has a debugger already"])?,
        Ok(_) => return failed("the backend has no session"),
    }
    untouched(process.pid)?;
    target.does("end")?;
    target.does("begin")?;
    backend.release_all()?;
    untouched(process.pid)?;
    Session::attach(door(machine), process.pid)?.detach()?;
    target.leave()
}

/// When an adopted process ends, that is said.
pub(super) fn sees_the_end(machine: &Machine) -> Verdict {
    let mut target = Actor::running_target()?;
    let (mut backend, _, _folder) = adopted(machine, &target)?;
    target.kill()?;
    note(&mut backend, |note| *note == Note::Ended(TASK))?;
    backend.release_all()?;
    Ok(())
}

/// On a kernel without sessions the process will be paused as a whole, the reason is said, and it
/// runs on.
pub(super) fn says_why(machine: &Machine) -> Verdict {
    let mut target = Actor::target()?;
    let (mut backend, process, _folder) = adopted(machine, &target)?;
    let said = note(&mut backend, |note| matches!(note, Note::Problem(_)))?;
    says(&format!("{said:?}"), &["paused as a whole", "no interface to suspend queues"])?;
    backend.release_all()?;
    untouched(process.pid)?;
    target.does("version")
}

/// A folder for a journal, until this is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A backend that has a target.
fn adopted(machine: &Machine, target: &Actor) -> Verdict<(AmdBackend, ProcessKey, Folder)> {
    let process = ProcessInfo::read(target.pid())?.key;
    let folder = std::env::temp_dir().join(format!("gpreempt-kfd-check-{}", target.pid()));
    let folder = Folder(folder);
    let session = Journal::at(folder.0.clone())?.begin()?;
    let site = Site::kernel()?;
    if machine.expected.is_some() {
        same("calls of our own", site.own_calls, OwnCalls::Absent)?;
    }
    let (ledger, waker) = (Ledger::new(session), Waker::new()?);
    let mut backend = AmdBackend::new(site, ledger, Numbering::of(1), waker)?;
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

/// The next note of a kind.
fn note(backend: &mut AmdBackend, is_wanted: impl Fn(&Note) -> bool) -> Verdict<Note> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        while backend.poll_event().is_some() {}
        match backend.poll_note() {
            Some(note) if is_wanted(&note) => return Ok(note),
            Some(_) => {}
            None => thread::sleep(Duration::from_millis(2)),
        }
    }
    failed("the backend never said what it should")
}

/// Whether a thread of ours with that name waits for something to happen. Asking the kernel about
/// the session instead could get in the way of its beginning.
fn is_polling(name: &str) -> bool {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    threads.map(|thread| thread.path()).any(|thread| {
        let call = read(thread.join("syscall"));
        let number = call.split(' ').next().unwrap_or_default();
        read(thread.join("comm")).trim() == name && POLLS.contains(&number)
    })
}
