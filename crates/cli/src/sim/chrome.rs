//! A time line in the Chrome trace format, which Perfetto opens.
//!
//! Devices become processes, queues become threads; what a queue does is a slice on its thread,
//! what the scheduler decides is an instant with its reason.

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Instant;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::scenario::Scenario;
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::micros;

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
        let name = format!("{} (priority {}, {queue})", spec.name, spec.priority);
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
            "args": { "reason": decision.reason.to_string() },
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
    // Queues are numbered from one, in the order of the roster.
    let index = usize::try_from(queue.0.saturating_sub(1)).unwrap_or(usize::MAX);
    outcome.queues.get(index).map_or(0, |&(_, _, device)| device)
}

fn at(instant: Instant) -> f64 {
    micros(instant.as_nanos())
}
