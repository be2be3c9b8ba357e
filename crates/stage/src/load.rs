//! A load on an emulated GPU, as a process.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::error::StageError;
use crate::process::{Ended, Process};
use crate::wait::LIMIT;

/// A running load. It is killed when this is dropped.
#[derive(Debug)]
pub struct Load {
    process: Process,
}

impl Load {
    pub(crate) const fn new(process: Process) -> Self {
        Self { process }
    }

    pub(crate) fn wait_until_ready(&mut self) -> Result<(), StageError> {
        // The first line, once it is whole: `{"line":"ready","pid":…}`.
        let first = |out: &str| out.split_once('\n').map(|(line, _)| line.to_owned());
        let line = self.process.wait_for_output("that it is ready", LIMIT, first)?;
        let ready: Value = serde_json::from_str(&line)?;
        if ready["line"] == "ready" && ready["pid"] == self.pid() {
            return Ok(());
        }
        let what = format!("the load says that it is ready; it said {line}");
        Err(StageError::Late { what, limit: Duration::ZERO, said: String::new() })
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The process.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Asks it to end, with SIGTERM.
    pub fn ask_to_end(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Sends it SIGKILL and waits for its end.
    ///
    /// # Errors
    /// If it had ended already.
    pub fn kill(&mut self) -> Result<(), StageError> {
        self.process.kill_and_wait()
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn has_ended(&mut self) -> Result<bool, StageError> {
        Ok(self.process.end()?.is_some())
    }

    /// Asks it to end and waits: the last line that it printed, and how it ended.
    ///
    /// # Errors
    /// If it does not end in time, or if the line is not JSON.
    pub fn finish(&mut self) -> Result<(Value, Ended), StageError> {
        self.ask_to_end();
        self.wait()
    }

    /// Asks it to end and waits. Returns how many kernels, or requests, it ran.
    ///
    /// # Errors
    /// If it does not end in time, or does not prove that every kernel ran exactly once.
    pub fn finish_exact(&mut self) -> Result<u64, StageError> {
        self.ask_to_end();
        self.wait_exact()
    }

    /// Waits for its end: the last line that it printed, and how it ended.
    ///
    /// # Errors
    /// If it does not end in time, or if the line is not JSON.
    pub fn wait(&mut self) -> Result<(Value, Ended), StageError> {
        let ended = self.process.wait(LIMIT)?;
        let line = ended.out.lines().last().unwrap_or("null");
        Ok((serde_json::from_str(line)?, ended))
    }

    /// Waits for its end. Returns how many kernels, or requests, it ran.
    ///
    /// # Errors
    /// If it does not end in time, or does not prove that every kernel ran exactly once.
    pub fn wait_exact(&mut self) -> Result<u64, StageError> {
        let (line, ended) = self.wait()?;
        let is_exact = line["line"] == "final" && line["exactness"]["result"] == "pass";
        let count = line["total"].as_u64().or_else(|| line["n"].as_u64());
        match count {
            Some(count) if is_exact && ended.status.success() => Ok(count),
            _ => Err(StageError::NotExact {
                pid: self.pid(),
                status: ended.status,
                line: line.to_string(),
                said: ended.err,
            }),
        }
    }
}
