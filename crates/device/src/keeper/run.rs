//! The keeper process, from its start to the undo, with nothing in between that can end it.
//!
//! ```text
//! start -> hold pages -> lock of the journal -> "ready" -> wait for the owner's end -> undo ->
//! exit
//! ```
//! A step that fails is reported or skipped. Only a journal that another keeper has locked, or that
//! no longer exists, ends a keeper without an undo.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::undo_threads::UndoThreads;
use super::{PATIENT_RETRY, READY, RETRY, SILENCE_MAX, TRIES_MAX, monotonic_ns, undo_patiently};
use crate::change::UndoError;
use crate::hold_pages::HoldPages;
use crate::journal::{LockedJournal, OwnerJournal, ProcessRecord};

const HOLD_CHECK: Duration = Duration::from_millis(20);
const LEASE_CHECK: Duration = Duration::from_millis(20);
/// How long a keeper whose owner lives waits for the lock. Other programs take it briefly, to check
/// whether a journal has a keeper.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// Runs the keeper.
pub fn main(
    folder: &Path,
    holds: Option<&Path>,
    undo: impl Fn(&ProcessRecord) -> Result<(), UndoError> + Send + Sync + 'static,
) -> io::Result<()> {
    // A process session of its own, so that Ctrl-C for the owner does not reach the keeper. It
    // fails only for the leader of a process group.
    let _ = rustix::process::setsid();
    // A service manager or a logout signals owner and keeper alike, and then the keeper has to
    // revert changes: only the end of the pipe ends it. It runs even without handlers.
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let pages = holds.map(HoldPages::open);
    silence_stderr();
    let mut owner = OwnerPipe::default();
    let held = take_journal(folder, &mut owner)?;
    let mut undo_threads = UndoThreads::new(undo);
    let readiness = match &pages {
        Some(Err(error)) => format!("it has no hold pages: {error}"),
        Some(Ok(_)) | None => READY.to_owned(),
    };
    let pages = pages.and_then(Result::ok).map(Arc::new);
    let over = Arc::new(AtomicBool::new(false));
    let watched = pages.as_ref().map(|pages| watch_holds(Arc::clone(pages), Arc::clone(&over)));
    // Without a thread, the loop below ends holds.
    let inline = pages.as_ref().filter(|_| !matches!(watched, Some(Ok(()))));
    // A dead owner does not read this; then the pipe ends.
    let _ = writeln!(io::stdout(), "{readiness}").and_then(|()| io::stdout().flush());
    let wait = || owner.wait(&held, &mut undo_threads, inline.map(AsRef::as_ref));
    // A panic while waiting must not prevent the undo.
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait))
        .unwrap_or_else(|_| Err(io::Error::other("the keeper failed while it waited")));
    over.store(true, Ordering::SeqCst);
    if let Some(pages) = &pages {
        pages.release_all();
    }
    undo_patiently(&held, &mut undo_threads, TRIES_MAX)?;
    match held.end() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    waited
}

/// Redirects standard error: the owner passed the hold pages there, and messages would be written
/// into them.
fn silence_stderr() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    // The panic message is the only output to standard error.
    std::panic::set_hook(Box::new(|_| {}));
}

/// Takes the journal's lock. While the owner lives, the keeper waits for another holder for at most
/// [`LOCK_WAIT`]; once the owner is dead, it waits without limit, because no other process may be
/// left that reverts the changes.
fn take_journal(folder: &Path, owner: &mut OwnerPipe) -> io::Result<LockedJournal> {
    let begin = Instant::now();
    let mut tries: u32 = 0;
    loop {
        let problem = match OwnerJournal::at(folder.to_owned()).hold() {
            Ok(Some(held)) => {
                // With this, the next program can kill this keeper if it is stopped.
                let _ = held.sign();
                return Ok(held);
            }
            Ok(None) => io::Error::other("the journal has a keeper already"),
            Err(error) => error,
        };
        if problem.kind() == io::ErrorKind::NotFound
            || begin.elapsed() > LOCK_WAIT && !owner.is_gone()
        {
            return Err(problem);
        }
        tries = tries.saturating_add(1);
        std::thread::sleep(if tries < TRIES_MAX { RETRY } else { PATIENT_RETRY });
    }
}

/// Ends the holds of an owner that hangs, and all of them once it is dead. In a thread of its own,
/// because that takes no call and must not wait for undo calls; it runs until the keeper ends,
/// because an owner that was only slow may begin another hold.
fn watch_holds(pages: Arc<HoldPages>, over: Arc<AtomicBool>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("gpreempt-holds".to_owned());
    thread.spawn(move || {
        loop {
            if over.load(Ordering::SeqCst) {
                pages.release_all();
            } else {
                pages.release_silent(monotonic_ns());
            }
            std::thread::sleep(HOLD_CHECK);
        }
    })?;
    Ok(())
}

/// The keeper's standard input, whose other end the owner has.
#[derive(Debug, Default)]
struct OwnerPipe {
    /// When the last heartbeat came, if one did.
    last_heartbeat: Option<Instant>,
    is_gone: bool,
    answers_at_once: bool,
}

impl OwnerPipe {
    /// Waits until the owner is dead, stalled, or can no longer be watched. Meanwhile answers its
    /// heartbeats, and reverts changes whose lease has expired.
    fn wait(
        &mut self,
        held: &LockedJournal,
        undo_threads: &mut UndoThreads,
        pages: Option<&HoldPages>,
    ) -> io::Result<()> {
        while !self.is_gone {
            self.receive(LEASE_CHECK)?;
            if self.last_heartbeat.is_some_and(|at| at.elapsed() > SILENCE_MAX) {
                break;
            }
            let now = monotonic_ns();
            if let Some(pages) = pages {
                pages.release_silent(now);
            }
            undo_threads
                .begin(held.journal(), |record| record.until_ns.is_some_and(|until| until <= now));
            undo_threads.take_results(held.journal());
        }
        Ok(())
    }

    /// Whether the owner is dead, without waiting.
    fn is_gone(&mut self) -> bool {
        self.is_gone = self.is_gone || self.receive(Duration::ZERO).is_err();
        self.is_gone
    }

    /// Waits for a heartbeat, which it answers, or the end of the input.
    fn receive(&mut self, at_most: Duration) -> io::Result<()> {
        let stdin = rustix::stdio::stdin();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::io::read(stdin, &mut [0_u8; 64]) {
            Ok(0) => self.is_gone = true,
            Ok(_) => {
                self.last_heartbeat = Some(Instant::now());
                self.answer();
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Answers a heartbeat. An owner that does not read must not block the keeper.
    fn answer(&mut self) {
        let stdout = rustix::stdio::stdout();
        self.answers_at_once = self.answers_at_once || ioctl_fionbio(stdout, true).is_ok();
        if self.answers_at_once {
            let _ = rustix::io::write(stdout, &[1]);
        }
    }
}
