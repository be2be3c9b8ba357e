//! Measurements on an NVIDIA GPU with real processes, which the runner starts and ends.
//!
//! The load processes of a case run all its measurements as rounds. All of them prepare before any
//! of them begins, so that the start of one does not slow down another. The runner ends every
//! process it started, also after Ctrl-C; the kernel ends them if the runner is killed.

mod apply_mode;
mod call_costs;
mod host_jitter;
mod load_group;
mod load_process;
mod measure;
mod mode;
mod preemption_times;
mod request_waits;
mod requirements;
mod slice_changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::child::temp_folder;
use crate::engine::Backend;
use crate::plan::Step;
use crate::results::{Environment, Measurement, ModeInfo};

use load_group::LoadGroup;
use mode::Family;
pub use mode::Mode;
pub use requirements::Programs;
pub(crate) use requirements::{ParentDeath, found};
pub use slice_changes::{refuse_other_sessions, slice_changes};

pub fn modes() -> Vec<ModeInfo> {
    Mode::ALL.into_iter().map(Mode::info).collect()
}

#[derive(Debug)]
pub struct Nvidia {
    programs: Programs,
    /// For logs and sockets; removed at the end.
    folder: TempDir,
    stop: Arc<AtomicBool>,
    /// Calibrated iterations of kernels, by the arguments of their load.
    iterations: BTreeMap<String, u64>,
    /// Load processes that wait for their next measurement.
    groups: Vec<LoadGroup>,
    group_count: u32,
    /// The families of processes that each case will need.
    expected: BTreeMap<String, BTreeSet<Family>>,
}

impl Nvidia {
    /// A runner whose files are in a new folder. `stop` ends it early.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(stop: Arc<AtomicBool>) -> Result<Self, String> {
        let folder = temp_folder("bench")?;
        let (programs, iterations) = (Programs::find(), BTreeMap::new());
        let (groups, expected) = (Vec::new(), BTreeMap::new());
        Ok(Self { programs, folder, stop, iterations, groups, group_count: 0, expected })
    }

    /// The same with other programs.
    #[must_use]
    pub fn with_programs(mut self, programs: Programs) -> Self {
        self.programs = programs;
        self
    }

    fn is_stopped(&self) -> bool {
        // ORDERING: an independent flag.
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // The processes write into the folder, so they end before it is removed.
        self.groups.clear();
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
        requirements::missing(steps, &self.programs)
    }

    fn environment(&mut self) -> Environment {
        requirements::environment(&self.programs)
    }

    fn estimate(&self, step: &Step<'_>) -> Duration {
        mode::estimate(step)
    }

    fn expect(&mut self, steps: &[Step<'_>]) {
        for step in steps {
            let Some(mode) = Mode::from_name(&step.mode.name) else { continue };
            self.expected.entry(step.case.name.clone()).or_default().insert(mode.family());
        }
    }

    fn measure(&mut self, step: &Step<'_>) -> Result<Measurement, String> {
        let mode = Mode::from_name(&step.mode.name).ok_or("there is no such mode")?;
        measure::measure(self, step, mode)
    }
}

#[cfg(test)]
mod tests;
