//! What can go wrong before a test or a measurement has begun to check anything.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use gpreempt_wire::client::ClientError;
use gpreempt_wire::emulator::EmuError;

/// Why something could not be started, reached or awaited.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A file or a folder of the stage.
    #[error("{path}: {source}")]
    File {
        /// Which one.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program is not there and cargo cannot build it.
    #[error("cargo could not build {program}: {problem}")]
    Build {
        /// The program's name.
        program: String,
        /// Cargo's exit status, or why it did not run.
        problem: String,
    },
    /// A process could not be started.
    #[error("{command} cannot be started: {source}")]
    Start {
        /// The whole command.
        command: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A process of the stage could not be waited for or signalled.
    #[error("process {pid}: {source}")]
    Process {
        /// Its pid.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// A process ended before it did what it was started for.
    #[error("{name} ended with {status}; it printed: {said}")]
    Ended {
        /// What it was: the emulator, the daemon, the load.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its standard error.
        said: String,
    },
    /// Something did not happen in time.
    #[error("not within {limit:?}: {what}{said}")]
    Late {
        /// What was awaited.
        what: String,
        /// The limit.
        limit: Duration,
        /// What the process in question had printed, if there is one.
        said: String,
    },
    /// A load ended, but did not prove that every kernel ran exactly once.
    #[error("load {pid} ended with {status}; its last line: {line}; its errors: {said}")]
    NotExact {
        /// Its pid.
        pid: u32,
        /// How it ended.
        status: ExitStatus,
        /// The last line that it printed.
        line: String,
        /// Its standard error.
        said: String,
    },
    /// The daemon refused or did not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The emulator refused or did not answer.
    #[error(transparent)]
    Emulator(#[from] EmuError),
    /// A program printed something that is not the JSON it promises.
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl StageError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        |source| Self::File { path, source }
    }
}
