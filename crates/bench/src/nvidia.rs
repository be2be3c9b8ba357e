//! An NVIDIA GPU: real processes, started, steered and ended by the runner.
//!
//! The processes of a case stay for all its measurements, which are rounds for them. All of them
//! get ready before any of them begins, so that nobody is slowed by the start of another. Whatever
//! is started is ended, also after Ctrl-C; nothing outlives a runner that is killed.

mod access;
mod actor;
mod arguments;
mod cast;
mod control;
mod estimate;
mod hold_calls;
mod measure;
mod mode;
mod moments;
mod mps;
mod needs;
mod noise;
mod programs;
mod samples;
mod steer;
mod stolen;
mod surroundings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::{Backend, Measured};
use crate::plan::Step;
use crate::results::{Environment, ModeInfo};
use crate::scratch::Scratch;

use cast::Cast;
use mode::Family;
pub use mode::Mode;
pub use programs::Programs;
pub(crate) use programs::{Leash, there};

/// The modes there are on a GPU.
pub fn modes() -> Vec<ModeInfo> {
    Mode::ALL.into_iter().map(Mode::info).collect()
}

/// Real processes on a real GPU.
#[derive(Debug)]
pub struct Nvidia {
    programs: Programs,
    /// Where logs and sockets are; removed at the end.
    scratch: Scratch,
    stop: Arc<AtomicBool>,
    /// How much a kernel of a load must do to be as long as wished, by the load's arguments.
    iterations: BTreeMap<String, u64>,
    /// Those who wait for their next measurement.
    casts: Vec<Cast>,
    cast_count: u32,
    /// Which kinds of processes a case is going to need.
    expected: BTreeMap<String, BTreeSet<Family>>,
}

impl Nvidia {
    /// A runner whose files are in a new folder. `stop` ends it early.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(stop: Arc<AtomicBool>) -> Result<Self, String> {
        let scratch = Scratch::new("bench")?;
        let (programs, iterations) = (Programs::find(), BTreeMap::new());
        let (casts, expected) = (Vec::new(), BTreeMap::new());
        Ok(Self { programs, scratch, stop, iterations, casts, cast_count: 0, expected })
    }

    /// The same with programs that are somewhere else.
    #[must_use]
    pub fn with_programs(mut self, programs: Programs) -> Self {
        self.programs = programs;
        self
    }

    fn is_stopped(&self) -> bool {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // Those who write into the folder end before it is removed.
        self.casts.clear();
    }
}

impl Backend for Nvidia {
    fn name(&self) -> &'static str {
        "nvidia"
    }

    fn modes(&self) -> Vec<ModeInfo> {
        modes()
    }

    fn missing(&mut self, steps: &[Step<'_>]) -> Vec<String> {
        needs::missing(steps, &self.programs)
    }

    fn environment(&mut self) -> Environment {
        surroundings::environment(&self.programs)
    }

    fn estimate(&self, step: &Step<'_>) -> Duration {
        estimate::estimate(step)
    }

    fn expect(&mut self, steps: &[Step<'_>]) {
        for step in steps {
            let Some(mode) = Mode::from_name(&step.mode.name) else { continue };
            self.expected.entry(step.case.name.clone()).or_default().insert(mode.family());
        }
    }

    fn measure(&mut self, step: &Step<'_>) -> Result<Measured, String> {
        let mode = Mode::from_name(&step.mode.name).ok_or("there is no such mode")?;
        measure::measure(self, step, mode)
    }
}

#[cfg(test)]
mod tests;
