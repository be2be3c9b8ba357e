//! One design measured.

use gpreempt_bench::report::model::Mode;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::simulation::{Options, run};
use gpreempt_sim::track::{Activity, Span};
use serde::Serialize;

use super::time_line::{self, Event};
use super::workload::{self, Design, RESUME_INTERVAL_US};
use crate::failure::Failure;
use crate::output::micros;
use crate::tracks;

pub(super) const OFFLINE: usize = 0;
pub(super) const ONLINE: usize = 1;

/// The first table: one request in the middle of 100 kernels.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) mode: &'static str,
    pub(crate) device: String,
    pub(crate) device_measured: bool,
    /// From the arrival to the decision to preempt; none where the hardware decides by itself.
    pub(crate) detect_us: Option<f64>,
    /// From there (or from the arrival) to online work running.
    pub(crate) preempt_us: Option<f64>,
    /// Online work running.
    pub(crate) execute_us: Option<f64>,
    /// From the last online instruction to offline work running again.
    pub(crate) resume_us: Option<f64>,
    pub(crate) online: Online,
    pub(crate) offline: Offline,
    pub(crate) preemptions: u64,
    pub(crate) reexecuted: u64,
    pub(crate) lost: u64,
    pub(crate) exact: bool,
    /// What happened, moment by moment.
    pub(crate) time_line: Vec<Event>,
}

/// There is one request, so all of these are its latency.
#[derive(Debug, Serialize)]
pub(crate) struct Online {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) max_us: f64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Offline {
    pub(crate) total_us: f64,
    /// How much later it is done than without the request.
    pub(crate) delay_us: f64,
}

/// The second table: what resuming costs.
#[derive(Debug, Serialize)]
pub(crate) struct ResumeRow {
    pub(crate) mode: &'static str,
    pub(crate) pending: u32,
    pub(crate) resume_us: f64,
    pub(crate) reexecuted: u64,
    pub(crate) exact: bool,
}

/// The moments of one preemption.
pub(super) struct Moments {
    pub(super) decided: Option<Instant>,
    pub(super) online_starts: Option<Instant>,
    pub(super) online_ends: Option<Instant>,
    pub(super) resume_decided: Option<Instant>,
    pub(super) offline_resumes: Option<Instant>,
}

/// A design's row, and what its time line shows.
pub(crate) fn row(design: Design, interval_us: u64) -> Result<(Row, Mode), Failure> {
    let scenario = workload::hundred_kernels(design, interval_us)?;
    let outcome = simulate(&scenario)?;
    let undisturbed = simulate(&workload::undisturbed(design)?)?;
    let arrival = Instant::ZERO + workload::arrival(interval_us);
    let moments = moments(&outcome, arrival);
    let between = |from: Option<Instant>, to: Option<Instant>| {
        from.zip(to).map(|(from, to)| micros(to.since(from).as_nanos()))
    };
    let detect_us = between(Some(arrival), moments.decided);
    let latency = micros(took(&outcome, ONLINE).as_nanos());
    let total_us = micros(took(&outcome, OFFLINE).as_nanos());
    let alone_us = micros(took(&undisturbed, OFFLINE).as_nanos());
    let mode = mode(design, &outcome, arrival, &moments);
    let row = Row {
        mode: design.name(),
        device: scenario.model.name.clone(),
        device_measured: scenario.model.measured,
        detect_us,
        preempt_us: between(moments.decided.or(Some(arrival)), moments.online_starts)
            .filter(|_| design.preempts()),
        execute_us: between(moments.online_starts, moments.online_ends),
        resume_us: between(moments.online_ends, moments.offline_resumes)
            .filter(|_| design.preempts()),
        online: Online { p50_us: latency, p99_us: latency, max_us: latency },
        offline: Offline { total_us, delay_us: total_us - alone_us },
        preemptions: outcome.preemptions,
        reexecuted: outcome.reexecuted,
        lost: outcome.lost,
        exact: outcome.exact,
        time_line: time_line::events(&outcome, arrival, &moments),
    };
    Ok((row, mode))
}

fn mode(design: Design, outcome: &Outcome, arrival: Instant, moments: &Moments) -> Mode {
    Mode {
        name: design.name().to_owned(),
        explanation: design.explanation().to_owned(),
        online_ns: vec![took(outcome, ONLINE).as_nanos()],
        kept: None,
        preemptions: outcome.preemptions,
        reexecuted: outcome.reexecuted,
        lost: outcome.lost,
        exact: outcome.exact,
        lanes: time_line::lanes(outcome),
        marks: time_line::marks(outcome, arrival, moments),
    }
}

pub(crate) fn resume_row(design: Design, pending: u32) -> Result<ResumeRow, Failure> {
    let outcome = simulate(&workload::pending_kernels(design, pending)?)?;
    let moments = moments(&outcome, Instant::ZERO + workload::arrival(RESUME_INTERVAL_US));
    let from = moments.resume_decided.or(moments.online_ends);
    let resume = from.zip(moments.offline_resumes).map(|(from, to)| to.since(from));
    Ok(ResumeRow {
        mode: design.name(),
        pending,
        resume_us: micros(resume.unwrap_or(Duration::ZERO).as_nanos()),
        reexecuted: outcome.reexecuted,
        exact: outcome.exact,
    })
}

fn simulate(scenario: &gpreempt_sim::scenario::Scenario) -> Result<Outcome, Failure> {
    let options = Options { spans_max: 1_000_000, decisions_max: 10_000, ..Options::default() };
    run(scenario, options).map_err(Failure::run)
}

fn took(outcome: &Outcome, task: usize) -> Duration {
    let served = outcome.tasks.get(task).and_then(|task| task.served.first());
    served.map_or(Duration::ZERO, gpreempt_sim::outcome::Served::latency)
}

/// The longest that a request is announced ahead.
pub(super) const HINT_MAX: Duration = Duration::from_micros(400);

fn moments(outcome: &Outcome, arrival: Instant) -> Moments {
    let runs = |task: usize| {
        let runs = |span: &&Span| span.activity == Activity::Run;
        tracks::of_task(outcome, task).filter(runs)
    };
    let decision = |verb: &str, from: Instant| {
        let mut decisions = outcome.decisions.iter();
        decisions.find(|d| d.at >= from && d.reason.verb() == verb).map(|d| d.at)
    };
    let online_from = Instant::from_nanos(arrival.as_nanos().saturating_sub(HINT_MAX.as_nanos()));
    let decided = decision("preempt", online_from);
    // The second request comes when all is over.
    let answered = outcome.tasks.get(ONLINE).and_then(|online| online.served.first());
    let first = |span: &&Span| answered.is_none_or(|served| span.start < served.ended);
    let online_starts = runs(ONLINE).map(|span| span.start).min();
    let online_ends = runs(ONLINE).filter(first).map(|span| span.end).max();
    let resume_decided = decided.and_then(|decided| decision("resume", decided));
    // Offline work may go on a little while online work is on its way.
    let back = online_ends.max(resume_decided).unwrap_or(arrival);
    let offline_resumes = runs(OFFLINE).map(|span| span.start).filter(|&at| at >= back).min();
    Moments { decided, online_starts, online_ends, resume_decided, offline_resumes }
}
