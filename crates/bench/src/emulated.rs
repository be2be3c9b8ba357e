//! The backend `emulated`: the simulator, in virtual time and without processes.
//!
//! A measurement is a pure function of case, mode and seed: the same on every machine, every time.

mod measure;
mod mode;
mod moments;
mod scenario;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpreempt_core::time::Duration as VirtualDuration;
use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::Scenario;
use gpreempt_sim::simulation::{Options, run_while};

use crate::engine::Backend;
use crate::machine;
use crate::plan::Step;
use crate::results::{Environment, Measurement, ModeInfo, Role};
use crate::suite::{Load, Work};

pub use mode::{MODES, Mode};
pub(crate) use mode::{demo_modes, mode};
pub(crate) use scenario::FIRST;

/// Spans that are kept: enough for the preemptions of a whole case.
const SPANS_MAX: usize = 2_000_000;
/// Decisions that are kept: enough for one request.
const DECISIONS_MAX: usize = 10_000;
/// The wall-clock time a simulated launch takes (s), measured on a machine of 2024.
const LAUNCH_S: f64 = 18e-6;
/// The same for an idle second of virtual time.
const IDLE_S: f64 = 0.01;

/// The simulator as a backend.
#[derive(Clone, Debug)]
pub struct Emulated {
    /// Ends a simulation early.
    pub stop: Arc<AtomicBool>,
    pub modes: Vec<Mode>,
    /// Simulated in all modes instead of each mode's own device.
    pub device: Option<DeviceModel>,
    /// How often the scheduler reads the rings.
    pub interval: VirtualDuration,
    /// Whether every load has one request. A second one, when all work is done, keeps the process
    /// of a latency-critical load alive as that of a server; it does not count.
    pub has_one_request: bool,
}

impl Default for Emulated {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl Emulated {
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        let interval = gpreempt_core::config::Config::default().interval;
        Self { stop, modes: MODES.to_vec(), device: None, interval, has_one_request: false }
    }

    fn simulate(&self, scenario: &Scenario, is_recorded: bool) -> Result<Outcome, String> {
        let options = match is_recorded {
            true => {
                Options { spans_max: SPANS_MAX, decisions_max: DECISIONS_MAX, ..Options::default() }
            }
            false => Options::default(),
        };
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        run_while(scenario, options, &mut |_| !self.stop.load(Ordering::Relaxed))
            .map_err(|error| error.to_string())
    }
}

impl Backend for Emulated {
    fn name(&self) -> &'static str {
        "emulated"
    }

    fn modes(&self) -> Vec<ModeInfo> {
        self.modes.iter().map(Mode::info).collect()
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
        let describe =
            |model: &DeviceModel| format!("{} (simulated; {})", model.name, model.source.trim());
        let devices = match &self.device {
            Some(device) => vec![describe(device)],
            None => {
                let models = DeviceModel::built_in_names().iter();
                let models = models.filter_map(|name| DeviceModel::built_in(name));
                models.map(|model| describe(&model)).collect()
            }
        };
        Environment { devices, driver: None, ..machine::environment() }
    }

    fn estimate(&self, step: &Step<'_>) -> Duration {
        // CAST: minutes in nanoseconds are far below what a float counts exactly.
        let virtual_s = step.case.simulated.length(step.is_short).as_nanos() as f64 / 1e9;
        // The baseline is two simulations, requests and best-effort work; together they share the
        // device.
        let launches: f64 = step.case.of(Role::Lc).map(requested).sum::<f64>() + back_to_back(step);
        Duration::from_secs_f64(virtual_s * (IDLE_S + launches * LAUNCH_S))
    }

    fn measure(&mut self, step: &Step<'_>) -> Result<Measurement, String> {
        let mode = self.modes.iter().find(|mode| mode.name == step.mode.name);
        let mode = mode.ok_or_else(|| format!("the simulator has no mode {}", step.mode.name))?;
        self.measure_in(step, mode)
    }
}

/// Launches a second of a load with requests.
fn requested(load: &Load) -> f64 {
    // CAST: as above.
    let apart = load.arrivals.mean().map_or(f64::INFINITY, |mean| mean.as_nanos() as f64 / 1e9);
    f64::from(load.kernels) / apart
}

