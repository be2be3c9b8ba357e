//! What can be measured and what would be: `gpreempt bench list`, `--dry-run`, and the suites in
//! files.

use std::path::Path;
use std::time::Duration;

use gpreempt_bench::emulated::Emulated;
use gpreempt_bench::engine::Backend;
use gpreempt_bench::nvidia;
use gpreempt_bench::plan::{Step, format_duration};
use gpreempt_bench::results::ModeInfo;
use gpreempt_bench::suite::{Suite, built_in, built_in_names, check_modes, read_suite};
use serde::Serialize;

use crate::args::BenchListArgs;
use crate::failure::Failure;
use crate::output;

/// A built-in suite, or a suite in a file.
pub(super) fn find_suite(name: &str) -> Result<Suite, Failure> {
    if let Some(suite) = built_in(name) {
        return Ok(suite);
    }
    let path = Path::new(name);
    if !path.exists() {
        let names: Vec<&str> = built_in_names().collect();
        return Err(Failure::input(format_args!(
            "{name} is neither a file nor a built-in suite; the built-in suites are: {}",
            names.join(", ")
        )));
    }
    let suite = read_suite_file(path)?;
    let known = all_modes();
    let known: Vec<&str> = known.iter().map(|mode| mode.name.as_str()).collect();
    check_modes(name, &suite.text, &known).map_err(Failure::input)?;
    Ok(suite)
}

pub(super) fn read_suite_file(path: &Path) -> Result<Suite, Failure> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::input(format_args!("cannot read {name}: {error}")))?;
    let text = gpreempt_sim::fields::decode_utf8(&name, bytes).map_err(Failure::input)?;
    read_suite(&name, &text).map_err(Failure::input)
}

/// The modes of all backends.
pub(super) fn all_modes() -> Vec<ModeInfo> {
    [Emulated::default().modes(), nvidia::modes()].concat()
}

#[derive(Serialize)]
struct Listed {
    suites: Vec<ListedSuite>,
    emulated_modes: Vec<ModeInfo>,
    nvidia_modes: Vec<ModeInfo>,
}

#[derive(Serialize)]
struct ListedSuite {
    name: String,
    title: String,
    cases: Vec<ListedCase>,
}

#[derive(Serialize)]
struct ListedCase {
    name: String,
    title: String,
    loads: Vec<String>,
}

pub(super) fn list(args: &BenchListArgs) -> Result<(), Failure> {
    let listed = Listed {
        suites: built_in_names().filter_map(built_in).map(listed_suite).collect(),
        emulated_modes: Emulated::default().modes(),
        nvidia_modes: nvidia::modes(),
    };
    if args.json {
        return output::print_json(&listed);
    }
    let mut text = String::new();
    for suite in &listed.suites {
        text.push_str(&format!("{}: {}\n", suite.name, suite.title));
        for case in &suite.cases {
            text.push_str(&format!("    {:<18} {}\n", case.name, case.title));
        }
    }
    for (backend, modes) in [("emulated", &listed.emulated_modes), ("nvidia", &listed.nvidia_modes)]
    {
        text.push_str(&format!("\nModes of --backend {backend}:\n"));
        for mode in modes {
            text.push_str(&format!("    {:<18} {}\n", mode.name, mode.title));
        }
    }
    output::print(&text)
}

fn listed_suite(suite: Suite) -> ListedSuite {
    let cases = suite.cases.iter().map(|case| ListedCase {
        name: case.name.clone(),
        title: case.title.clone(),
        loads: case.loads.iter().map(ToString::to_string).collect(),
    });
    ListedSuite { cases: cases.collect(), name: suite.name, title: suite.title }
}

#[derive(Serialize)]
struct Planned<'s> {
    cases: Vec<PlannedCase<'s>>,
    measurements: usize,
    seconds: u64,
}

#[derive(Serialize)]
struct PlannedCase<'s> {
    case: &'s str,
    repetitions: usize,
    modes: Vec<&'s str>,
    seconds: u64,
}

/// Prints a line for each case with its modes and its time, and the sum.
pub(super) fn dry_run(
    steps: &[Step<'_>],
    backend: &dyn Backend,
    is_json: bool,
) -> Result<(), Failure> {
    let planned = planned(steps, backend);
    if is_json {
        return output::print_json(&planned);
    }
    let time = |seconds| format_duration(Duration::from_secs(seconds));
    let mut text = String::new();
    for PlannedCase { case, repetitions, modes, seconds } in &planned.cases {
        let (modes, time) = (modes.join(", "), time(*seconds));
        text.push_str(&format!("{case}: {repetitions} times {modes}, about {time}\n"));
    }
    let (count, time) = (planned.measurements, time(planned.seconds));
    let count = output::counted(count, "measurement", "measurements");
    text.push_str(&format!("{count}, about {time}\n"));
    output::print(&text)
}

fn planned<'s>(steps: &'s [Step<'_>], backend: &dyn Backend) -> Planned<'s> {
    let seconds = |steps: &[Step<'_>]| {
        steps.iter().map(|step| backend.estimate(step)).sum::<Duration>().as_secs()
    };
    let case = |of_case: &'s [Step<'_>]| {
        // PANIC: a chunk has at least one element.
        let first = &of_case[0];
        let once = of_case.iter().filter(|step| step.repetition == first.repetition);
        let modes: Vec<&str> = once.map(|step| step.mode.name.as_str()).collect();
        PlannedCase {
            case: &first.case.name,
            repetitions: of_case.len() / modes.len().max(1),
            modes,
            seconds: seconds(of_case),
        }
    };
    let cases = steps.chunk_by(|one, other| one.case.name == other.case.name);
    Planned { cases: cases.map(case).collect(), measurements: steps.len(), seconds: seconds(steps) }
}
