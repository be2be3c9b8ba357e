//! What is refused before anything is touched.

use super::child::run_with_lines;
use super::host_memory::{self, NoHostMemory};
use super::order::{Line, Order, Outcome, Task};
use super::{CheckpointState, EvictTarget, measure};
use crate::process::ProcessError;

/// Why a process cannot be evicted.
#[derive(Debug, thiserror::Error)]
pub enum EvictRefusal {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(
        "process {0} is stopped (SIGSTOP or a debugger), so the driver cannot reach it; \
             continue it first: kill -CONT {0}"
    )]
    Stopped(u32),
    #[error("process {pid}: {sentence}")]
    Device { pid: u32, sentence: String },
    #[error("process {pid} is not evicted: {source}")]
    HostMemory { pid: u32, source: NoHostMemory },
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why the driver's state of a process is not known.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the evictor cannot be started: {0}")]
    Start(#[from] std::io::Error),
    #[error("the driver's state of process {pid} cannot be read: {sentence}")]
    Unknown { pid: u32, sentence: String },
}

/// Whether the memory of a process can be evicted now: `bytes`, or 0 if that is not known. Changes
/// nothing. May block, so it is not for the daemon's loop.
pub fn check(target: &EvictTarget, bytes: u64) -> Result<(), EvictRefusal> {
    let (key, pid) = (target.key, target.key.pid);
    key.check()?;
    if key.is_stopped() {
        return Err(EvictRefusal::Stopped(pid));
    }
    host_memory::check(key, bytes).map_err(|source| EvictRefusal::HostMemory { pid, source })?;
    let refuse = |sentence: String| EvictRefusal::Device { pid, sentence };
    match state(target)? {
        CheckpointState::Running => Ok(()),
        CheckpointState::Locked | CheckpointState::Checkpointed => {
            Err(refuse("it is evicted already, by another program; restore it there".to_owned()))
        }
        CheckpointState::Failed => {
            Err(refuse("the driver lost its GPU memory in an eviction; end it".to_owned()))
        }
    }
}

/// The driver's state of a process, from an evictor program. May block.
pub fn state(target: &EvictTarget) -> Result<CheckpointState, StateError> {
    let pid = target.key.pid;
    let unknown = |sentence: String| StateError::Unknown { pid, sentence };
    let order =
        Order { task: Task::State, journal: None, members: vec![measure::unmeasured(target)] };
    let mut answer = None;
    let outcome = run_with_lines(&order, |line| {
        if let Line::State { state, .. } = line {
            answer = Some(state);
        }
    })?;
    match (answer, outcome) {
        (Some(state), _) => state.map_err(unknown),
        (None, Outcome::Failed { sentence, .. }) => Err(unknown(sentence)),
        (None, _) => Err(unknown("the evictor did not tell".to_owned())),
    }
}
