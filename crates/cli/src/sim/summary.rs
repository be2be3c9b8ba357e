//! What came of a scenario, in words and as JSON.

use std::path::Path;

use gpreempt_core::time::Duration;
use gpreempt_sim::outcome::{Outcome, TaskOutcome, percentile};
use gpreempt_sim::scenario::Scenario;
use serde::Serialize;

use crate::output::micros;
use crate::text_table;

#[derive(Serialize)]
pub(crate) struct Json {
    scenario: String,
    device: String,
    device_measured: bool,
    machine: &'static str,
    policy: Option<&'static str>,
    seed: u64,
    duration_us: f64,
    ended_us: f64,
    tasks: Vec<TaskJson>,
    preemptions: u64,
    reexecuted: u64,
    lost: u64,
    exact: bool,
    decisions: usize,
    steps: u64,
}

#[derive(Serialize)]
struct TaskJson {
    name: String,
    priority: u8,
    requests: usize,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    launches: u64,
    launches_in_time: u64,
    deadline_misses: Option<u64>,
    died: bool,
}

pub(crate) fn json(scenario: &Scenario, outcome: &Outcome) -> Json {
    let task = |(task, spec): (&TaskOutcome, &gpreempt_sim::scenario::TaskSpec)| {
        let latencies = task.latencies();
        let at = |permille| percentile(&latencies, permille).map(|at| micros(at.as_nanos()));
        TaskJson {
            name: task.name.clone(),
            priority: spec.priority.level(),
            requests: task.served.len(),
            p50_us: at(500),
            p99_us: at(990),
            max_us: at(1000),
            launches: task.launches,
            launches_in_time: task.launches_in_time,
            deadline_misses: spec.deadline.map(|_| task.deadline_misses),
            died: task.died,
        }
    };
    Json {
        scenario: scenario.name.clone(),
        device: scenario.model.name.clone(),
        device_measured: scenario.model.measured,
        machine: scenario.machine.name(),
        policy: scenario.scheduler.map(|scheduler| scheduler.config.policy.name()),
        seed: scenario.seed,
        duration_us: micros(outcome.duration.as_nanos()),
        ended_us: micros(outcome.ended_at.as_nanos()),
        tasks: outcome.tasks.iter().zip(&scenario.tasks).map(task).collect(),
        preemptions: outcome.preemptions,
        reexecuted: outcome.reexecuted,
        lost: outcome.lost,
        exact: outcome.exact,
        decisions: outcome.decisions.len(),
        steps: outcome.events,
    }
}

pub(crate) fn text(scenario: &Scenario, outcome: &Outcome, trace: Option<&Path>) -> String {
    let heads = ["task", "priority", "requests", "p50", "p99", "max", "launches", "missed", "fate"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (task, spec) in outcome.tasks.iter().zip(&scenario.tasks) {
        let latencies = task.latencies();
        let at = |permille| {
            percentile(&latencies, permille)
                .map_or_else(|| "-".into(), |at: Duration| at.to_string())
        };
        rows.push(vec![
            task.name.clone(),
            spec.priority.to_string(),
            task.served.len().to_string(),
            at(500),
            at(990),
            at(1000),
            task.launches.to_string(),
            spec.deadline.map_or_else(|| "-".into(), |_| task.deadline_misses.to_string()),
            if task.died { "died" } else { "done" }.to_owned(),
        ]);
    }
    let scheduler = scenario.scheduler.map_or_else(
        || "nobody schedules".to_owned(),
        |scheduler| format!("{} policy", scheduler.config.policy),
    );
    let faults = scenario.faults.len();
    let mut text = format!(
        "{}: {} x {} ({}), {scheduler}, seed {}\n\n",
        scenario.name,
        scenario.devices,
        scenario.model.name,
        scenario.machine.name(),
        scenario.seed
    );
    text.push_str(&text_table::render(&rows));
    text.push_str(&format!(
        "\n{} preemptions, {} re-executed, {} lost, {} faults, memory {}\n",
        outcome.preemptions,
        outcome.reexecuted,
        outcome.lost,
        faults,
        if outcome.exact { "exact" } else { "NOT as it should be" }
    ));
    for decision in outcome.decisions.iter().take(DECISIONS_SHOWN) {
        let at = decision.at.since(gpreempt_core::time::Instant::ZERO).to_string();
        let (queue, reason) = (decision.queue, decision.reason);
        text.push_str(&format!("{at:>9}  {:<8} {queue}: {reason}\n", reason.verb()));
    }
    let more = outcome.decisions.len().saturating_sub(DECISIONS_SHOWN);
    if more > 0 {
        text.push_str(&format!("           ({more} more decisions; --trace keeps them all)\n"));
    }
    if let Some(path) = trace {
        text.push_str(&format!("Time line: {} (open it in Perfetto)\n", path.display()));
    }
    text
}

/// Enough to see the idea.
const DECISIONS_SHOWN: usize = 8;
