//! The keeper: the process that undoes what its owner did, if the owner cannot.
//!
//! An owner (the daemon, a private session, a command) starts the keeper before it changes
//! anything. The keeper holds the lock of the owner's session and the read end of a pipe whose
//! write end only the owner has. When the owner dies, the pipe ends, and the keeper undoes what
//! the session's journal says. It also undoes what has outlived its lease. It keeps no descriptor
//! of a process's GPU meanwhile, because that would keep a dead process's memory alive.
//!
//! Both watch each other:
//!
//! ```text
//!   owner  -- beat, at most every 100 ms -->  keeper    silent for 5 s: undoes everything, ends
//!   owner  <--------- answer --------------   keeper    20 beats unanswered: killed and replaced
//! ```
//!
//! Nothing that fails in a keeper ends it before it has undone what it can: `life` has no early
//! return between its start and the undo.

mod life;
mod owner;
mod undoing;

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::act::UndoError;
use crate::journal::{Entry, HeldSession, Session};
use crate::process::Held;
pub use life::main;
pub use owner::{Keeper, StartError};
use undoing::Undoing;

/// What the keeper prints when it holds the session and can end every hold.
const READY: &str = "ready";

/// How long the keeper waits before it tries again what did not work.
const RETRY: Duration = Duration::from_millis(20);
/// How often the keeper tries at that pace: ten minutes.
const TRIES_MAX: u32 = 30_000;
/// How long it waits between tries when that was not enough.
const PATIENT_RETRY: Duration = Duration::from_secs(1);
/// How often a program tries that finds a session without a keeper.
const TRIES_CLEANING: u32 = 5;
/// How long a killed keeper is waited for: its end takes microseconds.
const KILL_WAIT: Duration = Duration::from_millis(200);
/// How long an owner that beats may be silent before the keeper undoes everything.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A keeper of its own beside our program, or our program in the role of one.
fn program() -> io::Result<(PathBuf, Option<&'static str>)> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("gpreempt-keeper");
    if beside.is_file() { Ok((beside, None)) } else { Ok((own, Some("keeper"))) }
}

/// Undoes everything a session did.
///
/// # Errors
/// If something could not be undone for so long that there is no hope.
fn undo_all(held: &HeldSession, undoing: &mut Undoing, tries: u32) -> io::Result<()> {
    for _ in 0..tries {
        undoing.begin(held.session(), |_| true);
        undoing.settle(held.session());
        match held.session().is_empty() {
            Ok(true) => return Ok(()),
            // Whoever removed the folder knows what there was to undo, and we do not.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Ok(false) | Err(_) => {}
        }
        std::thread::sleep(RETRY);
    }
    Err(io::Error::other(format!(
        "{}: some processes could not be put back as they were",
        held.session().folder().display()
    )))
}

/// The same, and goes on for as long as one of the processes is there: somebody may trace it for
/// days, and nobody else knows what was done to it.
///
/// # Errors
/// If something is left when they are gone, such as a file that nobody can read.
fn undo_patiently(held: &HeldSession, undoing: &mut Undoing, tries: u32) -> io::Result<()> {
    let mut result = undo_all(held, undoing, tries);
    let is_there = |entry: &Entry| entry.process.check().is_ok();
    // A folder that cannot be read now may be readable later.
    let is_any_there = |all: Vec<Entry>| all.iter().any(is_there);
    while result.is_err() && held.session().entries().map_or(true, is_any_there) {
        std::thread::sleep(PATIENT_RETRY);
        result = undo_all(held, undoing, 1);
    }
    result
}

/// Gives sessions without a keeper to one: something in them could not be undone. Returns how many.
/// Whoever calls this holds the journal's lock.
///
/// # Errors
/// If the journal cannot be read, or a keeper cannot be started.
pub fn hand_over(journal: &crate::journal::Journal) -> io::Result<usize> {
    let mut count = 0;
    for session in journal.sessions()? {
        let folder = session.folder().to_owned();
        // Let go of again at once, for the keeper.
        if !matches!(session.hold(), Ok(Some(_))) {
            continue;
        }
        let (program, arguments) = program()?;
        // Its owner is gone, and that is what a keeper without input takes it to be.
        let mut child = Command::new(program)
            .args(arguments)
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // A dead child would stay for ever if nobody waited for it.
        let thread = std::thread::Builder::new().name("gpreempt-reaper".to_owned());
        thread.spawn(move || {
            let _ = child.wait();
        })?;
        count += 1;
    }
    Ok(count)
}

/// Kills the keeper of a session whose owner is dead, if that keeper is stopped (`SIGSTOP`, a
/// debugger): it undoes nothing, and its lock keeps every other program from undoing. A keeper that
/// runs is left alone, because it may wait for a process that is traced, for days.
pub fn end_stopped_keeper(session: &Session) {
    if session.has_living_owner().unwrap_or(true) {
        return;
    }
    let Some(keeper) = session.keeper() else { return };
    let pid = i32::try_from(keeper.pid).ok().and_then(Pid::from_raw);
    let (Some(pid), Ok(held)) = (pid, Held::of(keeper)) else { return };
    if !keeper.is_stopped() || kill_process(pid, Signal::KILL).is_err() {
        return;
    }
    // Its lock is free when it has ended.
    let until = Instant::now() + KILL_WAIT;
    while held.lives() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Undoes what sessions without a keeper left behind. Returns how many there were.
///
/// A session that just began has no keeper yet. So whoever calls this holds the journal's lock, and
/// whoever begins a session holds it until there is a keeper.
///
/// # Errors
/// If the journal cannot be read.
pub fn clean_up(
    journal: &crate::journal::Journal,
    undo: impl Fn(&Entry) -> Result<(), UndoError> + Clone + Send + Sync + 'static,
) -> io::Result<usize> {
    let mut cleaned = 0;
    let mut problem = Ok(());
    let all = journal.sessions()?;
    all.iter().for_each(end_stopped_keeper);
    // One that ended meanwhile needs nothing.
    let sessions = all.into_iter().filter_map(|session| session.hold().ok()?);
    let begin = |held: HeldSession| {
        let mut undoing = Undoing::new(undo.clone());
        undoing.begin(held.session(), |_| true);
        (held, undoing)
    };
    // All at once: one that cannot be undone is no reason to leave the others as they are.
    let begun: Vec<(HeldSession, Undoing)> = sessions.map(begin).collect();
    for (held, mut undoing) in begun {
        let undone = undo_all(&held, &mut undoing, TRIES_CLEANING);
        if undone.is_err() && undoing.is_busy() {
            // Whoever is at it may act much later, and nobody else may control its process before.
            let thread = std::thread::Builder::new().name("gpreempt-undoing".to_owned());
            let _ = thread.spawn(move || {
                let _ = undo_patiently(&held, &mut undoing, 1).and_then(|()| held.end());
            });
            problem = problem.and(undone);
            continue;
        }
        match undone.and_then(|()| held.end()) {
            Ok(()) => cleaned += 1,
            Err(error) => problem = problem.and(Err(error)),
        }
    }
    problem.map(|()| cleaned)
}

/// The clock of leases: the same for all processes of a machine.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests;
