//! How far a long run is, on a terminal.

use std::io::{IsTerminal, Write};

/// One line on stderr that is written over and over; nothing where stderr is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    label: String,
    shown: Option<u64>,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(label: &str) -> Self {
        Self { label: label.to_owned(), shown: None, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows that `done` of `total` are done, if that is news.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100).min(100);
        if self.terminal && self.shown != Some(percent) {
            self.shown = Some(percent);
            let bar = "#".repeat(usize::try_from(percent / 4).unwrap_or(0));
            let _ = write!(std::io::stderr(), "\r{:<28} [{bar:<25}] {percent:>3} %", self.label);
        }
    }
}

impl Drop for Progress {
    /// Wipes the line, so that results and errors stand alone.
    fn drop(&mut self) {
        if self.terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r{:<64}\r", "");
        }
    }
}
