//! Undo: the journal, the keeper, and the restart of control after the keeper reverted everything.
//!
//! Every change is recorded in the journal before it is made. [`Recovery`] holds the daemon's
//! session in the journal and its keeper, the process that reverts the recorded changes when the
//! daemon dies or stalls. Without a keeper the daemon must not change anything.

pub(crate) mod hardware_check;
pub(crate) mod lock;
mod user_sessions;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use gpreempt_core::scheduler_loop::SchedulerLoop;
use gpreempt_device::change;
use gpreempt_device::hold_pages::HoldPages;
use gpreempt_device::journal::{Journal, OwnerJournal};
use gpreempt_device::keeper::{self, Keeper, StartError};
use gpreempt_device::process::ProcessKey;
use gpreempt_device::undo_log::UndoLog;

use super::Service;
use super::clients::request_error::RequestError;
use super::errors::{LoopError, RenewalError};
use super::memory::mover::ThreadMover;
use super::setup::controllers;
use hardware_check::{HardwareCheck, device_places};
use lock::{JournalLock, LockError, Owner, lock, system_owner, wait_for_users};

/// How long the daemon waits for keepers of dead owners to finish.
const WAIT_MAX: Duration = Duration::from_secs(5);
const WAIT_STEP: Duration = Duration::from_millis(10);
/// Attempts to start a keeper: a program that kills keepers may kill the next one as well.
const STARTS_MAX: u32 = 10;

#[derive(Debug)]
pub(crate) struct Recovery {
    journal: Journal,
    folder: PathBuf,
    undo_log: UndoLog,
    keeper: Keeper,
    holds: Option<Arc<HoldPages>>,
    /// Held for the daemon's life: two daemons with one journal would undo each other's changes.
    _lock: JournalLock,
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
    #[error("{0} and no new keeper could be started ({1}); without one no change is permitted")]
    NotReplaced(KeeperLoss, StartError),
    #[error(
        "the keeper (process {0}) does not answer and cannot be killed, so it was not replaced; \
         without a keeper no change is permitted"
    )]
    Unkillable(u32),
}

/// The result of the clean-up at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CleanupResult {
    /// Sessions without a keeper whose changes were undone.
    pub(crate) cleaned: usize,
    /// Why some changes could not be undone. A keeper tries again.
    pub(crate) problem: Option<String>,
    /// The service of another user that controls the GPUs as well: root's, or for root a private
    /// session that has not ended.
    pub(crate) other: Option<Owner>,
}

impl Recovery {
    /// Undoes what dead owners left, begins a session and starts its keeper. `folder` replaces the
    /// usual folder of the journal.
    pub(crate) fn start(
        folder: Option<&Path>,
        command: Option<&str>,
    ) -> Result<(Self, UndoLog, CleanupResult), LockError> {
        let journal = match folder {
            Some(folder) => Journal::at(folder.to_owned()),
            None => Journal::open(),
        }?;
        let lock = lock(&journal, &Owner::current(command)?)?;
        let other = match system_owner(&journal) {
            Some(owner) if command.is_some() => return Err(LockError::Private(owner)),
            Some(owner) => Some(owner),
            // No user can keep root from controlling the GPUs, with the daemon or with a command.
            None => wait_for_users(&journal),
        };
        wait_for_undo(&journal)?;
        // Held until the session has its keeper: a command that cleans up now would take the
        // session for one that was abandoned, and remove it.
        let _cleaning = journal.lock()?;
        let cleanup = CleanupResult { other, ..clean_up(&journal) };
        let session = journal.begin()?;
        // Without memory for the pages no GPU is held, and the rest works.
        let holds = HoldPages::new().ok();
        let folder = session.folder().to_owned();
        let keeper = start_keeper(&session, holds.as_deref()).map_err(io::Error::from)?;
        let undo_log = UndoLog::new(session).with_holds(holds.clone());
        let recovery =
            Self { journal, folder, undo_log: undo_log.clone(), keeper, holds, _lock: lock };
        Ok((recovery, undo_log, cleanup))
    }

    /// Reports to the keeper that the daemon runs. Without heartbeats the keeper undoes everything.
    pub(crate) fn heartbeat(&mut self) {
        self.keeper.beat();
    }

