//! `gpreempt compare`: the tables and time lines of the design documents, simulated instead of
//! estimated.
//!
//! Runs the built-in suite `one-request` on the simulator and prints its results: one request among
//! a hundred kernels in every design, the cost of resuming, and what happens when.

use gpreempt_bench::demonstration::{Demonstration, PENDING, REQUEST};
use gpreempt_bench::report;
use gpreempt_bench::results::{ModeInfo, Number, Results};
use gpreempt_core::time::Duration;

use crate::args::CompareArgs;
use crate::demo::{ProgressBar, exact};
use crate::failure::Failure;
use crate::write_file::{probe, write_whole};
use crate::{output, text_table};

pub(crate) fn main(args: &CompareArgs) -> Result<(), Failure> {
    if let Some(path) = &args.report {
        probe(path).map_err(Failure::input)?;
    }
    let command = format!("gpreempt compare --interval-us {}", args.interval_us);
    let compare = Demonstration::compare(Duration::from_micros(args.interval_us));
    let results = compare.run(command, &mut ProgressBar::new("compare")).map_err(Failure::run)?;
    if let Some(path) = &args.report {
        write_whole(path, report::page(&results, None).as_bytes()).map_err(Failure::input)?;
    }
    if args.json { output::print(&results.to_text()) } else { output::print(&text(args, &results)) }
}

fn text(args: &CompareArgs, results: &Results) -> String {
    // The baselines are for the ratios on the page.
    let modes = || results.modes.iter().filter(|mode| mode.alone.is_some());
    let mut text = format!(
        "100 offline kernels of 8 ms; in the 25th, a request of 20 ms arrives. The scheduler\n\
         reads the rings every {} us, last half an interval ago. Times in us of virtual time.\n\n",
        args.interval_us
    );
    let heads = ["mode", "detect", "preempt", "execute", "resume", "online", "offline +"];
    let heads = heads.into_iter().chain(["preemptions", "re-executed", "lost", "exact"]);
    let mut rows = vec![heads.map(str::to_owned).collect()];
    rows.extend(modes().map(|mode| cells(results, mode)));
    text.push_str(&text_table::render(&rows));
    text.push('\n');
    for mode in modes() {
        text.push_str(&format!("{:<12} {}\n", mode.name, mode.title));
    }
    text.push_str("\nResume cost against kernels pending, from the decision to running (us):\n\n");
    text.push_str(&text_table::render(&resume_costs(results)));
    text.push_str("\nTime lines, counted from the arrival of the request:\n");
    for mode in modes() {
        text.push_str(&format!("\n{}\n", mode.name));
        for moment in moments(results, mode) {
            let at = format!("{:+.3} ms", moment.value / 1e6);
            text.push_str(&format!("{at:>15}  {}\n", moment.title));
        }
    }
    text.push_str(DOCUMENTS);
    text
}

fn microseconds(results: &Results, case: &str, mode: &str, name: &str) -> String {
    let number = results.number(case, mode, name);
    number.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns.median / 1e3))
}

/// A row of the first table.
fn cells(results: &Results, mode: &ModeInfo) -> Vec<String> {
    let number = |name: &str| microseconds(results, REQUEST, &mode.name, name);
    let count = |name: &str| {
        results.number(REQUEST, &mode.name, name).map_or(0.0, |count| count.median).to_string()
    };
    let online = results.row(REQUEST, &mode.name).and_then(|row| row.p50_ns);
    let be = results.of(REQUEST, &mode.name).next().and_then(|each| each.be.as_ref());
    let mut cells = vec![mode.name.clone()];
    cells.extend(["detect", "preempt", "execute", "resume"].map(number));
    cells.push(online.map_or_else(|| "-".to_owned(), |ns| format!("{:.1}", ns.median / 1e3)));
    cells.push(number("be_delay"));
    cells.extend(["preemptions", "reexecuted", "lost"].map(count));
    cells.push(exact(be.and_then(|be| be.exact)));
    cells
}

/// The second table: a row for each design that resumes, a column for each length of the queue.
fn resume_costs(results: &Results) -> Vec<Vec<String>> {
    let lengths = PENDING.map(|case| case.trim_start_matches("pending-").to_owned());
    let mut rows = vec![std::iter::once("mode".to_owned()).chain(lengths).collect()];
    for mode in &results.modes {
        if results.row(PENDING[0], &mode.name).is_some() {
            let costs = PENDING.map(|case| microseconds(results, case, &mode.name, "resume_cost"));
            rows.push(std::iter::once(mode.name.clone()).chain(costs).collect());
        }
    }
    rows
}

/// The moments of the request, in order.
fn moments<'r>(results: &'r Results, mode: &'r ModeInfo) -> Vec<&'r Number> {
    let numbers = results.of(REQUEST, &mode.name).flat_map(|each| &each.numbers);
    let mut moments: Vec<&Number> =
        numbers.filter(|number| number.name.starts_with("at_")).collect();
    moments.sort_by(|one, other| one.value.total_cmp(&other.value));
    moments
}

/// The estimates of the design documents for the same request.
const DOCUMENTS: &str = "
The documents estimate for the same request: reset 100 us to detect, 300 us to preempt, 8.5 us to
resume 75 kernels, 2-3 of them run twice; cwsr up to one interval to detect, 5 us to preempt and to
resume, nothing runs twice. (Their kernels are 200 us long. An AMD device runs a request between two
kernels that short without preemption; so the kernels here are longer.)
";