/// Launches a second of all best-effort loads, which fill the device in turn.
fn back_to_back(step: &Step<'_>) -> f64 {
    let kernels = step.case.of(Role::Be).filter(|load| load.work != Work::Endless);
    // CAST: as above.
    let lengths: Vec<f64> = kernels.map(|load| load.kernel.as_nanos() as f64 / 1e9).collect();
    let sum: f64 = lengths.iter().sum();
    if sum > 0.0 { lengths.len() as f64 / sum } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{self, RunSelection};
    use crate::suite::{Backends, built_in, built_in_names};

    fn selection(cases: &[&str]) -> RunSelection {
        let cases = cases.iter().map(|&name| name.to_owned()).collect();
        RunSelection { cases, ..RunSelection::short("emulated") }
    }

    fn measured(suite: &str, case: &str, mode: &str) -> Measurement {
        let suite = built_in(suite).unwrap();
        let selection = selection(&[case]);
        let modes = plan::modes(&[mode.to_owned()], &Emulated::default().modes()).unwrap();
        let cases = plan::cases(&suite, &selection).unwrap();
        let steps = plan::steps(&cases, &modes, &selection);
        let step = steps.iter().find(|step| step.mode.name == mode).unwrap();
        Emulated::default().measure(step).unwrap()
    }

    #[test]
    fn slices_delay_requests_with_gaps_and_holds_do_not() {
        let p50 = |mode: &str| measured("micro", "gap30", mode).lc.unwrap().latency.p50_ns;
        let (alone, slices, hold, hints) = (p50("alone"), p50("slices"), p50("hold"), p50("hints"));
        assert!(slices > 3 * alone, "{slices} against {alone}");
        assert!(hold < alone * 5 / 4, "{hold} against {alone}");
        assert!(hints < hold, "{hints} against {hold}");
    }

    #[test]
    fn the_same_step_gives_the_same_numbers() {
        let (one, two) = (measured("micro", "be-1ms", "hold"), measured("micro", "be-1ms", "hold"));
        assert_eq!(one.lc, two.lc);
        assert_eq!(one.numbers, two.numbers);
        assert_eq!(one.time_line, two.time_line);
        assert!(one.time_line.is_some_and(|line| !line.spans.is_empty()));
    }

    #[test]
    fn the_slowest_requests_are_those_of_the_distribution() {
        let lc = measured("micro", "gap30", "slices").lc.unwrap();
        let slowest = lc.slowest.iter().map(|each| each.end_ns - each.due_ns).max();
        assert_eq!(slowest, i64::try_from(lc.latency.max_ns).ok());
        assert!(lc.slowest.iter().all(|each| 0 <= each.due_ns && each.due_ns <= each.begin_ns));
    }

    #[test]
    fn the_moments_of_preemptions_are_measured() {
        let measured = measured("micro", "be-8ms", "slices");
        let number = |name: &str| {
            measured.numbers.iter().find(|number| number.name == name).map(|number| number.value)
        };
        let (off, first) =
            (number("be_off_p50").unwrap(), number("first_instruction_p50").unwrap());
        // A full context is saved in 134 us and the other one restored in 51.
        assert!(off > 0.0 && off < first && (180e3..260e3).contains(&first), "{off} {first}");
        assert!(number("resume_p50").unwrap() > 0.0);
    }

    #[test]
    fn loads_that_no_model_can_simulate_are_named_before_anything_runs() {
        let suite = built_in("torch").unwrap();
        let modes = Emulated::default().modes();
        let cases: Vec<_> = suite.cases.iter().collect();
        let steps = plan::steps(&cases, &modes, &selection(&[]));
        let missing = Emulated::default().missing(&steps);
        assert_eq!(missing.len(), 18, "{missing:?}");
        assert_eq!(missing[0], "case resnet: inference is a PyTorch program and needs a GPU");
        for name in built_in_names().filter(|name| *name != "torch") {
            let suite = built_in(name).unwrap();
            let cases: Vec<_> =
                suite.cases.iter().filter(|case| case.backends != Backends::Nvidia).collect();
            let steps = plan::steps(&cases, &modes, &selection(&[]));
            assert_eq!(Emulated::default().missing(&steps), Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn jobs_that_do_not_fit_are_refused_by_default_and_take_turns_with_gpreempt() {
        let numbers = |case: &str, mode: &str| {
            let measured = measured("memory", case, mode);
            let number = |name: &str| {
                let found = measured.numbers.iter().find(|number| number.name == name);
                found.map(|number| number.value)
            };
            (number("refused"), number("evictions").is_some_and(|count| count > 4.0))
        };
        assert_eq!(numbers("two-jobs", "default"), (Some(1.0), false));
        assert_eq!(numbers("two-jobs", "turns"), (Some(0.0), true));
        assert_eq!(numbers("server", "default").0, Some(1.0));
        assert_eq!(numbers("server", "hold").0, Some(0.0));
    }

    #[test]
    fn short_kernels_take_longer_to_simulate() {
        let suite = built_in("micro").unwrap();
        let mode = mode("hold").info();
        let of = |name: &str| {
            let case = suite.cases.iter().find(|case| case.name == name).unwrap();
            let step = Step { case, mode: &mode, repetition: 0, seed: 1, is_short: false };
            let virtual_s = case.simulated.long.as_nanos() as f64 / 1e9;
            Emulated::default().estimate(&step).as_secs_f64() / virtual_s
        };
        assert!(of("be-10us") > 1.5 && of("be-10us") < 3.0, "{}", of("be-10us"));
        assert!(of("be-8ms") < 0.1, "{}", of("be-8ms"));
    }
}
