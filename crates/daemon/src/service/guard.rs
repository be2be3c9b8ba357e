//! Whatever happens to us, everything is put back: the journal, our session in it, its keeper.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpreempt_device::act;
use gpreempt_device::journal::{Journal, Session};
use gpreempt_device::keeper::{self, Keeper};
use gpreempt_device::ledger::Ledger;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use rustix::fs::{FlockOperation, flock};

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
    /// Held as long as we live: two daemons with one journal would undo each other's acts.
    _lock: File,
}

/// What was found at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Sessions that nobody looked after, and that are undone now.
    pub(super) cleaned: usize,
}

impl Guard {
    /// Undoes what others left behind, begins a session and starts its keeper. The folder is the
    /// usual one unless another is given.
    pub(super) fn start(folder: Option<&Path>) -> io::Result<(Self, Ledger, Found)> {
        let journal = match folder {
            Some(folder) => Journal::at(folder.to_owned()),
            None => Journal::open(),
        }?;
        let lock = lock(&journal)?;
        wait_for_the_dead(&journal)?;
        let cleaned = keeper::clean_up(&journal, &mut act::undo)?;
        let session = journal.begin()?;
        let folder = session.folder().to_owned();
        let keeper = Keeper::start(&session)?;
        let guard = Self { journal, folder, keeper, _lock: lock };
        Ok((guard, Ledger::new(session), Found { cleaned }))
    }

    /// Says that we go on. A keeper that no longer hears that undoes everything.
    pub(super) fn beat(&mut self) {
        self.keeper.beat();
    }

    /// Starts another keeper if ours is gone. True if it was.
    ///
    /// # Errors
    /// If there is no new one. Then nobody would undo what we do, so it must not be done.
    pub(super) fn look_after_keeper(&mut self) -> io::Result<bool> {
        if !self.keeper.has_died() {
            return Ok(false);
        }
        let session = Session::at(self.folder.clone());
        // Whoever kills keepers may kill the next one before it is ready.
        let mut started = Keeper::start(&session);
        for _ in 1..STARTS_MAX {
            if started.is_ok() {
                break;
            }
            std::thread::sleep(WAIT);
            started = Keeper::start(&session);
        }
        self.keeper = started?;
        Ok(true)
    }

    /// Whether another command has changed something in a process.
    pub(super) fn is_taken(&self, process: ProcessKey) -> bool {
        let others = self.journal.sessions().unwrap_or_default();
        let others = others.iter().filter(|session| session.folder() != self.folder);
        let mut entries = others.flat_map(|session| session.entries().unwrap_or_default());
        entries.any(|entry| entry.process == process)
    }
}

/// The lock beside the sessions.
fn lock(journal: &Journal) -> io::Result<File> {
    let path = journal.root().join("gpreemptd.lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(io::Error::other(format!(
            "another gpreemptd keeps its journal in {}; stop that one first, or give another \
             folder with --state",
            journal.root().display()
        ))),
        Err(error) => Err(error.into()),
    }
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

    #[test]
    fn one_daemon_for_each_journal() {
        let root = std::env::temp_dir().join(format!("gpreempt-guard-{}", std::process::id()));
        let journal = Journal::at(root.clone()).unwrap();
        let first = lock(&journal).unwrap();
        let second = lock(&journal).unwrap_err().to_string();
        assert!(second.contains("another gpreemptd"), "{second}");
        drop(first);
        assert!(lock(&journal).is_ok());
        std::fs::remove_dir_all(root).unwrap();
    }
}
