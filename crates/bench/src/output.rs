//! Lines on stdout, as they happen: as text, or as JSON for programs.

use std::fmt::Display;
use std::io::Write;

use serde::Serialize;

use crate::failure::Failure;

/// Where the lines of a load go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// JSON instead of text.
    pub(crate) json: bool,
}

impl Output {
    /// Prints one line, at once.
    pub(crate) fn line(self, line: &(impl Serialize + Display)) -> Result<(), Failure> {
        let mut text = if self.json {
            serde_json::to_string(line).map_err(Failure::run)?
        } else {
            line.to_string()
        };
        text.push('\n');
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()?;
        Ok(())
    }
}
