//! From spans to the report's time line.

use gpreempt_bench::report::model::{self, Lane, Mark, Report};
use gpreempt_core::time::Instant;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::track::{Activity, Span as Tracked};

use super::measure::Measured;
use super::provenance;
use super::summary::{command, verdict};
use super::workload::{Mode, Workload};
use crate::args::DemoArgs;
use crate::tracks;

const LANES: [&str; 2] = ["online", "offline"];

pub(crate) fn report(
    args: &DemoArgs,
    workload: &Workload,
    runs: &[(Mode, Outcome)],
    measured: &Measured,
) -> Report {
    let (start, end) = workload.window();
    let modes = runs
        .iter()
        .filter_map(|(mode, outcome)| {
            let numbers = measured.of(*mode)?;
            Some(model::Mode {
                name: mode.name().to_owned(),
                explanation: mode.explanation().to_owned(),
                online_ns: numbers.latencies.iter().map(|latency| latency.as_nanos()).collect(),
                kept: (*mode != Mode::Alone).then_some(numbers.kept),
                preemptions: numbers.preemptions,
                reexecuted: numbers.reexecuted,
                lost: numbers.lost,
                exact: numbers.exact,
                lanes: lanes(outcome),
                marks: marks(workload, outcome),
            })
        })
        .collect();
    Report {
        title: "Online inference beside offline training".into(),
        verdict: verdict(measured),
        command: command(args),
        environment: environment(args, workload),
        modes,
        window: start.as_nanos()..end.as_nanos(),
    }
}

fn environment(args: &DemoArgs, workload: &Workload) -> Vec<(String, String)> {
    let model = &workload.model;
    let mut rows = vec![
        ("Device", format!("{} (emulated; {})", model.name, provenance(model))),
        ("Numbers from", model.source.clone()),
        ("Machine", model.machine.name().to_owned()),
        ("Online", "20 kernels, a wait and 30 us of CPU after each; priority 12".to_owned()),
        ("Offline", "kernels of 7.9 ms that fill the device; priority 2".to_owned()),
        ("Policy", "strict priority, rings read every 5 ms".to_owned()),
        ("Simulated", format!("{} s in each mode, seed {}", args.seconds, args.seed)),
        ("gpreempt", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    if workload.announces(Mode::Ours) {
        rows.push(("Hint", "online work announces its requests".to_owned()));
    }
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn lanes(outcome: &Outcome) -> Vec<Lane> {
    let lanes = LANES.iter().enumerate().take(outcome.tasks.len());
    lanes.map(|(task, name)| tracks::lane(outcome, task, name)).collect()
}

/// The request's arrival and end, and the first time offline work leaves and returns.
fn marks(workload: &Workload, outcome: &Outcome) -> Vec<Mark> {
    let arrival = workload.arrival_in_window();
    let mut marks = vec![tracks::mark(arrival, 0, "request arrives")];
    let served = outcome.tasks[0].served.iter().find(|served| served.arrived >= arrival);
    if let Some(served) = served {
        marks.push(tracks::mark(served.ended, 0, "answered"));
    }
    let leaves = |span: &&Tracked| matches!(span.activity, Activity::Save | Activity::Kill);
    let after = |from: Instant| move |span: &&Tracked| span.start >= from;
    if let Some(left) = tracks::of_task(outcome, 1).filter(leaves).find(after(arrival)) {
        let text = if left.activity == Activity::Kill { "killed" } else { "preempted" };
        marks.push(tracks::mark(left.start, 1, text));
        let runs = |span: &&Tracked| span.activity == Activity::Run;
        let back = served.map_or(left.end, |served| served.ended.max(left.end));
        if let Some(back) = tracks::of_task(outcome, 1).filter(runs).find(after(back)) {
            marks.push(tracks::mark(back.start, 1, "resumed"));
        }
    }
    marks
}
