//! Why a daemon ended: typed errors inside the service, one sentence and an exit code outside.

use std::fmt;
use std::io;

use gpreempt_core::config::ConfigError;
use gpreempt_device::registry::RegistryError;

use super::clients::sessions::ListenError;
use super::setup::SocketPathError;
use super::telemetry::metrics_server::MetricsError;
use super::undo::KeeperError;
use super::undo::lock::{LockError, Owner};
use crate::config::LoadError;

/// Why a daemon could not start or continue, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The arguments or the configuration are invalid; nothing was changed.
    Input(String),
    /// An operation failed. All changes are undone.
    Work(String),
}

/// Why a daemon could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Config(#[from] LoadError),
    #[error(transparent)]
    SocketPath(#[from] SocketPathError),
    #[error(transparent)]
    System(#[from] io::Error),
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The journal is locked. For a command that is a mistake of its user, not a failure.
    #[error("{error}")]
    Lock { error: LockError, is_command: bool },
    #[error(transparent)]
    Controllers(#[from] RegistryError),
    #[error(transparent)]
    Scheduler(#[from] ConfigError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
}

/// Why the loop cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoopError {
    #[error(transparent)]
    Wait(io::Error),
    /// A private session of a user ends when root begins to control the GPUs.
    #[error("{0} was started and controls the GPUs now; all changes of this session were undone")]
    RootControls(Owner),
    #[error(transparent)]
    NoKeeper(#[from] KeeperError),
    #[error(
        "the keeper restored all GPU settings and no new session could be started ({0}); without \
         one no change is permitted"
    )]
    NoSession(#[from] RenewalError),
    #[error("some GPU settings could not be restored; the keeper tries again: {0}")]
    NotReleased(String),
}

/// Why no session could be started after the keeper ended the last one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    #[error(transparent)]
    Journal(#[from] io::Error),
    #[error(transparent)]
    Scheduler(#[from] ConfigError),
    #[error(transparent)]
    Controllers(#[from] RegistryError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Input(sentence) | Self::Work(sentence)) = self;
        f.write_str(sentence)
    }
}

impl std::error::Error for Failure {}

impl From<String> for Failure {
    fn from(sentence: String) -> Self {
        Self::Work(sentence)
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let sentence = error.to_string();
        match error {
            StartError::Config(_) | StartError::SocketPath(_) => Self::Input(sentence),
            StartError::Lock {
                error: LockError::Private(_) | LockError::Daemon { .. } | LockError::Unnamed(_),
                is_command: true,
            } => Self::Input(sentence),
            StartError::System(_)
            | StartError::Listen(_)
            | StartError::Lock { .. }
            | StartError::Controllers(_)
            | StartError::Scheduler(_)
            | StartError::Metrics(_) => Self::Work(sentence),
        }
    }
}

impl From<LoopError> for Failure {
    fn from(error: LoopError) -> Self {
        Self::Work(error.to_string())
    }
}
