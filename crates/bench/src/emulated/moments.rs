//! The moments of preemptions, read from the simulator's spans and decisions: as percentiles over
//! all requests, one by one for a single request, and as a time line.

use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::outcome::{Outcome, Served};
use gpreempt_sim::track::{Activity, Span as Tracked};

use crate::results::{Mark, Number, Role, Span, TimeLine};
use crate::suite::Load;

/// The number that says how much later best-effort work ends because of a request.
pub(super) const BE_DELAY: &str = "be_delay";

/// Shown before the request and after its end.
const AROUND: Duration = Duration::from_micros(500);
/// Details of a longer time line cannot be seen.
const LENGTH_MAX: Duration = Duration::from_millis(60);
/// Spans and rows beyond these make the file large and the picture unreadable.
const SPANS_MAX: usize = 400;
const ROWS_MAX: usize = 12;
/// No request is announced earlier than this before its arrival.
const HINT_MAX: Duration = Duration::from_micros(400);

/// One simulation with recorded spans; the tasks of the outcome are the loads.
pub(super) struct Observed<'a> {
    pub(super) loads: &'a [&'a Load],
    pub(super) outcome: &'a Outcome,
}

impl Observed<'_> {
    fn requests(&self) -> impl Iterator<Item = &Served> {
        let tasks = self.loads.iter().zip(&self.outcome.tasks);
        tasks.filter(|(load, _)| load.role == Role::Lc).flat_map(|(_, task)| &task.served)
    }

    /// The request of a measurement that has exactly one.
    pub(super) fn only_request(&self) -> Option<&Served> {
        let mut requests = self.requests();
        requests.next().filter(|_| requests.next().is_none())
    }

    /// The spans of all loads of a role, in order of time.
    fn spans(&self, role: Role, is_meant: impl Fn(Activity) -> bool) -> Vec<Tracked> {
        let of_role = |span: &&Tracked| {
            let owner = self.outcome.queues.iter().find(|(queue, ..)| *queue == span.queue);
            let load = owner.and_then(|&(_, task, _)| self.loads.get(task));
            load.is_some_and(|load| load.role == role)
        };
        let meant = self.outcome.spans.iter().filter(|span| is_meant(span.activity));
        let mut spans: Vec<Tracked> = meant.filter(of_role).copied().collect();
        spans.sort_unstable_by_key(|span| span.start);
        spans
    }

    fn runs(&self, role: Role) -> Vec<Tracked> {
        self.spans(role, |activity| activity == Activity::Run)
    }

    /// The span in which best-effort work leaves the device for a request.
    fn leaves(&self, arrived: Instant) -> Option<Tracked> {
        let from = arrived.as_nanos().saturating_sub(HINT_MAX.as_nanos());
        let spans = self.spans(Role::Be, |a| matches!(a, Activity::Save | Activity::Kill));
        spans.into_iter().find(|span| span.start.as_nanos() >= from)
    }

    /// Percentiles over all requests that found best-effort work on the device.
    pub(super) fn preemptions(&self) -> Vec<Number> {
        let (lc_runs, be_runs) = (self.runs(Role::Lc), self.runs(Role::Be));
        let (mut be_off, mut first_instruction, mut resume) = (Vec::new(), Vec::new(), Vec::new());
        for request in self.requests() {
            let running = be_runs.partition_point(|span| span.start <= request.arrived);
            let met = running.checked_sub(1).map(|index| be_runs[index]);
            let Some(met) = met.filter(|span| span.end > request.arrived) else { continue };
            let first = lc_runs.partition_point(|span| span.start < request.began);
            let Some(first) = lc_runs.get(first) else { continue };
            first_instruction.push(first.start.since(request.arrived).as_nanos());
            if met.end <= first.start {
                be_off.push(met.end.since(request.arrived).as_nanos());
            }
            resume.extend(resumed_after(&be_runs, request.ended));
        }
        Number::of_preemptions(be_off, first_instruction, resume)
    }

    /// The phases of one request and its moments; `at_*` count from its arrival.
    pub(super) fn request_moments(&self, request: &Served, is_scheduled: bool) -> Vec<Number> {
        let arrived = request.arrived;
        let decision = |verb: &str, from: Instant| {
            let mut decisions = self.outcome.decisions.iter();
            decisions.find(|d| d.at >= from && d.reason.verb() == verb).map(|d| d.at)
        };
        let hint = arrived.as_nanos().saturating_sub(HINT_MAX.as_nanos());
        let decided = decision("preempt", Instant::from_nanos(hint));
        let mut lc_runs = self.runs(Role::Lc);
        lc_runs.retain(|span| span.start < request.ended);
        let starts = lc_runs.first().map(|span| span.start);
        let ends = lc_runs.iter().map(|span| span.end).max();
        let resume_decided = decided.and_then(|decided| decision("resume", decided));
        // Best-effort work may still run for a while after the request has arrived.
        let from = ends.max(resume_decided).unwrap_or(arrived);
        let be_runs = self.runs(Role::Be);
        let resumed = be_runs.iter().map(|span| span.start).find(|&at| at >= from);
        let scheduled = |at: Option<Instant>| at.filter(|_| is_scheduled);
        let phases = [
            ("detect", "from the arrival to the decision to preempt", Some(arrived), decided),
            (
                "preempt",
                "from that decision to the request running",
                scheduled(decided.or(Some(arrived))),
                starts,
            ),
            ("execute", "from its first to its last instruction", starts, ends),
            ("resume", "from there to best-effort work running", scheduled(ends), resumed),
            (
                "resume_cost",
                "from the decision to resume to best-effort work running",
                scheduled(resume_decided.or(ends)),
                resumed,
            ),
        ];
        let phases = phases.into_iter().filter_map(|(name, title, from, to)| {
            Some(Number::new(name, title, "ns", relative(from?, to?)))
        });
        let be = self.loads.iter().zip(&self.outcome.tasks);
        let mut be = be.filter(|(load, _)| load.role == Role::Be);
        let be = be.find_map(|(_, task)| task.served.first());
        let left = self.leaves(arrived);
        let leaving = match left.is_some_and(|span| span.activity == Activity::Kill) {
            true => ("at_kill", "best-effort waves are killed"),
            false => ("at_save", "best-effort waves are being saved"),
        };
        let moments = [
            ("at_submit", "best-effort kernels are submitted", be.map(|served| served.began)),
            ("at_arrival", "the request arrives", Some(arrived)),
            ("at_preempt", "the scheduler decides to preempt", decided),
            (leaving.0, leaving.1, left.map(|span| span.start)),
            ("at_off", "best-effort work is off the device", left.map(|span| span.end)),
            ("at_run", "the request's kernel runs", starts),
            ("at_done", "the request's kernel is done", ends),
            ("at_answer", "the client has the answer", Some(request.ended)),
            ("at_resume", "the scheduler decides to resume", resume_decided),
            ("at_back", "best-effort work runs again", left.and(resumed)),
            ("at_end", "all best-effort kernels are done", be.map(|served| served.ended)),
        ];
        let moments = moments.into_iter().filter_map(|(name, title, at)| {
            Some(Number::new(name, title, "ns", relative(arrived, at?)))
        });
        phases.chain(moments).collect()
    }

    /// The request in the middle of the run, with the loads around it.
    pub(super) fn time_line(&self) -> Option<TimeLine> {
        let requests: Vec<&Served> = self.requests().collect();
        let request = requests.get(requests.len() / 2)?;
        let start = request.arrived.as_nanos().saturating_sub(AROUND.as_nanos());
        let from = Instant::from_nanos(start);
        let until = (request.ended + AROUND).min(from + LENGTH_MAX);
        let offset = |at: Instant| at.max(from).min(until).since(from).as_nanos();
        let mut spans = Vec::new();
        for span in &self.outcome.spans {
            let mut queues = self.outcome.queues.iter();
            let Some(&(_, task, _)) = queues.find(|(queue, ..)| *queue == span.queue) else {
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
        let left = self.leaves(request.arrived).map(|span| span.start);
        let be_runs = self.runs(Role::Be).into_iter().map(|span| span.start);
        let back = left.and_then(|left| be_runs.into_iter().find(|&at| at > left));
        let marks = [
            ("request", Some(request.arrived)),
            ("answer", Some(request.ended)),
            ("preempt", left),
            ("back", back),
        ];
        let marks = marks.into_iter().filter_map(|(name, at)| {
            let at = at.filter(|at| (from..=until).contains(at))?;
            Some(Mark { name: name.to_owned(), at_ns: offset(at) })
        });
        Some(TimeLine {
            rows: self.loads.iter().take(ROWS_MAX).map(|load| load.name.clone()).collect(),
            spans,
            marks: marks.collect(),
            length_ns: until.since(from).as_nanos(),
        })
    }
}

/// Nanoseconds from one moment to another, negative if the other was before.
fn relative(from: Instant, to: Instant) -> f64 {
    // CAST: seconds in nanoseconds are far below what a float counts exactly.
    if to >= from { to.since(from).as_nanos() as f64 } else { -(from.since(to).as_nanos() as f64) }
}

/// How long after `ended` one of these runs begins; none if one is in progress then.
fn resumed_after(runs: &[Tracked], ended: Instant) -> Option<u64> {
    let next = runs.partition_point(|span| span.start < ended);
    let is_running = next.checked_sub(1).is_some_and(|before| runs[before].end > ended);
    if is_running {
        return None;
    }
    Some(runs.get(next)?.start.since(ended).as_nanos())
}