    /// Whether the daemon stalled for so long that the keeper undoes everything, or has done so.
    /// Call it before [`Self::heartbeat`].
    pub(crate) fn missed_deadline(&self) -> bool {
        self.keeper.missed_deadline()
    }

    /// Whether the keeper undid everything and ended, and with it the session.
    pub(crate) fn keeper_has_finished(&mut self) -> bool {
        self.keeper.has_finished()
    }

    /// Replaces a keeper that was killed or hangs. Returns how it was lost.
    ///
    /// # Errors
    /// If there is no new keeper. Then no process would undo the daemon's changes.
    pub(crate) fn check_keeper(&mut self) -> Result<Option<KeeperLoss>, KeeperError> {
        let loss = if self.keeper.has_died() {
            KeeperLoss::Killed
        } else if self.keeper.is_hung() {
            // It holds the session's lock, which the next keeper needs.
            if !self.keeper.end() {
                return Err(KeeperError::Unkillable(self.keeper.pid()));
            }
            KeeperLoss::Hung
        } else {
            return Ok(None);
        };
        let session = OwnerJournal::at(self.folder.clone());
        match start_keeper(&session, self.holds.as_deref()) {
            Ok(keeper) => self.keeper = keeper,
            Err(error) => return Err(KeeperError::NotReplaced(loss, error)),
        }
        Ok(Some(loss))
    }

    /// Begins another session after the keeper ended the last one. No change may be in force.
    fn replace_session(&mut self) -> io::Result<UndoLog> {
        let until = Instant::now() + WAIT_MAX;
        // A keeper that still undoes changes would undo those of the new session.
        while !self.keeper.has_died() && Instant::now() < until {
            std::thread::sleep(WAIT_STEP);
        }
        // A keeper that hangs undoes nothing; the clean-up below undoes what it left.
        if !self.keeper.has_died() {
            self.keeper.end();
        }
        let _cleaning = self.journal.lock()?;
        // Changes that cannot be undone have a keeper, and do not prevent a new session.
        let _ = clean_up(&self.journal);
        let session = self.journal.begin()?;
        self.keeper = start_keeper(&session, self.holds.as_deref())?;
        self.folder = session.folder().to_owned();
        self.undo_log = UndoLog::new(session).with_holds(self.holds.clone());
        Ok(self.undo_log.clone())
    }

    pub(crate) const fn undo_log(&self) -> &UndoLog {
        &self.undo_log
    }

    /// Refuses a suspension that the journal cannot record.
    pub(crate) fn check_journal(&self, what: impl FnOnce() -> String) -> Result<(), RequestError> {
        let probed = self.undo_log.probe();
        probed.map_err(|error| RequestError::Unrecorded { what: what(), error })
    }

    pub(crate) const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Whether another session has changes in a process.
    pub(crate) fn is_taken(&self, process: ProcessKey) -> bool {
        let others = self.journal.sessions().unwrap_or_default();
        let others = others.iter().filter(|session| session.folder() != self.folder);
        let mut entries = others.flat_map(|session| session.entries().unwrap_or_default());
        entries.any(|entry| entry.process == process)
    }
}

/// Undoes what dead owners left. A change that cannot be undone, for example because a debugger
/// traces the process, is given to a keeper: it must not prevent the daemon from starting.
fn clean_up(journal: &Journal) -> CleanupResult {
    match keeper::clean_up(journal, change::undo) {
        Ok(cleaned) => CleanupResult { cleaned, problem: None, other: None },
        Err(error) => {
            let problem = match keeper::hand_over(journal) {
                Ok(_) => format!("{error}; a keeper tries again"),
                Err(other) => format!("{error}, and no keeper could be started for it: {other}"),
            };
            CleanupResult { cleaned: 0, problem: Some(problem), other: None }
        }
    }
}

fn start_keeper(session: &OwnerJournal, holds: Option<&HoldPages>) -> Result<Keeper, StartError> {
    let until = Instant::now() + WAIT_MAX;
    let mut started = Keeper::start_with(session, holds);
    for _ in 1..STARTS_MAX {
        if started.is_ok() || Instant::now() >= until {
            break;
        }
        std::thread::sleep(WAIT_STEP);
        started = Keeper::start_with(session, holds);
    }
    started
}

