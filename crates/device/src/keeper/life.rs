//! The keeper's side: from its start to the undo, with nothing in between that can end it.
//!
//! ```text
//! start -> hold pages -> lock of the session -> "ready" -> wait for the owner's end -> undo -> end
//! ```
//! A step that fails is remembered or done without. Only a session that another keeper holds, or
//! that is gone, ends a keeper without an undo.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::undoing::Undoing;
use super::{PATIENT_RETRY, READY, RETRY, SILENCE_MAX, TRIES_MAX, monotonic_ns, undo_patiently};
use crate::act::UndoError;
use crate::hold_pages::HoldPages;
use crate::journal::{Entry, HeldSession, Session};

/// How often the keeper checks whether a hold has to be ended.
const HOLD_CHECK: Duration = Duration::from_millis(20);
/// How often it checks whether a lease has run out.
const LEASE_CHECK: Duration = Duration::from_millis(20);
/// How long a keeper whose owner lives waits for the lock. Other programs hold it for moments, to
/// see whether a session has a keeper.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// The keeper's whole life.
///
/// # Errors
/// If another keeper holds the session, or something could not be undone.
pub fn main(
    folder: &Path,
    holds: Option<&Path>,
    undo: impl Fn(&Entry) -> Result<(), UndoError> + Send + Sync + 'static,
) -> io::Result<()> {
    // A session of its own, so that a Ctrl-C for the owner is none for the keeper. It fails only
    // for the leader of a group, which has no group to leave.
    let _ = rustix::process::setsid();
    // A service manager or a logout ends owner and keeper alike, and then the keeper has work to
    // do: only the end of the pipe ends it. Without handlers it runs all the same.
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let pages = holds.map(HoldPages::open);
    silence_stderr();
    let mut owner = Owner::default();
    let held = take_session(folder, &mut owner)?;
    let mut undoing = Undoing::new(undo);
    let fitness = match &pages {
        Some(Err(error)) => format!("it has no hold pages: {error}"),
        Some(Ok(_)) | None => READY.to_owned(),
    };
    let pages = pages.and_then(Result::ok).map(Arc::new);
    let over = Arc::new(AtomicBool::new(false));
    let watched = pages.as_ref().map(|pages| watch_holds(Arc::clone(pages), Arc::clone(&over)));
    // Without a thread of their own, holds are looked after between other things.
    let inline = pages.as_ref().filter(|_| !matches!(watched, Some(Ok(()))));
    // An owner that is gone does not read this, and the pipe ends.
    let _ = writeln!(io::stdout(), "{fitness}").and_then(|()| io::stdout().flush());
    let wait = || owner.wait(&held, &mut undoing, inline.map(AsRef::as_ref));
    // A defect in the waiting is no reason not to undo.
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait))
        .unwrap_or_else(|_| Err(io::Error::other("the keeper failed while it waited")));
    over.store(true, Ordering::SeqCst);
    if let Some(pages) = &pages {
        pages.release_all();
    }
    undo_patiently(&held, &mut undoing, TRIES_MAX)?;
    match held.end() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    waited
}

/// What is printed on the descriptor of errors would be written into the hold pages, which the
/// owner passed there.
fn silence_stderr() {
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    // Without it there is nothing to print either: this is the only thing that prints unasked.
    std::panic::set_hook(Box::new(|_| {}));
}

/// Takes the session's lock. While its owner lives, another holder is given a moment; once the
/// owner is gone, whatever keeps the lock from being taken is waited for, because nothing else may
/// be left that undoes.
///
/// # Errors
/// If another program holds it, or the session is gone.
fn take_session(folder: &Path, owner: &mut Owner) -> io::Result<HeldSession> {
    let begin = Instant::now();
    let mut tries: u32 = 0;
    loop {
        let problem = match Session::at(folder.to_owned()).hold() {
            Ok(Some(held)) => {
                // So that the next program can end a keeper that is stopped and has no owner.
                let _ = held.sign();
                return Ok(held);
            }
            Ok(None) => io::Error::other("the session has a keeper already"),
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

/// Ends the holds of an owner that hangs, and all of them once it is gone. A thread of its own,
/// because that takes no call and must not wait for those that are made meanwhile; it runs until
/// the keeper ends, because an owner that was only slow may begin another hold.
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

/// What the keeper's input says of its owner.
#[derive(Debug, Default)]
struct Owner {
    /// When it beat last, if it ever did.
    heard: Option<Instant>,
    is_gone: bool,
    answers_at_once: bool,
}

impl Owner {
    /// Waits until the owner is gone or silent. Meanwhile answers its beats, and undoes what has
    /// outlived its lease.
    ///
    /// # Errors
    /// If the owner cannot be watched any more, which counts as its end.
    fn wait(
        &mut self,
        held: &HeldSession,
        undoing: &mut Undoing,
        pages: Option<&HoldPages>,
    ) -> io::Result<()> {
        while !self.is_gone {
            self.listen(LEASE_CHECK)?;
            if self.heard.is_some_and(|heard| heard.elapsed() > SILENCE_MAX) {
                break;
            }
            let now = monotonic_ns();
            if let Some(pages) = pages {
                pages.release_silent(now);
            }
            undoing.begin(held.session(), |entry| entry.until_ns.is_some_and(|until| until <= now));
            undoing.look(held.session());
        }
        Ok(())
    }

    /// Whether it is gone, without waiting.
    fn is_gone(&mut self) -> bool {
        self.is_gone = self.is_gone || self.listen(Duration::ZERO).is_err();
        self.is_gone
    }

    /// Waits for a beat or the end of the input, and answers the beat.
    fn listen(&mut self, at_most: Duration) -> io::Result<()> {
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
                self.heard = Some(Instant::now());
                self.answer();
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Tells the owner that its beat was heard. An owner that does not read must not block the
    /// keeper.
    fn answer(&mut self) {
        let stdout = rustix::stdio::stdout();
        self.answers_at_once = self.answers_at_once || ioctl_fionbio(stdout, true).is_ok();
        if self.answers_at_once {
            let _ = rustix::io::write(stdout, &[1]);
        }
    }
}
