//! What can go wrong in a stage, and waiting with a limit.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpreempt_wire::client::ClientError;
use gpreempt_wire::emulator::EmuError;

/// Why something could not be started, reached or awaited.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A file or a folder of the stage.
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    /// The program is not there and cargo cannot build it.
    #[error("cargo could not build {program}: {problem}")]
    Build {
        program: String,
        /// Cargo's exit status, or why it did not run.
        problem: String,
    },
    /// A process could not be started.
    #[error("{command} cannot be started: {source}")]
    Start { command: String, source: io::Error },
    /// A process of the stage could not be waited for or signalled.
    #[error("process {pid}: {source}")]
    Process { pid: u32, source: io::Error },
    /// A process ended before it did what it was started for.
    #[error("{name} ended with {status}; it printed: {said}")]
    Ended {
        /// What it was: the emulator, the daemon, the load.
        name: String,
        status: ExitStatus,
        /// Its standard error.
        said: String,
    },
    /// Something did not happen in time.
    #[error("not within {limit:?}: {what}{said}")]
    Late {
        what: String,
        limit: Duration,
        /// What the process in question had printed, if there is one.
        said: String,
    },
    /// A load ended, but did not prove that every kernel ran exactly once.
    #[error("load {pid} ended with {status}; its last line: {line}; its errors: {said}")]
    NotExact {
        pid: u32,
        status: ExitStatus,
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

/// How long anything may take that a test waits for. Far more than it takes: other processes use
/// the machine at the same time.
pub const LIMIT: Duration = Duration::from_secs(120);

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until `look` finds something. `said` is asked for what a process printed if it does not.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    said: impl FnOnce() -> String,
    mut look: impl FnMut() -> Result<Option<T>, StageError>,
) -> Result<T, StageError> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > end {
            let said = said();
            let said = if said.is_empty() { said } else { format!("; it printed: {said}") };
            return Err(StageError::Late { what: what.to_owned(), limit, said });
        }
        sleep(LOOK);
    }
}

/// Waits until something is so.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits until `look` finds something.
#[track_caller]
#[expect(clippy::panic, reason = "a test that waits in vain has failed")]
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match wait_for(what, LIMIT, String::new, || Ok(look())) {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_it_finds_or_with_its_limit() {
        let mut looks = 0;
        let found = until_some("the third look", || {
            looks += 1;
            (looks == 3).then_some("found")
        });
        assert_eq!((found, looks), ("found", 3));
        let limit = Duration::from_millis(5);
        let late = wait_for("never", limit, || "a line".to_owned(), || Ok(None::<()>));
        assert_eq!(late.unwrap_err().to_string(), "not within 5ms: never; it printed: a line");
    }
}
