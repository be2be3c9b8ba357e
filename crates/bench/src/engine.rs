//! Runs the measurements of a plan in order and keeps the results.
//!
//! A [`Backend`] makes one measurement; the engine adds the numbers that follow from it
//! (`derived`), the summary and the checks, and hands the results to a [`RunObserver`] after
//! every measurement, so that an interrupted run loses nothing.

mod checks;
mod derived;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::{Duration, Instant};

use crate::plan::{RunSelection, Step, format_duration};
use crate::results::{CaseInfo, Environment, Measurement, ModeInfo, Results, Status};
use crate::suite::{Case, Suite};

pub use checks::checks;
pub use derived::busy_part;

/// The number of a baseline mode: best-effort work a second without requests.
pub const BE_ALONE: &str = "be_alone_per_s";
/// The number of a baseline mode: the part of the time in which requests are in progress.
pub const LC_BUSY: &str = "lc_busy";

/// Parts of the requests of an LLM server. Their times are also compared with the baseline.
pub const PARTS: [(&str, &str); 2] =
    [("first_token", "time to the first token"), ("token", "time for each further token")];

/// The simulator, or a GPU.
pub trait Backend {
    /// `emulated` or `nvidia`.
    fn name(&self) -> &'static str;

    fn modes(&self) -> Vec<ModeInfo>;

    /// What these measurements need and is missing, each in one sentence.
    fn missing(&mut self, steps: &[Step<'_>]) -> Vec<String>;

    fn environment(&mut self) -> Environment;

    /// The expected time of a measurement.
    fn estimate(&self, step: &Step<'_>) -> Duration;

    /// Announces all measurements, so that slow preparations can begin early.
    fn expect(&mut self, _steps: &[Step<'_>]) {}

    /// Makes one measurement; the engine adds what the step says about it.
    ///
    /// # Errors
    /// Why it could not be made, in one sentence.
    fn measure(&mut self, step: &Step<'_>) -> Result<Measurement, String>;
}

/// The progress of a run when a measurement begins.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'s> {
    pub step: Step<'s>,
    /// Measurements made, and in all.
    pub done: usize,
    pub total: usize,
    /// The expected time of the rest.
    pub left: Duration,
}

/// Observes a run: shows its progress, stores its results, stops it.
pub trait RunObserver {
    fn begins(&mut self, progress: &Progress<'_>);

    /// Stores the results; called after every measurement.
    ///
    /// # Errors
    /// Why they could not be stored.
    fn keep(&mut self, results: &Results) -> Result<(), String>;

    fn is_stopped(&self) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Whole,
    Stopped,
}

pub fn fresh(
    suite: &Suite,
    command: String,
    environment: Environment,
    cases: &[&Case],
    modes: &[ModeInfo],
    selection: &RunSelection,
) -> Results {
    let case = |case: &&Case| CaseInfo {
        name: case.name.clone(),
        title: case.title.clone(),
        loads: case.loads.iter().map(ToString::to_string).collect(),
        point: case.point.clone(),
    };
    Results {
        environment,
        repetitions: selection.repetitions,
        short: selection.is_short,
        modes: modes.to_vec(),
        cases: cases.iter().map(case).collect(),
        ..Results::new(suite.info(), selection.backend, command)
    }
}

/// Makes every measurement that `results` does not contain yet.
///
/// # Errors
/// If the results cannot be stored. A failed measurement is a result.
pub fn run(
    suite: &Suite,
    steps: &[Step<'_>],
    backend: &mut dyn Backend,
    results: &mut Results,
    observer: &mut dyn RunObserver,
) -> Result<Ended, String> {
    let is_done = |results: &Results, step: &Step<'_>| {
        results.of(&step.case.name, &step.mode.name).any(|m| m.repetition == step.repetition)
    };
    let left: Vec<Step<'_>> =
        steps.iter().filter(|step| !is_done(results, step)).copied().collect();
    backend.expect(&left);
    let mut correction = EstimateCorrection::default();
    for (index, step) in steps.iter().enumerate() {
        if is_done(results, step) {
            continue;
        }
        if observer.is_stopped() {
            return Ok(Ended::Stopped);
        }
        let rest = steps[index..].iter().filter(|step| !is_done(results, step));
        let left = correction.apply(rest.map(|step| backend.estimate(step)).sum());
        let done = results.measurements.len();
        observer.begins(&Progress { step: *step, done, total: steps.len(), left });
        let begin = Instant::now();
        let measured = backend.measure(step);
        let took = begin.elapsed();
        if observer.is_stopped() {
            // The stop disturbed this measurement, so it does not count.
            return Ok(Ended::Stopped);
        }
        correction.add(backend.estimate(step), took);
        let measurement = measurement(step, measured, took, results);
        results.measurements.push(measurement);
        results.summarise();
        results.checks = checks(suite, results);
        observer.keep(results)?;
    }
    Ok(Ended::Whole)
}

fn measurement(
    step: &Step<'_>,
    measured: Result<Measurement, String>,
    took: Duration,
    results: &Results,
) -> Measurement {
    let failed =
        |reason| Measurement { status: Status::Failed { reason }, ..Measurement::default() };
    let mut measurement = Measurement {
        case: step.case.name.clone(),
        mode: step.mode.name.clone(),
        repetition: step.repetition,
        seed: step.seed,
        took_s: took.as_secs_f64(),
        ..measured.unwrap_or_else(failed)
    };
    derived::add_numbers(&mut measurement, step.case);
    derived::compare_with_alone(&mut measurement, step, results);
    measurement
}

/// The ratio of measured to estimated times, applied to the remaining estimates.
#[derive(Clone, Copy, Debug, Default)]
struct EstimateCorrection {
    estimated: Duration,
    took: Duration,
}

impl EstimateCorrection {
    fn add(&mut self, estimated: Duration, took: Duration) {
        self.estimated += estimated;
        self.took += took;
    }

    fn apply(&self, estimated: Duration) -> Duration {
        if self.estimated.is_zero() {
            return estimated;
        }
        estimated.mul_f64(self.took.as_secs_f64() / self.estimated.as_secs_f64())
    }
}

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, done, total, left } = self;
        let (case, mode) = (&step.case.name, &step.mode.name);
        let left = format_duration(*left);
        write!(f, "{}/{total} {case}, {mode}, repetition {}", done + 1, step.repetition + 1)?;
        write!(f, ", {left} left")
    }
}
