//! From the start of the program to the start of the measurement.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::args::LoadArgs;
use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;
use crate::output::Output;
use crate::stop::Stop;
use crate::workload::Shape;

/// How long to wait for the file that begins the measurement.
const WAIT: Duration = Duration::from_secs(120);
/// How often to look for it: programs that wait for the same file begin this close together.
const LOOK: Duration = Duration::from_millis(1);

/// The first line of a load.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "line", rename = "ready")]
pub(crate) struct Ready {
    /// `be` or `lc`.
    pub(crate) load: &'static str,
    /// The process.
    pub(crate) pid: u32,
    /// When, by `CLOCK_MONOTONIC`.
    pub(crate) at_ns: u64,
    /// The device's name.
    pub(crate) device: String,
    /// The kernel, where there is one.
    pub(crate) kernel: Option<Shape>,
}

impl Ready {
    /// A load that is ready now.
    pub(crate) fn now(load: &'static str, device: &str, kernel: Option<Shape>) -> Self {
        let pid = std::process::id();
        Self { load, pid, at_ns: Monotonic.now_ns(), device: device.to_owned(), kernel }
    }

    /// Says so, and waits until the measurement may begin, if that is not for orders to say.
    /// False: it was asked to stop instead.
    pub(crate) fn announce(
        &self,
        output: Output,
        args: &LoadArgs,
        stop: &Stop,
    ) -> Result<bool, Failure> {
        output.line(self)?;
        let Some(path) = &args.wait_file else { return Ok(!stop.is_asked()) };
        let begin = Monotonic.now_ns();
        while !path.exists() {
            if stop.is_asked() {
                return Ok(false);
            }
            let waited = Duration::from_nanos(Monotonic.now_ns().saturating_sub(begin));
            if waited > WAIT {
                let seconds = WAIT.as_secs();
                return Err(Failure::run(format_args!(
                    "{} did not appear within {seconds} s",
                    path.display()
                )));
            }
            std::thread::sleep(LOOK);
        }
        Ok(true)
    }
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ready: pid {}, {}", self.load, self.pid, self.device)?;
        if let Some(shape) = &self.kernel {
            write!(f, ", {shape}")?;
        }
        Ok(())
    }
}
