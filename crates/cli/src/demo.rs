//! `gpreempt demo`: online inference beside offline training, before and after.

mod measure;
mod picture;
mod summary;
mod workload;

use gpreempt_core::time::Instant;
use gpreempt_sim::model::DeviceModel;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::Scenario;
use gpreempt_sim::simulation::{Options, run_watched};

use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::write_file::{probe, write_whole};
use crate::{output, sim};
use measure::Measured;
use workload::{Mode, Workload};

pub(crate) fn main(args: &DemoArgs) -> Result<(), Failure> {
    let model = sim::load_model(&args.device)?;
    probe(&args.out).map_err(Failure::input)?;
    let workload = Workload::new(model, args.seconds, args.seed);
    let mut runs = Vec::new();
    for mode in Mode::ALL {
        let scenario = workload.scenario(mode);
        runs.push((mode, simulate(&scenario, mode.name(), Some(workload.window()))?));
    }
    let offline = simulate(&workload.offline_alone(), "offline alone", None)?;
    let measured = Measured::new(&workload, &runs, &offline);
    let report = picture::report(args, &workload, &runs, &measured);
    let page = gpreempt_bench::report::render(&report);
    write_whole(&args.out, page.as_bytes()).map_err(Failure::input)?;
    let path = std::fs::canonicalize(&args.out).unwrap_or_else(|_| args.out.clone());
    if args.json {
        output::print_json(&summary::json(args, &workload, &measured, &path))
    } else {
        output::print(&summary::text(&workload, &measured, &path))
    }
}

fn simulate(
    scenario: &Scenario,
    label: &str,
    window: Option<(Instant, Instant)>,
) -> Result<Outcome, Failure> {
    let mut progress = Progress::new(label);
    let options = Options {
        spans_max: if window.is_some() { SPANS_MAX } else { 0 },
        window,
        ..Options::default()
    };
    let total = scenario.duration.as_nanos();
    let outcome = run_watched(scenario, options, &mut |now| progress.update(now.as_nanos(), total));
    outcome.map_err(Failure::run)
}

/// Whether the numbers of a device are measured ones, in words.
fn provenance(model: &DeviceModel) -> &'static str {
    if model.measured { "calibrated to measured hardware" } else { "from documents, not measured" }
}

/// More than a window of a few milliseconds can hold.
const SPANS_MAX: usize = 200_000;
