//! The journal's record of an eviction, and its undo.
//!
//! The record of each process names all processes of the job, because all of them are restored
//! before any is unlocked. Any of the records is enough to undo the whole job, and undoing it twice
//! changes nothing: recovery follows the driver's state.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::EvictDevice;
use super::child::run_to_end;
use super::order::{Order, Outcome, Task};
use crate::change::{ChangeError, DeviceChange, Subject};
use crate::nvidia::rm::Handle;
use crate::process::ProcessKey;

/// One process of a job, and what is restored in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub process: ProcessKey,
    pub device: EvictDevice,
    /// What it had on the GPU, or 0 if that is not known.
    pub bytes: u64,
    /// The UUID of its GPU, where memory has to be free for it.
    pub gpu: Option<String>,
    /// How long its kernels were waited for, in milliseconds.
    pub lock_timeout_ms: u64,
    /// The time slices of its compute groups, which the driver forgets.
    pub slices: Vec<SliceBefore>,
}

/// The time slice of a channel group before the eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceBefore {
    pub client: Handle,
    pub group: Handle,
    pub slice_us: u64,
}

/// The memory of a process that is on the host, or moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum EvictChange {
    #[serde(rename = "evict")]
    Evict {
        /// The folder of the owner's journal, where the record was read or is written. Without a
        /// record in it, no evictor makes a call.
        #[serde(skip)]
        journal: PathBuf,
        members: Vec<Member>,
        /// When it began, in seconds since 1970.
        since: u64,
    },
}

/// The time between two tries of an undo that fails.
const RETRY: Duration = Duration::from_secs(1);

/// Whether an undo waits until the GPU has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    UntilRoom,
    None,
}

impl EvictChange {
    pub fn members(&self) -> &[Member] {
        let Self::Evict { members, .. } = self;
        members
    }

    pub const fn since(&self) -> u64 {
        let Self::Evict { since, .. } = self;
        *since
    }

    /// The same, of the journal in that folder.
    #[must_use]
    pub(crate) fn in_journal(self, folder: &Path) -> Self {
        let Self::Evict { members, since, .. } = self;
        let journal = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        Self::Evict { journal, members, since }
    }

    /// Restores and unlocks the processes of the job, as far as their driver states require it.
    pub(crate) fn recover(&self, pid: u32, patience: Patience) -> Result<(), ChangeError> {
        let Self::Evict { journal, members, .. } = self;
        let task = Task::Recover { is_patient: patience == Patience::UntilRoom };
        let order = Order { task, journal: Some(journal.clone()), members: members.clone() };
        let failed = |sentence| ChangeError::Evicted(pid, sentence);
        match run_to_end(&order).map_err(|error| failed(error.to_string()))? {
            Outcome::Done { .. } | Outcome::Gone => Ok(()),
            not @ (Outcome::NoRoom { .. }
            | Outcome::Lost { .. }
            | Outcome::Failed { .. }
            | Outcome::Stopped) => Err(failed(not.to_string())),
        }
    }
}

impl DeviceChange for EvictChange {
    /// Only an [`super::Evictor`] evicts; any process can undo it. Waits until there is room.
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ChangeError> {
        if !undo {
            return Err(ChangeError::ObjectGone(process.pid));
        }
        let result = self.recover(process.pid, Patience::UntilRoom);
        if result.is_err() {
            // The keeper tries again at once, and each try starts a program.
            std::thread::sleep(RETRY);
        }
        result
    }

    /// It does, but is undone last: that may take hours, and waits for no other change.
    fn is_stop(&self) -> bool {
        false
    }

    fn subject(&self) -> Subject {
        Subject { kind: 0, names: [0; 3] }
    }
}
