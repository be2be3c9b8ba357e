//! Whoever watches a run: shows how far it is, and keeps what it has.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use gpreempt_bench::engine::{Progress, Watcher};
use gpreempt_bench::results::Results;

use crate::stop::Stop;
use crate::write_file::write_whole;

/// The longest line that is written over.
const WIDTH: usize = 100;

/// Shows progress on stderr and writes the file after every measurement.
#[derive(Debug)]
pub(super) struct Keeper {
    path: PathBuf,
    stop: Stop,
    is_terminal: bool,
    is_json: bool,
    is_shown: bool,
}

impl Keeper {
    pub(super) fn new(path: PathBuf, stop: Stop, is_json: bool) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { path, stop, is_terminal, is_json, is_shown: false }
    }
}

impl Watcher for Keeper {
    fn begins(&mut self, progress: &Progress<'_>) {
        // A program that asked for JSON reads stderr for errors.
        if self.is_json && !self.is_terminal {
            return;
        }
        let mut err = std::io::stderr();
        let _ = match self.is_terminal {
            true => write!(err, "\r{:<WIDTH$}", progress.to_string()),
            // A log has a line for each, so that somebody who looks later sees where it was.
            false => writeln!(err, "{progress}"),
        };
        self.is_shown = true;
    }

    fn keep(&mut self, results: &Results) -> Result<(), String> {
        write_whole(&self.path, results.to_text().as_bytes()).map_err(|error| error.to_string())
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }
}

impl Drop for Keeper {
    /// Wipes the line, so that results and errors stand alone.
    fn drop(&mut self) {
        if self.is_terminal && self.is_shown {
            let _ = write!(std::io::stderr(), "\r{:<WIDTH$}\r", "");
        }
    }
}
