//! Whatever happens to us, everything is put back: the journal, our session in it, its keeper.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpreempt_device::act;
use gpreempt_device::hold_pages::HoldPages;
use gpreempt_device::journal::{Journal, Session};
use gpreempt_device::keeper::{self, Keeper, StartError};
use gpreempt_device::ledger::Ledger;
use gpreempt_device::process::ProcessKey;

use super::lock::{Lock, LockError, Owner, lock, owner_elsewhere, wait_for_others};
use crate::service::clients::request_error::RequestError;

/// How long it is waited for keepers of the dead to finish.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// How often it is looked whether they have.
const WAIT: Duration = Duration::from_millis(10);

/// How often a new keeper is tried.
const STARTS_MAX: u32 = 10;

/// Our session, and who looks after it.
#[derive(Debug)]
pub(crate) struct Guard {
    journal: Journal,
    folder: PathBuf,
    ledger: Ledger,
    keeper: Keeper,
    holds: Option<Arc<HoldPages>>,
    /// Held as long as we live: two daemons with one journal would undo each other's acts.
    _lock: Lock,
}

/// How a keeper was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeeperLoss {
    Killed,
    /// It did not answer, so the daemon killed it.
    Hung,
}

impl fmt::Display for KeeperLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed => "the keeper was killed",
            Self::Hung => "the keeper did not answer and was killed",
        })
    }
}

/// Why the session has no keeper any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeeperError {
    #[error("{0} and there is no new one ({1}), so nothing may be changed")]
    NotReplaced(KeeperLoss, StartError),
    #[error(
        "the keeper (process {0}) does not answer and does not die, so there is no new one and \
         nothing may be changed"
    )]
    Unkillable(u32),
}

/// What was found at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Sessions that nobody looked after, and that are undone now.
    pub(crate) cleaned: usize,
    /// Why some could not be undone. They have keepers now, which go on trying.
    pub(crate) problem: Option<String>,
    /// A private session of another user that has not ended although this daemon controls the GPUs.
    pub(crate) other: Option<Owner>,
}

impl Guard {
    /// Undoes what others left behind, begins a session and starts its keeper. The folder is the
    /// usual one unless another is given.
    pub(crate) fn start(
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
        let keeper = start_keeper(&session, holds.as_deref()).map_err(io::Error::from)?;
        let ledger = Ledger::new(session).with_holds(holds.clone());
        let guard = Self { journal, folder, ledger: ledger.clone(), keeper, holds, _lock: lock };
        Ok((guard, ledger, found))
    }

    /// Says that we go on. A keeper that no longer hears that undoes everything.
    pub(crate) fn beat(&mut self) {
        self.keeper.beat();
    }

    /// Whether we stood still for so long that the keeper undoes everything, or has done so. To be
    /// asked before [`Self::beat`].
    pub(crate) fn was_left_alone(&self) -> bool {
        self.keeper.was_left_alone()
    }

    /// Whether the keeper undid everything and ended. Then the session is over.
    pub(crate) fn has_given_up(&mut self) -> bool {
        self.keeper.has_given_up()
    }

    /// Starts another keeper if this session's is gone or does not answer. Says which it was.
    ///
    /// # Errors
    /// If there is no new one. Then no process would undo what the daemon does, so it must not do
    /// anything.
    pub(crate) fn look_after_keeper(&mut self) -> Result<Option<KeeperLoss>, KeeperError> {
        let loss = if self.keeper.has_died() {
            KeeperLoss::Killed
        } else if self.keeper.is_hung() {
            // It holds the session's lock, so it has to go before another one can have that.
            if !self.keeper.end() {
                return Err(KeeperError::Unkillable(self.keeper.pid()));
            }
            KeeperLoss::Hung
        } else {
            return Ok(None);
        };
        let session = Session::at(self.folder.clone());
        match start_keeper(&session, self.holds.as_deref()) {
            Ok(keeper) => self.keeper = keeper,
            Err(error) => return Err(KeeperError::NotReplaced(loss, error)),
        }
        Ok(Some(loss))
    }

    /// Begins another session after the keeper ended the last one. Nothing may be in force.
    ///
    /// # Errors
    /// If there is no new session, or nobody to keep it. Then nothing must be done.
    pub(crate) fn begin_again(&mut self) -> io::Result<Ledger> {
        let until = Instant::now() + WAIT_MAX;
        // It may still be busy; what it undoes later would belong to the new session by then.
        while !self.keeper.has_died() && Instant::now() < until {
            std::thread::sleep(WAIT);
        }
        // One that hangs undoes nothing; what it leaves behind is undone below.
        if !self.keeper.has_died() {
            self.keeper.end();
        }
        let _cleaning = self.journal.lock()?;
        // What cannot be undone has a keeper, and is no reason to do nothing.
        let _ = clean_up(&self.journal);
        let session = self.journal.begin()?;
        self.keeper = start_keeper(&session, self.holds.as_deref())?;
        self.folder = session.folder().to_owned();
        self.ledger = Ledger::new(session).with_holds(self.holds.clone());
        Ok(self.ledger.clone())
    }

    /// What is in force in which process.
    pub(crate) const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Refuses a suspension that could not be recorded, and so would not be carried out.
    pub(crate) fn check_journal(&self, what: impl FnOnce() -> String) -> Result<(), RequestError> {
        let probed = self.ledger.probe();
        probed.map_err(|error| RequestError::Unrecorded { what: what(), error })
    }

    /// Every session's changes.
    pub(crate) const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Where the journal is.
    pub(crate) fn root(&self) -> &Path {
        self.journal.root()
    }

    /// Whether another command has changed something in a process.
    pub(crate) fn is_taken(&self, process: ProcessKey) -> bool {
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

/// A program that kills keepers may kill the next one before it is ready, so several are tried.
fn start_keeper(session: &Session, holds: Option<&HoldPages>) -> Result<Keeper, StartError> {
    let until = Instant::now() + WAIT_MAX;
    let mut started = Keeper::start_with(session, holds);
    for _ in 1..STARTS_MAX {
        if started.is_ok() || Instant::now() >= until {
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
        // A stopped keeper undoes nothing, so it is not waited for.
        sessions.iter().for_each(keeper::end_stopped_keeper);
        let is_undone = |session: &Session| owner_lives(session) || !is_held(session);
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

/// Whether the process lives that began a session.
fn owner_lives(session: &Session) -> bool {
    session.has_living_owner() == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::process::ProcessInfo;

    #[test]
    fn the_owner_of_a_session_is_in_its_name() {
        let session = |name: &str| Session::at(Path::new("/run/gpreempt").join(name));
        assert_eq!(session("sockets").has_living_owner(), None);
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        assert!(owner_lives(&session(&format!("session-{}-0", own.pid))), "an earlier build");
        let named = |ticks: u64| session(&format!("session-{}-0-{ticks}", own.pid));
        assert!(owner_lives(&named(own.start_ticks)));
        assert!(!owner_lives(&named(own.start_ticks + 1)), "its pid was given to this process");
        assert!(!owner_lives(&session("session-4294967295-0")));
    }
}
