//! One preemption as a picture shows it.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::outcome::{Outcome, Served};

use crate::results::{Mark, Role, Span, TimeLine};
use crate::suite::Load;

/// What is shown before the request and after its end.
const AROUND: Duration = Duration::from_micros(500);
/// Longer pictures show nothing.
const LENGTH_MAX: Duration = Duration::from_millis(60);
/// More spans make a file large and a picture unreadable.
const SPANS_MAX: usize = 400;
/// More rows do, too.
const ROWS_MAX: usize = 12;

/// The request in the middle of the run, with everybody beside it.
pub(super) fn around_one(loads: &[&Load], outcome: &Outcome) -> Option<TimeLine> {
    let served = loads.iter().zip(&outcome.tasks).filter(|(load, _)| load.role == Role::Lc);
    let served: Vec<&Served> = served.flat_map(|(_, task)| &task.served).collect();
    let request = served.get(served.len() / 2)?;
    let from = Instant::from_nanos(request.arrived.as_nanos().saturating_sub(AROUND.as_nanos()));
    let until = request.ended + AROUND;
    let until = until.min(from + LENGTH_MAX);
    let offset = |at: Instant| at.max(from).min(until).since(from).as_nanos();
    let mut spans = Vec::new();
    for span in &outcome.spans {
        let Some(&(_, task, _)) = outcome.queues.iter().find(|(queue, ..)| *queue == span.queue)
        else {
            continue;
        };
        let is_inside = span.end > from && span.start < until;
        if is_inside && task < ROWS_MAX && spans.len() < SPANS_MAX {
            spans.push(Span {
                row: u32::try_from(task).unwrap_or(u32::MAX),
                what: span.activity.name().to_owned(),
                from_ns: offset(span.start),
                to_ns: offset(span.end),
            });
        }
    }
    spans.sort_unstable_by_key(|span| (span.row, span.from_ns));
    let mark = |name: &str, at: Instant| Mark { name: name.to_owned(), at_ns: offset(at) };
    Some(TimeLine {
        rows: loads.iter().take(ROWS_MAX).map(|load| load.name.clone()).collect(),
        spans,
        marks: vec![mark("request", request.arrived), mark("answer", request.ended)],
        length_ns: until.since(from).as_nanos(),
    })
}
