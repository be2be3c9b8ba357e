//! The results of a scenario: as text, as JSON, and as a time line.

use std::path::Path;

use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::outcome::{Outcome, TaskOutcome, percentile};
use gpreempt_sim::scenario::Scenario;
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::{self, counted, micros};

#[derive(Serialize)]
pub(crate) struct Summary {
    scenario: String,
    device: String,
    device_measured: bool,
    machine: &'static str,
    policy: Option<&'static str>,
    seed: u64,
    duration_us: f64,
    ended_us: f64,
    tasks: Vec<TaskSummary>,
    preemptions: u64,
    evictions: u64,
    reexecuted: u64,
    lost: u64,
    exact: bool,
    decisions: usize,
    steps: u64,
}

#[derive(Serialize)]
struct TaskSummary {
    name: String,
    priority: u8,
    requests: usize,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    launches: u64,
    launches_in_time: u64,
    /// Part of the device time in which it had waves on a device, while work arrived.
    device_share: f64,
    deadline_misses: Option<u64>,
    died: bool,
    refused: bool,
}

pub(crate) fn summary(scenario: &Scenario, outcome: &Outcome) -> Summary {
    let task = |(task, spec): (&TaskOutcome, &gpreempt_sim::scenario::TaskSpec)| {
        let latencies = task.latencies();
        let at = |permille| percentile(&latencies, permille).map(|at| micros(at.as_nanos()));
        TaskSummary {
            name: task.name.clone(),
            priority: spec.priority.level(),
            requests: task.served.len(),
            p50_us: at(500),
            p99_us: at(990),
            max_us: at(1000),
            launches: task.launches,
            launches_in_time: task.launches_in_time,
            device_share: device_share(scenario, task),
            deadline_misses: spec.deadline.map(|_| task.deadline_misses),
            died: task.died,
            refused: task.refused,
        }
    };
    Summary {
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
        evictions: outcome.evictions,
        reexecuted: outcome.reexecuted,
        lost: outcome.lost,
        exact: outcome.exact,
        decisions: outcome.decisions.len(),
        steps: outcome.events,
    }
}

/// Part of the time of all devices in which the task had waves on them, while work arrived.
fn device_share(scenario: &Scenario, task: &TaskOutcome) -> f64 {
    let total = micros(scenario.duration.as_nanos()) * f64::from(scenario.devices);
    micros(task.device_time.as_nanos()) / total
}

/// The name of the task that a queue belongs to, with the device where there are several.
fn queue_name(scenario: &Scenario, outcome: &Outcome, queue: QueueId) -> String {
    let Some(&(_, task, device)) = owner(outcome, queue) else { return queue.to_string() };
    let name = scenario.tasks.get(task).map_or("", |task| task.name.as_str());
    match scenario.devices {
        1 => name.to_owned(),
        _ => format!("{name} on device {device}"),
    }
}

/// Number, task and device of a queue. Queues are numbered from one, in the order of the list.
fn owner(outcome: &Outcome, queue: QueueId) -> Option<&(QueueId, usize, usize)> {
    let index = usize::try_from(queue.0.checked_sub(1)?).ok()?;
    outcome.queues.get(index)
}

pub(crate) fn text(scenario: &Scenario, outcome: &Outcome, trace: Option<&Path>) -> String {
    let heads = ["task", "priority", "requests", "p50", "p99", "max", "launches", "missed"];
    let heads = heads.into_iter().chain(["device time", "fate"]);
    let mut rows = vec![heads.map(str::to_owned).collect()];
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
            format!("{:.1} %", 100.0 * device_share(scenario, task)),
            match (task.died, task.refused) {
                (true, _) => "died",
                (false, true) => "no memory",
                (false, false) => "done",
            }
            .to_owned(),
        ]);
    }
    let scheduler = scenario.scheduler.map_or_else(
        || "no scheduler".to_owned(),
        |scheduler| format!("{} policy", scheduler.config.policy),
    );
    let faults = counted(scenario.faults.len(), "fault", "faults");
    let preemptions = usize::try_from(outcome.preemptions).unwrap_or(usize::MAX);
    let evictions = match outcome.evictions {
        0 => String::new(),
        1 => ", 1 eviction".to_owned(),
        count => format!(", {count} evictions"),
    };
    let mut text = format!(
        "{}: {} x {} ({}), {scheduler}, seed {}\n\n",
        scenario.name,
        scenario.devices,
        scenario.model.name,
        scenario.machine.name(),
        scenario.seed
    );
    text.push_str(&output::table(&rows));
    text.push_str(&format!(
        "\n{}{evictions}, {} re-executed, {} lost, {faults}, memory {}\n",
        counted(preemptions, "preemption", "preemptions"),
        outcome.reexecuted,
        outcome.lost,
        if outcome.exact { "exact" } else { "WRONG" }
    ));
    let name = |queue| queue_name(scenario, outcome, queue);
    for decision in outcome.decisions.iter().take(DECISIONS_SHOWN) {
        let at = decision.at.since(Instant::ZERO).to_string();
        let (verb, reason) = (decision.reason.verb(), decision.reason.text(name));
        text.push_str(&format!("{at:>9}  {verb:<8} {}: {reason}\n", name(decision.queue)));
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

/// How many decisions the text shows.
const DECISIONS_SHOWN: usize = 8;

/// A time line in the Chrome trace format, which Perfetto opens. Devices become processes, queues
/// become threads; what a queue does is a slice, a decision is an instant with its reason.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trace {
    trace_events: Vec<Value>,
    display_time_unit: &'static str,
    other_data: Value,
}

pub(crate) fn trace(scenario: &Scenario, outcome: &Outcome) -> Trace {
    let mut events = Vec::new();
    for device in 0..scenario.devices {
        let name = format!("device {device}: {}", scenario.model.name);
        events.push(metadata("process_name", device as usize, 0, &name));
    }
    for &(queue, task, device) in &outcome.queues {
        let spec = &scenario.tasks[task];
        let name = format!("{} (priority {})", spec.name, spec.priority);
        events.push(metadata("thread_name", device, queue.0, &name));
    }
    for span in &outcome.spans {
        events.push(json!({
            "name": span.activity.name(),
            "cat": "queue",
            "ph": "X",
            "pid": device_of(outcome, span.queue),
            "tid": span.queue.0,
            "ts": at(span.start),
            "dur": micros(span.end.since(span.start).as_nanos()),
        }));
    }
    for decision in &outcome.decisions {
        events.push(json!({
            "name": decision.reason.verb(),
            "cat": "decision",
            "ph": "i",
            "s": "t",
            "pid": device_of(outcome, decision.queue),
            "tid": decision.queue.0,
            "ts": at(decision.at),
            "args": { "reason": decision.reason.text(|by| queue_name(scenario, outcome, by)) },
        }));
    }
    Trace {
        trace_events: events,
        display_time_unit: "ns",
        other_data: json!({
            "scenario": scenario.name,
            "machine": scenario.machine.name(),
            "seed": scenario.seed,
            "generator": concat!("gpreempt ", env!("CARGO_PKG_VERSION")),
        }),
    }
}

fn metadata(kind: &str, device: usize, queue: u64, name: &str) -> Value {
    json!({ "name": kind, "ph": "M", "pid": device, "tid": queue, "args": { "name": name } })
}

fn device_of(outcome: &Outcome, queue: QueueId) -> usize {
    owner(outcome, queue).map_or(0, |&(_, _, device)| device)
}

fn at(instant: Instant) -> f64 {
    micros(instant.as_nanos())
}
