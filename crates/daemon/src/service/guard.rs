//! Whatever happens to us, everything is put back: the journal, our session in it, its keeper.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpreempt_device::act;
use gpreempt_device::hold_pages::HoldPages;
use gpreempt_device::journal::{Journal, Session};
use gpreempt_device::keeper::{self, Keeper};
use gpreempt_device::ledger::Ledger;
use gpreempt_device::process::{ProcessInfo, ProcessKey};

use super::lock::{Lock, LockError, Owner, lock, owner_elsewhere, wait_for_others};

/// How long it is waited for keepers of the dead to finish.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether they have.
const WAIT: Duration = Duration::from_millis(10);

/// How often a new keeper is tried.
const STARTS_MAX: u32 = 10;

/// Our session, and who looks after it.
#[derive(Debug)]
pub(super) struct Guard {
    journal: Journal,
    folder: PathBuf,
    keeper: Keeper,
    holds: Option<Arc<HoldPages>>,
    /// Held as long as we live: two daemons with one journal would undo each other's acts.
    _lock: Lock,
}

/// What was found at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Sessions that nobody looked after, and that are undone now.
    pub(super) cleaned: usize,
    /// Why some could not be undone. They have keepers now, which go on trying.
    pub(super) problem: Option<String>,
    /// A private session of another user that has not ended although this daemon controls the GPUs.
    pub(super) other: Option<Owner>,
}

impl Guard {
    /// Undoes what others left behind, begins a session and starts its keeper. The folder is the
    /// usual one unless another is given.
    pub(super) fn start(
        folder: Option<&Path>,
        command: Option<&str>,
    ) -> Result<(Self, Ledger, Found), LockError> {
        let journal = match folder {
            Some(folder) => Journal::at(folder.to_owned()),
            None => Journal::open(),
        }?;
        let lock = lock(&journal, &Owner::current(command)?)?;
        let other = match command {
            // A user cannot keep the system's daemon from starting.
            None => wait_for_others(&journal),
            Some(_) => match owner_elsewhere(&journal) {
                Some(other) => return Err(LockError::Private(other)),
                None => None,
            },
        };
        wait_for_the_dead(&journal)?;
        // Until our session has its keeper: a command that cleans up at this very moment would take
        // it for one that was left behind, and remove it.
        let _cleaning = journal.lock()?;
        let found = Found { other, ..clean_up(&journal) };
        let session = journal.begin()?;
        // Without memory for them nothing is held, and the rest works.
        let holds = HoldPages::new().ok();
        let folder = session.folder().to_owned();
        let keeper = start_keeper(&session, holds.as_deref())?;
        let ledger = Ledger::new(session).with_holds(holds.clone());
        let guard = Self { journal, folder, keeper, holds, _lock: lock };
        Ok((guard, ledger, found))
    }

    /// Says that we go on. A keeper that no longer hears that undoes everything.
    pub(super) fn beat(&mut self) {
        self.keeper.beat();
    }

    /// Whether we stood still for so long that the keeper undoes everything, or has done so. To be
    /// asked before [`Self::beat`].
    pub(super) fn was_left_alone(&self) -> bool {
        self.keeper.was_left_alone()
    }

    /// Whether the keeper undid everything and ended. Then the session is over.
    pub(super) fn has_given_up(&mut self) -> bool {
        self.keeper.has_given_up()
    }

    /// Starts another keeper if ours is gone. True if it was.
    ///
    /// # Errors
    /// If there is no new one. Then nobody would undo what we do, so it must not be done.
    pub(super) fn look_after_keeper(&mut self) -> io::Result<bool> {
        if !self.keeper.has_died() {
            return Ok(false);
        }
        self.keeper = start_keeper(&Session::at(self.folder.clone()), self.holds.as_deref())?;
        Ok(true)
    }

    /// Begins another session after the keeper ended the last one. Nothing may be in force.
    ///
    /// # Errors
    /// If there is no new session, or nobody to keep it. Then nothing must be done.
    pub(super) fn begin_again(&mut self) -> io::Result<Ledger> {
        let until = Instant::now() + WAIT_MAX;
        // It may still be busy; whatever it undoes later would be ours by then.
        while !self.keeper.has_died() && Instant::now() < until {
            std::thread::sleep(WAIT);
        }
        let _cleaning = self.journal.lock()?;
        // What cannot be undone has a keeper, and is no reason to do nothing.
        let _ = clean_up(&self.journal);
        let session = self.journal.begin()?;
        self.keeper = start_keeper(&session, self.holds.as_deref())?;
        self.folder = session.folder().to_owned();
        Ok(Ledger::new(session).with_holds(self.holds.clone()))
    }

    /// Where the journal is.
    pub(super) fn root(&self) -> &Path {
        self.journal.root()
    }

    /// Whether another command has changed something in a process.
    pub(super) fn is_taken(&self, process: ProcessKey) -> bool {
        let others = self.journal.sessions().unwrap_or_default();
        let others = others.iter().filter(|session| session.folder() != self.folder);
        let mut entries = others.flat_map(|session| session.entries().unwrap_or_default());
        entries.any(|entry| entry.process == process)
    }
}

/// Undoes what others left behind. What cannot be undone, for example because somebody traces the
/// process, is given to a keeper: it must not keep us from starting.
fn clean_up(journal: &Journal) -> Found {
    match keeper::clean_up(journal, act::undo) {
        Ok(cleaned) => Found { cleaned, problem: None, other: None },
        Err(error) => {
            let problem = match keeper::hand_over(journal) {
                Ok(_) => format!("{error}; a keeper goes on trying"),
                Err(other) => format!("{error}, and nobody goes on trying: {other}"),
            };
            Found { cleaned: 0, problem: Some(problem), other: None }
        }
    }
}

/// Whoever kills keepers may kill the next one before it is ready, so it is tried a few times.
fn start_keeper(session: &Session, holds: Option<&HoldPages>) -> io::Result<Keeper> {
    let mut started = Keeper::start_with(session, holds);
    for _ in 1..STARTS_MAX {
        if started.is_ok() {
            break;
        }
        std::thread::sleep(WAIT);
        started = Keeper::start_with(session, holds);
    }
    started
}

/// A keeper whose owner was killed is undoing things right now. If it undid them after we did them
/// again, we would not notice.
fn wait_for_the_dead(journal: &Journal) -> io::Result<()> {
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until {
        let sessions = journal.sessions()?;
        let is_undone = |session: &Session| owner_lives(session.folder()) || !is_held(session);
        if sessions.iter().all(is_undone) {
            return Ok(());
        }
        std::thread::sleep(WAIT);
    }
    Ok(())
}

fn is_held(session: &Session) -> bool {
    matches!(Session::at(session.folder().to_owned()).hold(), Ok(None))
}

/// Whether the process lives that began a session: its pid is part of the name.
fn owner_lives(folder: &Path) -> bool {
    let owner = owner_of(folder).and_then(|pid| ProcessInfo::read(pid).ok());
    owner.is_some_and(|owner| !owner.zombie)
}

fn owner_of(folder: &Path) -> Option<u32> {
    let name = folder.file_name()?.to_str()?;
    name.strip_prefix("session-")?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_session_is_in_its_name() {
        assert_eq!(owner_of(Path::new("/run/gpreempt/session-42-0")), Some(42));
        assert_eq!(owner_of(Path::new("/run/gpreempt/sockets")), None);
        let own = format!("/run/gpreempt/session-{}-0", std::process::id());
        assert!(owner_lives(Path::new(&own)));
        assert!(!owner_lives(Path::new("/run/gpreempt/session-4294967295-0")));
    }
}
