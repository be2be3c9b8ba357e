//! `gpreempt sim`: simulates a scenario file, or random scenarios.

mod random_scenarios;
mod results;

use std::path::{Path, PathBuf};

use gpreempt_sim::fields::{FILE_BYTES_MAX, decode_utf8};
use gpreempt_sim::model::{DeviceModel, read_model};
use gpreempt_sim::outcome::SimError;
use gpreempt_sim::random_scenario::{scenario, scenario_with_memory};
use gpreempt_sim::scenario::{Scenario, read_scenario};
use gpreempt_sim::simulation::{Options, run_watched};

use crate::args::SimArgs;
use crate::failure::Failure;
use crate::output::{self, Progress};
use crate::write_file::{probe, write_whole};

pub(crate) fn main(args: &SimArgs) -> Result<(), Failure> {
    match (&args.file, args.seed, args.seeds) {
        (Some(file), seed, _) => {
            let same = |out: &PathBuf| out.canonicalize().ok() == file.canonicalize().ok();
            if args.trace.as_ref().is_some_and(|out| out.exists() && same(out)) {
                return Err(Failure::input("--trace would overwrite the scenario; name another"));
            }
            let mut scenario = load_scenario(file)?;
            scenario.seed = seed.unwrap_or(scenario.seed);
            simulate(args, &scenario)
        }
        (None, _, Some(count)) => {
            random_scenarios::main(args.start, count, args.with_memory, args.json)
        }
        (None, Some(seed), None) => simulate(args, &random_scenario(seed, args.with_memory))
            .map_err(|failure| match failure {
                Failure::Run(what) => Failure::Run(format!("seed {seed}: {what}")),
                Failure::Input(_) | Failure::ReaderGone => failure,
            }),
        (None, None, None) => Err(Failure::input(
            "sim needs a scenario file, or --seeds N for random ones, or --seed N to replay one",
        )),
    }
}

/// What a seed means, without or with memory that does not fit together.
fn random_scenario(seed: u64, with_memory: bool) -> Scenario {
    if with_memory { scenario_with_memory(seed) } else { scenario(seed) }
}

fn simulate(args: &SimArgs, scenario: &Scenario) -> Result<(), Failure> {
    if let Some(out) = &args.trace {
        probe(out).map_err(Failure::input)?;
    }
    let options = Options {
        spans_max: if args.trace.is_some() { SPANS_MAX } else { 0 },
        meters: true,
        decisions_max: DECISIONS_MAX,
        check: true,
        events_max: EVENTS_MAX,
        ..Options::default()
    };
    let total = scenario.duration.as_nanos();
    let outcome = {
        let mut progress = Progress::new(&scenario.name);
        run_watched(scenario, options, &mut |now| progress.update(now.as_nanos(), total))
    };
    let outcome = outcome.map_err(|error| match error {
        SimError::Assemble(_) | SimError::Config(_) => Failure::input(error),
        SimError::Kernel(_)
        | SimError::Violation { .. }
        | SimError::TooLong(_)
        | SimError::Stopped => Failure::run(error),
    })?;
    if let Some(path) = &args.trace {
        let trace = results::trace(scenario, &outcome);
        let bytes = serde_json::to_vec(&trace).map_err(Failure::run)?;
        write_whole(path, &bytes).map_err(Failure::input)?;
    }
    if args.json {
        output::print_json(&results::summary(scenario, &outcome))
    } else {
        output::print(&results::text(scenario, &outcome, args.trace.as_deref()))
    }
}

fn load_scenario(file: &Path) -> Result<Scenario, Failure> {
    let name = file.display().to_string();
    let text = load_text(file, &name)?;
    let folder = file.parent().unwrap_or_else(|| Path::new(""));
    let mut resolve = |path: &str| {
        let joined = folder.join(path);
        load_text(&joined, &joined.display().to_string()).map_err(|failure| match failure {
            Failure::Input(message) | Failure::Run(message) => message,
            Failure::ReaderGone => "cannot be read".to_owned(),
        })
    };
    read_scenario(&name, &text, &mut resolve).map_err(Failure::input)
}

/// A built-in device, or one from a file.
pub(crate) fn load_model(device: &str) -> Result<DeviceModel, Failure> {
    if let Some(model) = DeviceModel::built_in(device) {
        return Ok(model);
    }
    if !device.ends_with(".toml") {
        let names = DeviceModel::built_in_names().join(", ");
        return Err(Failure::input(format_args!(
            "there is no device `{device}`; use one of {names}, or a file that ends in .toml"
        )));
    }
    let text = load_text(Path::new(device), device)?;
    read_model(device, &text).map_err(Failure::input)
}

/// Reads a text file up to the limit of such files.
fn load_text(file: &Path, name: &str) -> Result<String, Failure> {
    use std::io::Read;
    let unreadable = |error| Failure::input(format_args!("{name}: cannot be read: {error}"));
    let open = std::fs::File::open(file).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let limit = FILE_BYTES_MAX as u64 + 1;
    open.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    decode_utf8(name, bytes).map_err(Failure::input)
}

/// A trace of this many spans has a few hundred megabytes, more than viewers open.
const SPANS_MAX: usize = 1_000_000;
const DECISIONS_MAX: usize = 1_000_000;
/// A few minutes of work.
const EVENTS_MAX: u64 = 300_000_000;
