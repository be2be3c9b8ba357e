//! Whoever stops a process must not be the only one who can start it again.
//!
//! The keeper is a process of its own, started before anything is changed. It holds the lock of a
//! session and one end of a pipe whose other end only the owner has. When the owner dies, for
//! whatever reason, the pipe ends, and the keeper undoes what the session's journal says. It also
//! undoes what has outlived its lease. It keeps no descriptor of anybody's GPU meanwhile, because
//! that would keep a dead process's memory alive.

mod undoing;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::act::UndoError;
use crate::hold_pages::HoldPages;
use crate::journal::{Entry, HeldSession, Session};
use undoing::Undoing;

/// The owner's side: while this lives, the keeper waits.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    /// Closed when this is dropped, or when we die.
    alive: ChildStdin,
    /// When we last said that we go on.
    beaten: Option<Instant>,
}

/// What the keeper says when it is ready.
const READY: &str = "ready";

/// How long the keeper waits before it tries again what did not work.
const RETRY: Duration = Duration::from_millis(20);
/// How often the keeper tries: it has nothing else to do, and somebody may stand still.
const TRIES_MAX: u32 = 30_000;
/// How long it waits between tries when that was not enough.
const PATIENT_RETRY: Duration = Duration::from_secs(1);
/// How often others try, who find something left behind.
const TRIES_CLEANING: u32 = 5;
/// How often an owner says that it goes on, at the most.
const BEAT: Duration = Duration::from_millis(100);
/// How long an owner that says so may be silent.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How often it looks whether a hold has to be ended.
const HOLD_CHECK: Duration = Duration::from_millis(20);
/// How often it looks whether a lease has run out.
const LEASE_CHECK: Duration = Duration::from_millis(20);

impl Keeper {
    /// Starts a keeper for a session and waits until it holds it.
    ///
    /// # Errors
    /// If it cannot be started or does not get ready.
    pub fn start(session: &Session) -> io::Result<Self> {
        Self::start_with(session, None)
    }

    /// The same, for an owner that holds devices: the keeper can end every hold.
    ///
    /// # Errors
    /// If it cannot be started or does not get ready.
    pub fn start_with(session: &Session, holds: Option<&HoldPages>) -> io::Result<Self> {
        let (program, arguments) = program()?;
        let mut child = Command::new(program)
            .args(arguments)
            .arg(session.folder())
            .args(holds.map(HoldPages::path))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (Some(alive), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("the keeper has no pipes"));
        };
        let mut line = String::new();
        BufReader::new(answers).read_line(&mut line)?;
        if line.trim() != READY {
            // Nobody else waits for it, and a dead child would stay for ever.
            let _ = child.kill();
            let _ = child.wait();
            return Err(io::Error::other("the keeper did not start; nothing was changed"));
        }
        Ok(Self { child, alive, beaten: None })
    }

    /// Says that we are not only alive but go on. From the first time on, a keeper that hears
    /// nothing for [`SILENCE_MAX`] undoes everything and ends: whoever is stopped, or waits for
    /// something, cannot keep others stopped.
    pub fn beat(&mut self) {
        if self.beaten.is_none_or(|beaten| beaten.elapsed() >= BEAT) {
            self.beaten = Some(Instant::now());
            // A keeper that is gone is noticed by `has_died`.
            let _ = self.alive.write(&[1]);
        }
    }

    /// Whether we have been silent for longer than a keeper waits: then it undoes everything, or
    /// has done so. Ask before the next beat.
    pub fn was_left_alone(&self) -> bool {
        self.beaten.is_some_and(|beaten| beaten.elapsed() > SILENCE_MAX)
    }

    /// Whether it has ended by itself, which it does only after it undid everything, as opposed to
    /// having been killed.
    pub fn has_given_up(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(status)) if status.code().is_some())
    }

    /// Whether it is gone, so that nobody would undo what we do. Then stop doing it.
    pub fn has_died(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

/// A keeper of its own beside our program, or our program in the role of one.
fn program() -> io::Result<(PathBuf, Option<&'static str>)> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("gpreempt-keeper");
    if beside.is_file() { Ok((beside, None)) } else { Ok((own, Some("keeper"))) }
}

/// The keeper's whole life.
///
/// # Errors
/// If the session is held by somebody else, or something could not be undone.
pub fn main(
    folder: &Path,
    holds: Option<&Path>,
    undo: impl Fn(&Entry) -> Result<(), UndoError> + Send + Sync + 'static,
) -> io::Result<()> {
    // A session of its own, so that a Ctrl-C for our owner is not one for us. It fails only for
    // whoever leads a group already, and then there is nothing to leave.
    let _ = rustix::process::setsid();
    // Whoever ends everything at once (a service manager, a logout) ends our owner too, and then we
    // have work to do: the end of the pipe is the only thing that ends us.
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let Some(held) = Session::at(folder.to_owned()).hold()? else {
        return Err(io::Error::other("the session has a keeper already"));
    };
    let over = Arc::new(AtomicBool::new(false));
    let holds = holds.map(HoldPages::open).transpose()?.map(Arc::new);
    if let Some(holds) = &holds {
        watch_holds(Arc::clone(holds), Arc::clone(&over))?;
    }
    let mut out = io::stdout();
    writeln!(out, "{READY}")?;
    out.flush()?;
    // Whatever happened to the waiting, what was done has to be undone.
    let mut undoing = Undoing::new(undo);
    let waited = wait_for_owner(&held, &mut undoing);
    over.store(true, Ordering::SeqCst);
    if let Some(holds) = &holds {
        holds.release_all();
    }
    undo_patiently(&held, &mut undoing, TRIES_MAX)?;
    match held.end() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    waited
}

/// Ends the holds of an owner that stands still, and all of them once it is over. A thread of its
/// own, because that takes no call and must not wait for those that are made meanwhile; it goes on
/// until the keeper ends, because an owner that was only slow may begin another hold.
fn watch_holds(holds: Arc<HoldPages>, over: Arc<AtomicBool>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("gpreempt-holds".to_owned());
    thread.spawn(move || {
        loop {
            if over.load(Ordering::SeqCst) {
                holds.release_all();
            } else {
                holds.release_silent(monotonic_ns());
            }
            std::thread::sleep(HOLD_CHECK);
        }
    })?;
    Ok(())
}

/// Waits until the pipe ends. Meanwhile undoes what has outlived its lease.
fn wait_for_owner(held: &HeldSession, undoing: &mut Undoing) -> io::Result<()> {
    let mut stdin = io::stdin();
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LEASE_CHECK.subsec_nanos()) };
    let mut heard = None;
    loop {
        let ready = {
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut fds, Some(&timeout)) {
                Ok(ready) => ready > 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(error) => return Err(error.into()),
            }
        };
        if ready {
            if stdin.read(&mut [0; 64])? == 0 {
                return Ok(());
            }
            heard = Some(Instant::now());
        }
        if heard.is_some_and(|heard: Instant| heard.elapsed() > SILENCE_MAX) {
            return Ok(());
        }
        let now = monotonic_ns();
        undoing.begin(held.session(), |entry| entry.until_ns.is_some_and(|until| until <= now));
        undoing.look(held.session());
    }
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
    while result.is_err() && held.session().entries().is_ok_and(|all| all.iter().any(is_there)) {
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
    // One that ended meanwhile needs nothing.
    let sessions = journal.sessions()?.into_iter().filter_map(|session| session.hold().ok()?);
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
