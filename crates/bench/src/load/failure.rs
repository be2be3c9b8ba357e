//! How a load fails: one sentence on stderr, and an exit code.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use gpreempt_wire::emulator::EmuError;

use crate::cuda::{CudaError, Missing};

#[derive(Debug)]
pub(crate) enum Failure {
    /// There is no CUDA device (exit code 3).
    Skipped(String),
    /// No emulated GPU answers (3).
    NoEmulator(String),
    /// The arguments contradict each other (2).
    Input(String),
    /// The run failed (1).
    Run(String),
    /// The check for exactly-once execution failed; the last line has the numbers (1).
    Wrong,
    /// Work did not complete in time: the program exits without waiting for the device (1).
    Stuck,
    /// The reader of stdout closed it (0).
    ReaderGone,
}

impl Failure {
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self::Input(message.to_string())
    }

    pub(crate) fn run(message: impl fmt::Display) -> Self {
        Self::Run(message.to_string())
    }

    /// Prints the sentence and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Skipped(message) => (format!("SKIPPED: {message}"), 3),
            Self::NoEmulator(message) => (format!("gpreempt-load: {message}"), 3),
            Self::Input(message) => (format!("gpreempt-load: {message}"), 2),
            Self::Run(message) => (format!("gpreempt-load: {message}"), 1),
            Self::Wrong => {
                let what = "a kernel ran twice, not at all, partly or out of order, or the \
                            contents of its memory changed";
                (format!("gpreempt-load: {what}; see the last line"), 1)
            }
            Self::Stuck => {
                let what = "not every kernel completed in time; the queue may be preempted";
                (format!("gpreempt-load: {what}"), 1)
            }
            Self::ReaderGone => return ExitCode::SUCCESS,
        };
        let _ = writeln!(std::io::stderr(), "{message}");
        ExitCode::from(code)
    }
}

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Self {
        Self::Skipped(missing.to_string())
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        Self::run(error)
    }
}

impl From<EmuError> for Failure {
    fn from(error: EmuError) -> Self {
        if matches!(error, EmuError::Connect { .. }) {
            Self::NoEmulator(error.to_string())
        } else {
            Self::run(error)
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::ReaderGone
        } else {
            Self::run(format_args!("cannot write the output: {error}"))
        }
    }
}
