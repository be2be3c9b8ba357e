//! How a command fails: one line, and an exit code that says whether the input was wrong.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use crate::output::shown;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input was wrong; nothing was changed.
    Input(String),
    /// The command failed while it ran.
    Run(String),
    /// The reader of the output has closed it, which is no error.
    ReaderGone,
}

impl Failure {
    pub(crate) fn input(message: impl fmt::Display) -> Self {
        Self::Input(one_line(&message.to_string()))
    }

    pub(crate) fn run(message: impl fmt::Display) -> Self {
        Self::Run(one_line(&message.to_string()))
    }

    /// Prints the error, as JSON if that was asked for, and returns the exit code.
    pub(crate) fn report(self, is_json: bool) -> ExitCode {
        let (message, code) = match self {
            Self::Input(message) => (message, 2),
            Self::Run(message) => (message, 1),
            Self::ReaderGone => return ExitCode::SUCCESS,
        };
        let line = match is_json {
            true => serde_json::json!({ "error": message }).to_string(),
            false => format!("gpreempt: {message}"),
        };
        let _ = writeln!(std::io::stderr(), "{line}");
        ExitCode::from(code)
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

/// A message may contain names of other users' processes and files.
fn one_line(message: &str) -> String {
    let lines = message.split('\n').map(str::trim).filter(|line| !line.is_empty());
    shown(&lines.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line() {
        assert_eq!(one_line("first\n  second\n\n"), "first; second");
        assert_eq!(one_line("a\u{1b}[2J\u{202e}b (7) has ended"), "a?[2J?b (7) has ended");
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let error = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert!(matches!(Failure::from(error), Failure::ReaderGone));
    }
}
