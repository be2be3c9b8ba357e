//! Makes the measurements of a plan, one after the other, and keeps what it has.

mod busy;
mod compared;
mod criteria;
mod derived;

use std::fmt;
use std::time::{Duration, Instant};

use crate::plan::Step;
use crate::results::{
    BeResult, Environment, LcResult, LoadResult, Measurement, ModeInfo, Number, Results, Status,
    TimeLine,
};
use crate::suite::{Case, Suite};

pub use busy::busy_part;
pub use criteria::checks;

/// The number that a mode without anybody beside leaves for the others: best-effort work a second.
pub const BE_ALONE: &str = "be_alone_per_s";
/// The same: the part of the time in which latency-critical requests are under way.
pub const LC_BUSY: &str = "lc_busy";

/// Something that can measure.
pub trait Backend {
    /// `emulated` or `nvidia`.
    fn name(&self) -> &'static str;

    /// The modes it knows.
    fn modes(&self) -> Vec<ModeInfo>;

    /// What is missing for these measurements, each in one sentence; nothing if all is there.
    fn missing(&mut self, steps: &[Step<'_>]) -> Vec<String>;

    /// Where it runs.
    fn environment(&mut self) -> Environment;

    /// About how long a measurement takes.
    fn estimate(&self, step: &Step<'_>) -> Duration;

    /// Says what is going to be measured, so that what takes long can be started early.
    fn expect(&mut self, _steps: &[Step<'_>]) {}

    /// Makes one.
    ///
    /// # Errors
    /// Why it could not be made, in one sentence.
    fn measure(&mut self, step: &Step<'_>) -> Result<Measured, String>;
}

/// What a backend measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Requests of all latency-critical loads together.
    pub lc: Option<LcResult>,
    /// Work of all best-effort loads together.
    pub be: Option<BeResult>,
    /// Each load by itself.
    pub loads: Vec<LoadResult>,
    /// What else was measured.
    pub numbers: Vec<Number>,
    /// One preemption, if it was looked at.
    pub time_line: Option<TimeLine>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'s> {
    /// What is measured now.
    pub step: Step<'s>,
    /// Measurements made.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// About how long the rest takes.
    pub left: Duration,
}

/// Who watches a run.
pub trait Watcher {
    /// A measurement begins.
    fn begins(&mut self, progress: &Progress<'_>);

    /// Keeps the results; called after every measurement.
    ///
    /// # Errors
    /// Why they could not be kept.
    fn keep(&mut self, results: &Results) -> Result<(), String>;

    /// Whether somebody asked to stop.
    fn is_stopped(&self) -> bool;
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything was measured.
    Whole,
    /// Somebody asked to stop.
    Stopped,
}

/// Makes every measurement that `results` does not have yet.
///
/// # Errors
/// If results cannot be kept. A measurement that fails is a result.
pub fn run(
    suite: &Suite,
    steps: &[Step<'_>],
    backend: &mut dyn Backend,
    results: &mut Results,
    watcher: &mut dyn Watcher,
) -> Result<Ended, String> {
    let is_done = |results: &Results, step: &Step<'_>| {
        results.of(&step.case.name, &step.mode.name).any(|m| m.repetition == step.repetition)
    };
    let left: Vec<Step<'_>> =
        steps.iter().filter(|step| !is_done(results, step)).copied().collect();
    backend.expect(&left);
    let mut pace = Pace::default();
    for (index, step) in steps.iter().enumerate() {
        if is_done(results, step) {
            continue;
        }
        if watcher.is_stopped() {
            return Ok(Ended::Stopped);
        }
        let rest = steps[index..].iter().filter(|step| !is_done(results, step));
        let left = pace.corrected(rest.map(|step| backend.estimate(step)).sum());
        let done = results.measurements.len();
        watcher.begins(&Progress { step: *step, done, total: steps.len(), left });
        let begin = Instant::now();
        let measured = backend.measure(step);
        let took = begin.elapsed();
        if watcher.is_stopped() {
            // What was under way was disturbed, so it does not count.
            return Ok(Ended::Stopped);
        }
        pace.learn(backend.estimate(step), took);
        let measurement = measurement(step, measured, took, results);
        results.measurements.push(measurement);
        results.summarise();
        results.checks = checks(suite, results);
        watcher.keep(results)?;
    }
    Ok(Ended::Whole)
}

fn measurement(
    step: &Step<'_>,
    measured: Result<Measured, String>,
    took: Duration,
    results: &Results,
) -> Measurement {
    let (status, measured) = match measured {
        Ok(measured) => (Status::Ok, measured),
        Err(reason) => (Status::Failed { reason }, Measured::default()),
    };
    let mut measurement = Measurement {
        case: step.case.name.clone(),
        mode: step.mode.name.clone(),
        repetition: step.repetition,
        seed: step.seed,
        took_s: took.as_secs_f64(),
        status,
        lc: measured.lc,
        be: measured.be,
        loads: measured.loads,
        numbers: measured.numbers,
        time_line: measured.time_line,
    };
    derived::add(&mut measurement, step.case);
    compared::with_alone(&mut measurement, step, results);
    measurement
}

/// How much faster or slower it goes than estimated.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    estimated: Duration,
    took: Duration,
}

impl Pace {
    fn learn(&mut self, estimated: Duration, took: Duration) {
        self.estimated += estimated;
        self.took += took;
    }

    fn corrected(&self, estimated: Duration) -> Duration {
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
        let left = crate::plan::spoken(*left);
        write!(f, "{}/{total} {case}, {mode}, repetition {}", done + 1, step.repetition + 1)?;
        write!(f, ", {left} left")
    }
}

/// The titles of a case's loads.
pub fn load_lines(case: &Case) -> Vec<String> {
    case.loads.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
