//! The emulated GPU: the simulator in virtual time, without processes.
//!
//! A measurement is a pure function of case, mode and seed: the same on every machine, every time.

mod estimate;
mod measure;
mod moments;
mod scenario;
mod time_line;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::Scenario;
use gpreempt_sim::simulation::{Options, run_while};

use crate::engine::{Backend, Measured};
use crate::machine;
use crate::plan::Step;
use crate::results::{ALONE, Environment, ModeInfo};

pub use scenario::{Mode, scenario};

/// The simulator as a backend.
#[derive(Clone, Debug, Default)]
pub struct Emulated {
    stop: Arc<AtomicBool>,
}

/// Spans that are kept: enough for the preemptions of a whole case.
const SPANS_MAX: usize = 2_000_000;

impl Emulated {
    /// A simulator that `stop` ends early.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop }
    }
}

impl Mode {
    /// What people read about it.
    fn info(self) -> ModeInfo {
        let alone = match self {
            Self::Alone | Self::CwsrAlone => None,
            Self::Cwsr | Self::CwsrHints => Some(Self::CwsrAlone.name().to_owned()),
            Self::None | Self::Reset | Self::Default | Self::Slices | Self::Hold | Self::Hints => {
                Some(ALONE.to_owned())
            }
        };
        ModeInfo { name: self.name().to_owned(), title: self.title().to_owned(), alone }
    }
}

impl Backend for Emulated {
    fn name(&self) -> &'static str {
        "emulated"
    }

    fn modes(&self) -> Vec<ModeInfo> {
        Mode::ALL.into_iter().map(Mode::info).collect()
    }

    fn missing(&mut self, steps: &[Step<'_>]) -> Vec<String> {
        let mut missing = Vec::new();
        for case in steps.iter().map(|step| step.case) {
            for load in &case.loads {
                if let Err(reason) = scenario::check(load) {
                    let line = format!("case {}: {reason}", case.name);
                    if !missing.contains(&line) {
                        missing.push(line);
                    }
                }
            }
        }
        missing
    }

    fn environment(&mut self) -> Environment {
        let devices = DeviceModel::built_in_names().iter().filter_map(|name| {
            let model = DeviceModel::built_in(name)?;
            Some(format!("{} (simulated; {})", model.name, model.source.trim()))
        });
        Environment { devices: devices.collect(), driver: None, ..machine::environment() }
    }

    fn estimate(&self, step: &Step<'_>) -> Duration {
        estimate::estimate(step)
    }

    fn measure(&mut self, step: &Step<'_>) -> Result<Measured, String> {
        let mode = Mode::from_name(&step.mode.name).ok_or("there is no such mode")?;
        measure::measure(step, mode, &self.stop)
    }
}

/// Simulates, unless somebody asks to stop.
fn simulate(scenario: &Scenario, spans: bool, stop: &AtomicBool) -> Result<Outcome, String> {
    let spans_max = if spans { SPANS_MAX } else { 0 };
    let options = Options { spans_max, ..Options::default() };
    // ORDERING: the flag stands for itself, nothing else is read because of it.
    run_while(scenario, options, &mut |_| !stop.load(Ordering::Relaxed))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
