//! Whoever stops a process must not be the only one who can start it again.
//!
//! The keeper is a process of its own, started before anything is changed. It holds the lock of a
//! session and one end of a pipe whose other end only the owner has. When the owner dies, for
//! whatever reason, the pipe ends, and the keeper undoes what the session's journal says. It also
//! undoes what has outlived its lease. It keeps no descriptor of anybody's GPU meanwhile, because
//! that would keep a dead process's memory alive.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::journal::{Entry, HeldSession, Session};

/// The owner's side: while this lives, the keeper waits.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    /// Closed when this is dropped, or when we die.
    _alive: ChildStdin,
}

/// What the keeper says when it is ready.
const READY: &str = "ready";

/// How long the keeper waits before it tries again what did not work.
const RETRY: Duration = Duration::from_millis(20);
/// How often it tries.
const TRIES_MAX: u32 = 500;
/// How often it looks whether a lease has run out.
const LEASE_CHECK: Duration = Duration::from_millis(20);

impl Keeper {
    /// Starts a keeper for a session and waits until it holds it.
    ///
    /// # Errors
    /// If it cannot be started or does not get ready.
    pub fn start(session: &Session) -> io::Result<Self> {
        let (program, arguments) = program()?;
        let mut child = Command::new(program)
            .args(arguments)
            .arg(session.folder())
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
            return Err(io::Error::other("the keeper did not start; nothing was changed"));
        }
        Ok(Self { child, _alive: alive })
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
pub fn main(folder: &Path, undo: &mut dyn FnMut(&Entry) -> Result<(), String>) -> io::Result<()> {
    // A session of its own, so that a Ctrl-C for our owner is not one for us. It fails only for
    // whoever leads a group already, and then there is nothing to leave.
    let _ = rustix::process::setsid();
    let Some(held) = Session::at(folder.to_owned()).hold()? else {
        return Err(io::Error::other("the session has a keeper already"));
    };
    let mut out = io::stdout();
    writeln!(out, "{READY}")?;
    out.flush()?;
    wait_for_owner(&held, undo)?;
    undo_all(&held, undo)?;
    held.end()
}

/// Waits until the pipe ends. Meanwhile undoes what has outlived its lease.
fn wait_for_owner(
    held: &HeldSession,
    undo: &mut dyn FnMut(&Entry) -> Result<(), String>,
) -> io::Result<()> {
    let mut stdin = io::stdin();
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(LEASE_CHECK.subsec_nanos()) };
    loop {
        let ready = {
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            poll(&mut fds, Some(&timeout))? > 0
        };
        if ready && stdin.read(&mut [0; 64])? == 0 {
            return Ok(());
        }
        let now = monotonic_ns();
        for entry in held.session().entries()? {
            if entry.until_ns.is_some_and(|until| until <= now) && undo(&entry).is_ok() {
                held.session().forget(entry.process)?;
            }
        }
    }
}

/// Undoes everything a session did.
///
/// # Errors
/// If something could not be undone for so long that there is no hope.
pub fn undo_all(
    held: &HeldSession,
    undo: &mut dyn FnMut(&Entry) -> Result<(), String>,
) -> io::Result<()> {
    for _ in 0..TRIES_MAX {
        for entry in held.session().entries()? {
            if undo(&entry).is_ok() {
                held.session().forget(entry.process)?;
            }
        }
        if held.session().entries()?.is_empty() {
            return Ok(());
        }
        std::thread::sleep(RETRY);
    }
    Err(io::Error::other("some processes could not be put back as they were"))
}

/// Undoes what sessions without a keeper left behind. Returns how many there were.
///
/// # Errors
/// If the journal cannot be read.
pub fn clean_up(
    journal: &crate::journal::Journal,
    undo: &mut dyn FnMut(&Entry) -> Result<(), String>,
) -> io::Result<usize> {
    let mut cleaned = 0;
    for session in journal.sessions()? {
        if let Some(held) = session.hold()? {
            undo_all(&held, undo)?;
            held.end()?;
            cleaned += 1;
        }
    }
    Ok(cleaned)
}

/// The clock of leases: the same for all processes of a machine.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}
