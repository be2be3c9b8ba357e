//! The built-in suites `demo` and `one-request` as `gpreempt demo` and `compare` run them: once, on
//! the simulator, with modes of their own.

use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};

use crate::emulated::{Emulated, FIRST, Mode, demo_modes, mode};
use crate::engine::{self, Backend, RunObserver};
use crate::plan::{self, RunSelection};
use crate::results::{Results, Role, now};
use crate::suite::{Arrivals, Case, Suite, built_in, read_suite};

const ONE_REQUEST: &str = include_str!("../suites/one-request.toml");

/// The cases of `compare`: one request, and the cost of resuming.
pub const REQUEST: &str = "request";
pub const PENDING: [&str; 4] = ["pending-10", "pending-100", "pending-1000", "pending-10000"];

/// How long offline work has run when the request of `compare` arrives: it is in its 25th kernel.
const HEAD_START: Duration = Duration::from_millis(196);
/// The same where only the cost of resuming counts: the first kernel is not done when the scheduler
/// detects the request at the longest interval.
const SHORT_START: Duration = Duration::from_millis(2);

/// A suite that is ready to run.
#[derive(Debug)]
pub struct Demonstration {
    suite: Suite,
    backend: Emulated,
    cases: Vec<String>,
    seed: u64,
    conclude: fn(&Results) -> Option<String>,
}

impl Demonstration {
    /// Online inference beside offline training, on one device.
    pub fn demo(device: DeviceModel, seconds: u64, seed: u64) -> Self {
        // PANIC: a test reads every built-in suite.
        let mut suite = built_in("demo").expect("a built-in suite");
        for case in &mut suite.cases {
            case.simulated.long = Duration::from_millis(seconds * 1_000);
        }
        let case = if device.machine == MachineKind::Tsg { "slices" } else { "no-slices" };
        let modes = demo_modes(device.machine);
        let backend = Emulated { modes, device: Some(device), ..Emulated::default() };
        let cases = vec![case.to_owned()];
        Self { suite, backend, cases, seed, conclude: conclude_demo }
    }

    /// One request among a hundred kernels, in every design, with rings read at this interval.
    pub fn compare(interval: Duration) -> Self {
        // PANIC: the tests of `gpreempt compare` read it.
        let mut suite = read_suite("one-request.toml", ONE_REQUEST).expect("a built-in suite");
        let modes = compare_modes();
        let backend = Emulated { modes, interval, has_one_request: true, ..Emulated::default() };
        for case in &mut suite.cases {
            align(case, interval);
        }
        Self { suite, backend, cases: Vec::new(), seed: 1, conclude: conclude_compare }
    }

    /// Runs every case once in every mode.
    ///
    /// # Errors
    /// If the simulator fails.
    pub fn run(
        mut self,
        command: String,
        observer: &mut dyn RunObserver,
    ) -> Result<Results, String> {
        let cases = self.cases.clone();
        let selection =
            RunSelection { backend: "emulated", repetitions: 1, is_short: false, cases };
        let cases = plan::cases(&self.suite, &selection)?;
        let modes = self.backend.modes();
        let mut steps = plan::steps(&cases, &modes, &selection);
        steps.iter_mut().for_each(|step| step.seed = self.seed);
        let environment = self.backend.environment();
        let mut results =
            engine::fresh(&self.suite, command, environment, &cases, &modes, &selection);
        engine::run(&self.suite, &steps, &mut self.backend, &mut results, observer)?;
        if let Some(reason) = results.summary.iter().find_map(|row| row.failure.clone()) {
            return Err(reason);
        }
        results.finished = Some(now());
        results.conclusion = (self.conclude)(&results);
        Ok(results)
    }
}

/// The designs that `compare` compares, under the names of their machines.
fn compare_modes() -> Vec<Mode> {
    let none = Mode { device: "mi300x", alone: Some("cwsr-alone"), ..mode("none") };
    let reset = Mode { device: "mi300x", alone: Some("cwsr-alone"), ..mode("reset") };
    vec![
        mode("alone"),
        mode("cwsr-alone"),
        Mode { title: "no preemption: kernels run in the order of submission", ..none },
        Mode {
            title: "flag, empty the ring, kill, submit again; its runtime sees every launch",
            ..reset
        },
        Mode { name: "tsg-default", ..mode("default") },
        Mode { name: "tsg", ..mode("hold") },
        Mode { name: "tsg-hint", ..mode("hints") },
        mode("cwsr-default"),
        mode("cwsr"),
        Mode { name: "cwsr-hint", ..mode("cwsr-hints") },
    ]
}

/// Lets the request arrive half an interval after the rings were read, so that detection takes as
/// long as it does on average, and offline work begin the right time before it.
fn align(case: &mut Case, interval: Duration) {
    let (us, is_request) = (interval.as_micros(), case.name == REQUEST);
    let readings = HEAD_START.as_micros().div_ceil(us) + 1;
    let arrival = Duration::from_micros(readings * us + us / 2);
    if !is_request {
        case.modes = ["reset", "tsg", "cwsr"].map(str::to_owned).to_vec();
    }
    for load in &mut case.loads {
        match (load.role, load.arrivals) {
            (Role::Lc, Arrivals::Periodic { every, .. }) => {
                let phase = arrival.saturating_sub(FIRST);
                load.arrivals = Arrivals::Periodic { every, phase };
            }
            _ => {
                let head_start = if is_request { HEAD_START } else { SHORT_START };
                load.start = arrival.saturating_sub(head_start);
            }
        }
    }
}

fn conclude_demo(results: &Results) -> Option<String> {
    let case = &results.cases.first()?.name;
    let (default, ours) = (results.row(case, "default")?, results.row(case, "ours")?);
    Some(format!(
        "The slowest 1 % of online requests take {:.1} times as long as alone by default and \
         {:.2} times with gpreempt; offline work uses {:.0} % of the time that online work leaves \
         idle, and loses nothing.",
        default.p99_ratio?.median,
        ours.p99_ratio?.median,
        ours.be_kept?.median * 100.0,
    ))
}

fn conclude_compare(results: &Results) -> Option<String> {
    let ms = |mode: &str| Some(results.row(REQUEST, mode)?.p50_ns?.median / 1e6);
    Some(format!(
        "Without preemption a request of 20 ms takes {:.0} ms. The reset design answers it in \
         {:.1} ms and runs {} kernels twice; saving and restoring waves answers it in {:.1} ms and \
         runs none twice.",
        ms("none")?,
        ms("reset")?,
        results.number(REQUEST, "reset", "reexecuted")?.median,
        ms("cwsr-hint")?,
    ))
}
