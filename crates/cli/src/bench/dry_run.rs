//! `gpreempt bench SUITE --dry-run`: what would be measured.

use std::time::Duration;

use gpreempt_bench::engine::Backend;
use gpreempt_bench::plan::{Step, spoken};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

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

/// A line for each case with its modes and its time, and the sum.
pub(super) fn print(
    steps: &[Step<'_>],
    backend: &dyn Backend,
    is_json: bool,
) -> Result<(), Failure> {
    let planned = planned(steps, backend);
    if is_json {
        return output::print_json(&planned);
    }
    let time = |seconds| spoken(Duration::from_secs(seconds));
    let mut text = String::new();
    for PlannedCase { case, repetitions, modes, seconds } in &planned.cases {
        let (modes, time) = (modes.join(", "), time(*seconds));
        text.push_str(&format!("{case}: {repetitions} times {modes}, about {time}\n"));
    }
    let (count, time) = (planned.measurements, time(planned.seconds));
    text.push_str(&format!("{count} measurements, about {time}\n"));
    output::print(&text)
}

fn planned<'s>(steps: &'s [Step<'_>], backend: &dyn Backend) -> Planned<'s> {
    let seconds = |steps: &[Step<'_>]| {
        steps.iter().map(|step| backend.estimate(step)).sum::<Duration>().as_secs()
    };
    let case = |of_case: &'s [Step<'_>]| {
        // PANIC: a chunk has at least one.
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
