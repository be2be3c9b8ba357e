//! For programs that take a process off the emulated GPU and bring it back, as NVIDIA's driver
//! does: lock, checkpoint, restore, unlock.
//!
//! A step that began completes although its caller's connection ends, unless the process ends.
//! Root and the emulator's own user may do this to every process, other users to their own.

use std::path::Path;

use gpreempt_core::time::Duration;

use super::connection::Connection;
use super::{CheckpointInfo, EmuError, Reply, Request, Role};

/// How long the emulator may take for what it does at once.
const ANSWER_MAX: Duration = Duration::from_millis(5_000);
/// How long a step may take: no limit, apart from the one that [`Checkpoints::lock`] gets.
const STEP_MAX: Duration = Duration::from_nanos(u64::MAX);

/// A connection for steps. Steps of several processes at once need one for each.
#[derive(Debug)]
pub struct Checkpoints {
    connection: Connection,
    instance: u64,
}

impl Checkpoints {
    /// Connects. Every user may.
    pub fn connect(path: &Path) -> Result<Self, EmuError> {
        let mut connection = Connection::connect(path)?;
        let hello = Request::Hello(Role::Checkpointer);
        let (Reply::Welcome { instance, .. }, _) = connection.ask(&hello, ANSWER_MAX)? else {
            return Err(EmuError::UnexpectedReply);
        };
        Ok(Self { connection, instance })
    }

    /// Differs between emulators.
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// The state of a process, and where its memory is.
    pub fn state(&mut self, pid: u32) -> Result<CheckpointInfo, EmuError> {
        match self.connection.ask(&Request::CheckpointState(pid), ANSWER_MAX)? {
            (Reply::CheckpointState(info), _) => Ok(info),
            _ => Err(EmuError::UnexpectedReply),
        }
    }

    /// Waits until the running kernels of a process have finished, and starts no more. After the
    /// timeout the process continues and the call is refused with
    /// [`NotReady`](super::Refusal::NotReady); without one it waits for as long as it takes.
    pub fn lock(&mut self, pid: u32, timeout: Option<Duration>) -> Result<(), EmuError> {
        self.connection.expect_done(&Request::Lock { pid, timeout }, STEP_MAX)
    }

    /// Moves the memory of a locked process to the host.
    pub fn checkpoint(&mut self, pid: u32) -> Result<(), EmuError> {
        self.connection.expect_done(&Request::Checkpoint(pid), STEP_MAX)
    }

    /// Moves the memory of a checkpointed process back, if there is room.
    pub fn restore(&mut self, pid: u32) -> Result<(), EmuError> {
        self.connection.expect_done(&Request::Restore(pid), STEP_MAX)
    }

    /// Lets a locked process run.
    pub fn unlock(&mut self, pid: u32) -> Result<(), EmuError> {
        self.connection.expect_done(&Request::Unlock(pid), STEP_MAX)
    }
}
