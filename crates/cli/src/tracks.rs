//! From the simulator's spans to the lanes of a page.

use gpreempt_bench::report::model::{Lane, Mark, Span, SpanKind};
use gpreempt_core::time::Instant;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::track::{Activity, Span as Tracked};

/// The spans of one task.
pub(crate) fn of_task(outcome: &Outcome, task: usize) -> impl Iterator<Item = &Tracked> {
    let belongs = move |span: &&Tracked| {
        outcome.queues.iter().any(|&(queue, owner, _)| queue == span.queue && owner == task)
    };
    outcome.spans.iter().filter(belongs)
}

/// The lane of one task.
pub(crate) fn lane(outcome: &Outcome, task: usize, name: &str) -> Lane {
    Lane { name: name.to_owned(), spans: of_task(outcome, task).filter_map(draw).collect() }
}

/// A moment worth a word.
pub(crate) fn mark(at: Instant, lane: usize, text: &str) -> Mark {
    Mark { at_ns: at.as_nanos(), lane, text: text.to_owned() }
}

fn draw(span: &Tracked) -> Option<Span> {
    let kind = match span.activity {
        Activity::Idle => return None,
        Activity::Wait => SpanKind::Wait,
        Activity::Run => SpanKind::Run,
        Activity::Save => SpanKind::Save,
        Activity::Restore => SpanKind::Restore,
        Activity::Hold => SpanKind::Hold,
        Activity::Kill => SpanKind::Killed,
    };
    Some(Span { start_ns: span.start.as_nanos(), end_ns: span.end.as_nanos(), kind })
}
