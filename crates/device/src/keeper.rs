//! The keeper: a separate process that reverts every recorded change when its owner dies or stalls.
//!
//! An owner (the daemon, a private session, a command) starts the keeper before it changes
//! anything. The keeper holds the lock of the owner's journal and the read end of a pipe whose
//! write end only the owner has. When the owner dies, the pipe ends, and the keeper reverts what
//! the journal records. It also reverts changes whose lease has expired. It never keeps a
//! descriptor of a process's GPU, because that would keep a dead process's memory allocated.
//!
//! Both watch each other:
//!
//! ```text
//!   owner  -- heartbeat, at most every 100 ms -->  keeper   none for 5 s: reverts all, exits
//!   owner  <------------- answer ---------------   keeper   20 unanswered: killed and replaced
//! ```
//!
//! No failure in a keeper ends it before it has reverted what it can: `run` has no early return
//! between its start and the undo.

mod owner;
mod run;
mod undo_threads;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::change::UndoError;
use crate::eviction;
use crate::journal::{LockedJournal, OwnerJournal, ProcessRecord};
use crate::process::ProcessHandle;
pub use owner::{Keeper, StartError};
pub use run::main;
use undo_threads::UndoThreads;

/// What the keeper prints when it holds the journal's lock and can end every hold.
const READY: &str = "ready";

/// The time between two tries.
const RETRY: Duration = Duration::from_millis(20);
/// How often the keeper tries at that rate: ten minutes.
const TRIES_MAX: u32 = 30_000;
/// The time between two tries after that.
const PATIENT_RETRY: Duration = Duration::from_secs(1);
/// How often a program tries that finds a journal without a keeper.
const TRIES_CLEANING: u32 = 5;
/// How long to wait for a killed keeper: it ends within microseconds.
const KILL_WAIT: Duration = Duration::from_millis(200);
/// How long an owner may send no heartbeat before the keeper reverts all changes.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The keeper program beside this one, or this one as a keeper.
fn program() -> io::Result<(PathBuf, Option<&'static str>)> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("gpreempt-keeper");
    if beside.is_file() { Ok((beside, None)) } else { Ok((own, Some("keeper"))) }
}

/// Reverts all changes of a journal. Tries again every [`RETRY`], or after `busy` while threads are
/// at every change that is left.
fn undo_all(
    held: &LockedJournal,
    undo_threads: &mut UndoThreads,
    tries: u32,
    busy: Duration,
) -> io::Result<()> {
    for _ in 0..tries {
        undo_threads.begin(held.journal(), |_| true);
        undo_threads.wait(held.journal());
        match held.journal().is_empty() {
            Ok(true) => return Ok(()),
            // The process that removed the folder has reverted its changes.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Ok(false) | Err(_) => {}
        }
        if undo_threads.are_at_all(held.journal()) {
            undo_threads.wait_for_one(held.journal(), busy);
        } else {
            std::thread::sleep(RETRY);
        }
    }
    Err(io::Error::other(format!(
        "{}: the changes in some processes could not be reverted",
        held.journal().folder().display()
    )))
}

/// The same, until none of the processes lives: a debugger may trace one for days, and no other
/// process knows its changes. Fails if a record is left then, such as an unreadable file.
fn undo_patiently(
    held: &LockedJournal,
    undo_threads: &mut UndoThreads,
    tries: u32,
) -> io::Result<()> {
    let mut result = undo_all(held, undo_threads, tries, PATIENT_RETRY);
    let lives = |record: &ProcessRecord| record.process.check().is_ok();
    // A folder that cannot be read now may be readable later.
    let any_lives = |all: Vec<ProcessRecord>| all.iter().any(lives);
    while result.is_err() && held.journal().entries().map_or(true, any_lives) {
        std::thread::sleep(PATIENT_RETRY);
        result = undo_all(held, undo_threads, 1, PATIENT_RETRY);
    }
    result
}

