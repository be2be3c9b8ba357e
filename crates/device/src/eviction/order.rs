//! What an owner and the evictor program say to each other: one JSON object per line.
//!
//! The owner writes orders to the program's standard input; its end means that the owner has ended.
//! The program answers an order with [`Line::Step`]s and one [`Line::End`].

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::change::Member;
use super::{CheckpointState, Step};
use crate::process::ProcessKey;

/// Longer than an order or an answer about any tree.
pub(crate) const LINE_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) task: Task,
    /// The folder of the owner's journal, in which the members must have records.
    pub(crate) journal: Option<PathBuf>,
    pub(crate) members: Vec<Member>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Task {
    Evict,
    /// Restores and unlocks from any state, then removes the records. If patient, it waits for
    /// room.
    Recover {
        is_patient: bool,
    },
    /// Reads the driver's states.
    State,
    /// Loads NVIDIA's library.
    Probe,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Line {
    Step { step: Step },
    State { process: ProcessKey, state: Result<CheckpointState, String> },
    End { outcome: Outcome },
}

/// How an order ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "snake_case")]
pub(crate) enum Outcome {
    Done {
        /// What was moved, or 0 if that is not known.
        bytes: u64,
    },
    /// The GPU has not enough room; all members are still evicted.
    NoRoom { needed: u64, free: u64 },
    /// The members have ended.
    Gone,
    /// A process can never be restored, and has to be ended.
    Lost { sentence: String },
    /// `is_undone`: nothing is left to undo.
    Failed { sentence: String, is_undone: bool },
    /// The owner has ended, or another process has taken the records: no call was made since.
    Stopped,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match self {
            Self::Done { .. } => f.write_str("it was done"),
            Self::NoRoom { needed, free } => write!(
                f,
                "the GPU has no room for its memory ({} MiB needed, {} MiB free); it is restored \
                 when other programs give memory back",
                mib(*needed),
                mib(*free)
            ),
            Self::Gone => f.write_str("it has ended"),
            Self::Failed { sentence, .. } | Self::Lost { sentence } => f.write_str(sentence),
            Self::Stopped => f.write_str("another gpreempt process restores it"),
        }
    }
}
