//! How a load fails: one sentence, and a code that says why.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use crate::cuda::{CudaError, Missing};

/// Why a load did not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is no device to run on (exit code 3).
    Skipped(String),
    /// The arguments make no sense together (2).
    Input(String),
    /// It did not work (1).
    Run(String),
    /// It ran, and its last line says that the result is wrong (1).
    Wrong,
    /// The device did not finish in time: leave without waiting for it (1).
    Stuck,
    /// Whoever read our output went away, which is their right (0).
    ReaderGone,
}

impl Failure {
    /// Wrong arguments, in one sentence.
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self::Input(message.to_string())
    }

    /// A failed run, in one sentence.
    pub(crate) fn run(message: impl fmt::Display) -> Self {
        Self::Run(message.to_string())
    }

    /// Tells the user and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Skipped(message) => (format!("SKIPPED: {message}"), 3),
            Self::Input(message) => (format!("gpreempt-load: {message}"), 2),
            Self::Run(message) => (format!("gpreempt-load: {message}"), 1),
            Self::Wrong | Self::Stuck => return ExitCode::FAILURE,
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

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::ReaderGone
        } else {
            Self::run(format_args!("cannot write the output: {error}"))
        }
    }
}
