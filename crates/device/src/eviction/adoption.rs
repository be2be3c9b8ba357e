//! Evictions that dead owners left, and how a new owner takes them over.
//!
//! The keeper of a dead owner restores what it evicted as soon as there is room. Until then a new
//! owner may take over the record: it writes its own, and removes the other one while it holds the
//! locks of the processes. The keeper's evictor finds no record and makes no further call.

use std::io;
use std::path::PathBuf;

use super::EvictTarget;
use super::change::EvictChange;
use super::target_lock::TargetLock;
use crate::change::ChangeError;
use crate::journal::{Journal, OwnerJournal};
use crate::process::ProcessKey;
use crate::undo_log::UndoLog;

/// A job that a dead owner left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftEviction {
    folder: PathBuf,
    change: EvictChange,
}

impl LeftEviction {
    /// Its processes. Some may have ended.
    pub fn processes(&self) -> Vec<EvictTarget> {
        let target = |member: &super::change::Member| EvictTarget {
            key: member.process,
            device: member.device.clone(),
        };
        self.change.members().iter().map(target).collect()
    }

    /// What they had on the GPU, or 0 if that is not known.
    pub fn bytes(&self) -> u64 {
        self.change.members().iter().map(|member| member.bytes).sum()
    }

    /// The UUID of their GPU, if it is known.
    pub fn gpu(&self) -> Option<String> {
        self.change.members().iter().find_map(|member| member.gpu.clone())
    }

    /// When it began, in seconds since 1970.
    pub const fn since(&self) -> u64 {
        self.change.since()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Ask again a second later, unless it is no longer in the list.
    #[error("its memory is moving")]
    Moving,
    #[error("it was restored, or another process took it over")]
    Gone,
    #[error("its lock cannot be taken: {0}")]
    Lock(io::Error),
    #[error(transparent)]
    Record(#[from] ChangeError),
}

/// The jobs of owners that have ended, each once. Reads files: not for the daemon's loop, except at
/// its start.
pub fn left_evictions(journal: &Journal) -> io::Result<Vec<LeftEviction>> {
    let mut found: Vec<LeftEviction> = Vec::new();
    for session in journal.sessions()? {
        if session.has_living_owner().unwrap_or(true) {
            continue;
        }
        for record in session.entries().unwrap_or_default() {
            let Some(change) = session.eviction_of(record.process) else { continue };
            let is_known = |known: &LeftEviction| known.change.members() == change.members();
            let lives = change.members().iter().any(|member| member.process.check().is_ok());
            if lives && !found.iter().any(is_known) {
                found.push(LeftEviction { folder: session.folder().to_owned(), change });
            }
        }
    }
    Ok(found)
}

/// Takes over a job. Returns its new record.
pub(super) fn adopt(undo_log: &UndoLog, left: &LeftEviction) -> Result<EvictChange, AdoptError> {
    let theirs = OwnerJournal::at(left.folder.clone());
    let mut processes: Vec<ProcessKey> =
        left.change.members().iter().map(|member| member.process).collect();
    processes.sort_unstable();
    let mut locks = Vec::new();
    for process in &processes {
        let lock = TargetLock::take(&left.folder, *process).map_err(AdoptError::Lock)?;
        locks.push(lock.ok_or(AdoptError::Moving)?);
    }
    if !processes.iter().any(|process| theirs.eviction_of(*process).is_some()) {
        return Err(AdoptError::Gone);
    }
    let (members, since) = (left.change.members().to_vec(), left.change.since());
    let change = EvictChange::Evict { journal: undo_log.folder(), members, since };
    for process in &processes {
        undo_log.record(*process, &change.clone().into())?;
    }
    for process in &processes {
        // One that stays is undone twice, which changes nothing.
        let _ = theirs.forget_eviction(*process);
    }
    locks.into_iter().for_each(TargetLock::release);
    Ok(change)
}