/// Starts keepers for journals without one, in which changes could not be reverted. Returns how
/// many. The caller holds the journal's lock.
pub fn hand_over(journal: &crate::journal::Journal) -> io::Result<usize> {
    let mut count = 0;
    for session in journal.sessions()? {
        let folder = session.folder().to_owned();
        // The lock is released again at once, for the keeper.
        if matches!(session.hold(), Ok(Some(_))) {
            start_orphan(&folder)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Starts a keeper for the journal of an owner that has ended.
fn start_orphan(folder: &Path) -> io::Result<()> {
    let (program, arguments) = program()?;
    // A keeper without input takes its owner for dead, which it is.
    let mut child = Command::new(program)
        .args(arguments)
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    // A dead child stays a zombie until its parent waits for it.
    let thread = std::thread::Builder::new().name("gpreempt-reaper".to_owned());
    thread.spawn(move || {
        let _ = child.wait();
    })?;
    Ok(())
}

/// Kills the keeper of a journal whose owner is dead, if that keeper is stopped (`SIGSTOP`, a
/// debugger): it reverts nothing, and its lock keeps every other program from doing so. A running
/// keeper is not killed, because it may wait for a traced process for days.
pub fn end_stopped_keeper(session: &OwnerJournal) {
    if session.has_living_owner().unwrap_or(true) {
        return;
    }
    let Some(keeper) = session.keeper() else { return };
    let pid = i32::try_from(keeper.pid).ok().and_then(Pid::from_raw);
    let (Some(pid), Ok(held)) = (pid, ProcessHandle::of(keeper)) else { return };
    if !keeper.is_stopped() || kill_process(pid, Signal::KILL).is_err() {
        return;
    }
    // The kernel releases its lock when it has ended.
    let until = Instant::now() + KILL_WAIT;
    while held.lives() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Reverts the changes of journals without a keeper. Returns how many there were.
///
/// A new owner journal has no keeper yet. So the caller holds the journal's lock, and a process
/// that begins an owner journal holds it until its keeper runs.
///
/// Evicted memory is not restored here, because that takes long and may wait for room: a keeper is
/// started for it.
pub fn clean_up(
    journal: &crate::journal::Journal,
    undo: impl Fn(&ProcessRecord) -> Result<(), UndoError> + Clone + Send + Sync + 'static,
) -> io::Result<usize> {
    let undo = move |record: &ProcessRecord| {
        let mut others = record.clone();
        others.changes.retain(|change| !change.is_eviction());
        undo(&others)?;
        if others.changes.len() == record.changes.len() {
            Ok(())
        } else {
            Err(UndoError::Evicted(record.process))
        }
    };
    let mut cleaned = 0;
    let mut problem = Ok(());
    let all = journal.sessions()?;
    all.iter().for_each(end_stopped_keeper);
    // One that was removed meanwhile needs nothing.
    let sessions = all.into_iter().filter_map(|session| session.hold().ok()?);
    let begin = |held: LockedJournal| {
        let mut undo_threads = UndoThreads::new(undo.clone());
        undo_threads.begin(held.journal(), |_| true);
        (held, undo_threads)
    };
    // All at once: one that cannot be reverted must not delay the others.
    let begun: Vec<(LockedJournal, UndoThreads)> = sessions.map(begin).collect();
    for (held, mut undo_threads) in begun {
        let undone = undo_all(&held, &mut undo_threads, TRIES_CLEANING, RETRY);
        if undone.is_err() && undo_threads.is_busy() {
            // The hanging thread may act much later, and no other program may control its process
            // before that.
            let thread = std::thread::Builder::new().name("gpreempt-undo_threads".to_owned());
            let _ = thread.spawn(move || {
                let _ = undo_patiently(&held, &mut undo_threads, 1).and_then(|()| held.end());
            });
            problem = problem.and(undone);
            continue;
        }
        if undone.is_err() && held.journal().has_only_evictions() {
            let folder = held.journal().folder().to_owned();
            // The keeper needs its lock.
            drop(held);
            match start_orphan(&folder) {
                Ok(()) => cleaned += 1,
                Err(error) => problem = problem.and(Err(error)),
            }
            continue;
        }
        match undone.and_then(|()| held.end()) {
            Ok(()) => cleaned += 1,
            Err(error) => problem = problem.and(Err(error)),
        }
    }
    eviction::sweep(journal.root());
    problem.map(|()| cleaned)
}

/// The clock of leases and heartbeats: the same for all processes of a machine.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use gpreempt_stage::WorkFolder;

    use super::*;
    use crate::journal::{GpuChange, Journal};
    use crate::nvidia::change::NvidiaChange;
    use crate::process::{ProcessInfo, ProcessKey};

    /// A journal in a folder that is removed with the first value, and this process.
    fn journal(name: &str) -> (WorkFolder, Journal, ProcessKey) {
        let folder = WorkFolder::new(name).unwrap();
        let journal = Journal::at(folder.path("journal")).unwrap();
        (folder, journal, ProcessInfo::read(std::process::id()).unwrap().key)
    }

    fn record(process: ProcessKey) -> ProcessRecord {
        let change = GpuChange::Nvidia(NvidiaChange::Slice {
            client: 1,
            group: 2,
            original_us: 2048,
            set_us: 1,
        });
        ProcessRecord { process, changes: vec![change], until_ns: None }
    }

    #[test]
    fn the_undo_of_a_living_process_is_retried() {
        let (_folder, journal, process) = journal("patient");
        let held = journal.begin().unwrap().hold().unwrap().unwrap();
        held.journal().write(&record(process)).unwrap();
        let tries = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&tries);
        let mut undo_threads = UndoThreads::new(move |_: &ProcessRecord| {
            let is_early = counted.fetch_add(1, Ordering::SeqCst) < 3;
            if is_early { Err(UndoError::SilentDevice("a debugger")) } else { Ok(()) }
        });
        undo_patiently(&held, &mut undo_threads, 2).unwrap();
        assert_eq!(tries.load(Ordering::SeqCst), 4);
        // That of a dead process is not.
        held.journal().write(&record(ProcessKey { start_ticks: 0, ..process })).unwrap();
        let mut undo_threads =
            UndoThreads::new(|_: &ProcessRecord| Err(UndoError::SilentDevice("never")));
        assert!(undo_patiently(&held, &mut undo_threads, 2).is_err());
    }

    #[test]
    fn a_call_that_hangs_delays_no_other_process() {
        let (_folder, journal, process) = journal("hangs");
        let hanging = ProcessKey { pid: 1, ..process };
        // In one journal with it, and in a later one.
        let (first, second) = (journal.begin().unwrap(), journal.begin().unwrap());
        for key in [hanging, process] {
            first.write(&record(key)).unwrap();
        }
        second.write(&record(process)).unwrap();
        let (release, waits) = channel::<()>();
        let waits = Arc::new(std::sync::Mutex::new(waits));
        let tries = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&tries);
        let undo = move |record: &ProcessRecord| {
            if record.process == hanging {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = waits.lock().unwrap().recv();
            }
            Ok(())
        };
        assert!(clean_up(&journal, undo).is_err(), "one is left");
        assert_eq!(first.entries().unwrap(), [record(hanging)]);
        assert!(!second.folder().exists());
        assert_eq!(tries.load(Ordering::SeqCst), 1, "a running undo is not begun again");
        drop(release);
    }
}
