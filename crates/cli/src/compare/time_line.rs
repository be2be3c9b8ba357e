//! What happens when, around one request: the documents' time lines, from a run.

use gpreempt_bench::report::model::{Lane, Mark};
use gpreempt_core::time::Instant;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::track::{Activity, Span};
use serde::Serialize;

use super::run::{HINT_MAX, Moments, OFFLINE, ONLINE};
use crate::output::micros;
use crate::tracks;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Event {
    /// When, counted from the arrival of the request; what came before is negative.
    pub(crate) at_us: f64,
    /// What.
    pub(crate) what: &'static str,
}

/// How offline work left the device and came back.
struct Leave {
    start: Instant,
    end: Instant,
    is_killed: bool,
}

/// What happened, in order.
pub(crate) fn events(outcome: &Outcome, arrival: Instant, moments: &Moments) -> Vec<Event> {
    let mut found: Vec<(Instant, &'static str)> = Vec::new();
    let mut add = |at: Option<Instant>, what| found.extend(at.map(|at| (at, what)));
    let offline = outcome.tasks.get(OFFLINE).and_then(|task| task.served.first());
    let online = outcome.tasks.get(ONLINE).and_then(|task| task.served.first());
    add(offline.map(|served| served.began), "100 offline kernels are submitted");
    add(Some(arrival), "the request arrives, in the 25th kernel");
    add(moments.decided, "the scheduler decides to preempt");
    if let Some(leave) = leave(outcome, arrival) {
        let word = if leave.is_killed { "waves are killed" } else { "waves are being saved" };
        add(Some(leave.start), word);
        add(Some(leave.end), "offline work is off the device");
        add(moments.offline_resumes, "offline work runs again");
    }
    add(moments.online_starts, "the request's kernel runs");
    add(moments.online_ends, "the request's kernel is done");
    add(online.map(|served| served.ended), "the client has the answer");
    add(moments.resume_decided, "the scheduler decides to resume");
    add(offline.map(|served| served.ended), "all 100 kernels are done");
    found.sort_by_key(|(at, _)| *at);
    let event = |(at, what): (Instant, &'static str)| Event { at_us: since(arrival, at), what };
    found.into_iter().map(event).collect()
}

/// The lanes of the picture, online work above.
pub(crate) fn lanes(outcome: &Outcome) -> Vec<Lane> {
    vec![tracks::lane(outcome, ONLINE, "online"), tracks::lane(outcome, OFFLINE, "offline")]
}

/// The moments of the picture that deserve a word.
pub(crate) fn marks(outcome: &Outcome, arrival: Instant, moments: &Moments) -> Vec<Mark> {
    let mut marks = vec![tracks::mark(arrival, 0, "request arrives")];
    marks.extend(moments.online_ends.map(|at| tracks::mark(at, 0, "done")));
    if let Some(leave) = leave(outcome, arrival) {
        let word = if leave.is_killed { "killed" } else { "preempted" };
        marks.push(tracks::mark(leave.start, 1, word));
        marks.extend(moments.offline_resumes.map(|at| tracks::mark(at, 1, "resumed")));
    }
    marks
}

fn leave(outcome: &Outcome, arrival: Instant) -> Option<Leave> {
    let from = arrival.as_nanos().saturating_sub(HINT_MAX.as_nanos());
    let leaves = |span: &&Span| matches!(span.activity, Activity::Save | Activity::Kill);
    let mut spans = tracks::of_task(outcome, OFFLINE).filter(leaves);
    let span = spans.find(|span| span.start.as_nanos() >= from)?;
    let is_killed = span.activity == Activity::Kill;
    Some(Leave { start: span.start, end: span.end, is_killed })
}

/// Microseconds from one moment to another, which may have been before.
fn since(arrival: Instant, at: Instant) -> f64 {
    if at >= arrival {
        micros(at.since(arrival).as_nanos())
    } else {
        -micros(arrival.since(at).as_nanos())
    }
}