/// Waits for keepers that undo the changes of killed owners. A keeper that undid such a change
/// after this daemon made the same one would revert it unnoticed.
fn wait_for_undo(journal: &Journal) -> io::Result<()> {
    let until = Instant::now() + WAIT_MAX;
    while Instant::now() < until {
        let sessions = journal.sessions()?;
        // A stopped keeper undoes nothing, so the daemon does not wait for it.
        sessions.iter().for_each(keeper::end_stopped_keeper);
        // A keeper that restores memory may wait for room; the daemon does not wait for it.
        let is_undone = |session: &OwnerJournal| {
            owner_lives(session) || !is_held(session) || session.has_only_evictions()
        };
        if sessions.iter().all(is_undone) {
            return Ok(());
        }
        std::thread::sleep(WAIT_STEP);
    }
    Ok(())
}

fn is_held(session: &OwnerJournal) -> bool {
    matches!(OwnerJournal::at(session.folder().to_owned()).hold(), Ok(None))
}

fn owner_lives(session: &OwnerJournal) -> bool {
    session.has_living_owner() == Some(true)
}

impl Service {
    /// Restarts control if the keeper has ended the session, or is about to.
    pub(crate) fn check_keeper_deadline(&mut self) -> Result<(), LoopError> {
        if self.recovery.missed_deadline() { self.restart_control() } else { Ok(()) }
    }

    /// Starts anew after a stall: the keeper undid everything, so the scheduler's state is wrong,
    /// and a device thread may have made a change since. The daemon reverts everything once more
    /// and replaces session, keeper, controllers and scheduler. Processes keep their settings.
    pub(crate) fn restart_control(&mut self) -> Result<(), LoopError> {
        self.telemetry.log.warn(
            "gpreemptd was stalled for more than 5 s and the keeper restored all GPU settings; \
             restarting control of all processes",
        );
        self.processes.table.forget_control();
        // A change that cannot be reverted stays in the journal, and its keeper tries again.
        let _ = self.devices.backends.release_all();
        Ok(self.replace_session()?)
    }

    fn replace_session(&mut self) -> Result<(), RenewalError> {
        let undo_log = self.recovery.replace_session()?;
        let config = *self.devices.scheduler().config();
        self.devices.driver = SchedulerLoop::new(config)?;
        let (rules, log) = (&self.processes.rules, &mut self.telemetry.log);
        self.devices.backends =
            controllers(&self.options, &rules.config, &undo_log, &self.devices.waker, log)?;
        let places = device_places(&self.options.devices, &self.devices.backends.kinds());
        let (journal, waker) = (self.recovery.journal().clone(), self.devices.waker.clone());
        let mover = Box::new(ThreadMover::new(undo_log.clone(), waker.clone()));
        self.memory.begin_anew(mover);
        self.hardware = HardwareCheck::start(places, journal, undo_log, waker)?;
        self.devices.queue_suspensions = Default::default();
        self.devices.queue_priorities = Default::default();
        self.telemetry.events = Default::default();
        self.telemetry.history = Default::default();
        self.processes.inspections.clear();
        self.processes.queue_all_users(&mut self.devices);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpreempt_device::process::ProcessInfo;

    use super::*;

    #[test]
    fn the_owner_of_a_session_is_in_its_name() {
        let session = |name: &str| OwnerJournal::at(Path::new("/run/gpreempt").join(name));
        assert_eq!(session("sockets").has_living_owner(), None);
        let own = ProcessInfo::read(std::process::id()).unwrap().key;
        assert!(owner_lives(&session(&format!("session-{}-0", own.pid))), "an earlier build");
        let named = |ticks: u64| session(&format!("session-{}-0-{ticks}", own.pid));
        assert!(owner_lives(&named(own.start_ticks)));
        assert!(!owner_lives(&named(own.start_ticks + 1)), "its pid was given to this process");
        assert!(!owner_lives(&session("session-4294967295-0")));
    }
}
