//! One measurement in virtual time: simulates a case in a mode and reads the outcome.

use gpreempt_core::time::Instant;
use gpreempt_sim::outcome::{Outcome, Served, TaskOutcome};

use super::moments::{self, Observed};
use super::{Emulated, Mode};
use crate::engine::{BE_ALONE, LC_BUSY, busy_part};
use crate::plan::Step;
use crate::results::{
    BeResult, COUNT, Distribution, LcResult, LoadResult, Measurement, Number, Role, SlowRequest,
};
use crate::suite::Load;

impl Emulated {
    pub(super) fn measure_in(&self, step: &Step<'_>, mode: &Mode) -> Result<Measurement, String> {
        let keep = |load: &Load| !mode.is_alone() || load.role == Role::Lc;
        let loads: Vec<&Load> = step.case.loads.iter().filter(|load| keep(load)).collect();
        let mut measured = Measurement::default();
        let mut busy = None;
        if !loads.is_empty() {
            let mut outcome = self.simulate(&self.scenario(step, mode, keep)?, true)?;
            if self.has_one_request {
                outcome.tasks.iter_mut().for_each(|task| task.served.truncate(1));
            }
            measured = read(&loads, &outcome);
            let served = outcome.tasks.iter().flat_map(|task| &task.served);
            let times = served.map(|each| (each.began.as_nanos(), each.ended.as_nanos()));
            busy = Some(busy_part(times.collect(), outcome.duration.as_nanos()));
            if !mode.is_alone() {
                let observed = Observed { loads: &loads, outcome: &outcome };
                measured.numbers.extend(counts(&loads, &outcome));
                measured.numbers.extend(match observed.only_request() {
                    Some(request) => self.one_request(step, mode, &observed, request)?,
                    None => observed.preemptions(),
                });
                measured.time_line = observed.time_line();
            }
        }
        if mode.is_alone() {
            measured.numbers.extend(self.baseline(step, mode, busy)?);
        }
        Ok(measured)
    }

    /// The moments of the only request, and how much longer best-effort work takes because of it.
    fn one_request(
        &self,
        step: &Step<'_>,
        mode: &Mode,
        observed: &Observed<'_>,
        request: &Served,
    ) -> Result<Vec<Number>, String> {
        let mut numbers = observed.request_moments(request, mode.is_scheduled);
        let undisturbed = self.scenario(step, mode, |load| load.role == Role::Be)?;
        let undisturbed = self.simulate(&undisturbed, false)?;
        let took = |outcome: &Outcome, task: usize| {
            // CAST: seconds in nanoseconds are far below what a float counts exactly.
            Some(outcome.tasks.get(task)?.served.first()?.latency().as_nanos() as f64)
        };
        let task = observed.loads.iter().position(|load| load.role == Role::Be);
        let delayed = task.and_then(|task| took(observed.outcome, task));
        let delay = delayed.zip(took(&undisturbed, 0)).map(|(with, without)| with - without);
        let title = "best-effort work ends later by";
        numbers.extend(delay.map(|delay| Number::new(moments::BE_DELAY, title, "ns", delay)));
        Ok(numbers)
    }

    /// What the other modes are compared with: best-effort work alone, and the idle time that
    /// requests leave.
    fn baseline(
        &self,
        step: &Step<'_>,
        mode: &Mode,
        busy: Option<f64>,
    ) -> Result<Vec<Number>, String> {
        let mut numbers = Vec::new();
        // All best-effort loads together: each alone would have the whole device.
        if step.case.of(Role::Be).next().is_some() {
            let scenario = self.scenario(step, mode, |load| load.role == Role::Be)?;
            let outcome = self.simulate(&scenario, false)?;
            let launches: u64 = outcome.tasks.iter().map(|task| task.launches_in_time).sum();
            // CAST: far below what a float counts exactly.
            let rate = launches as f64 / seconds(&outcome);
            let title = "best-effort work without requests";
            numbers.push(Number::new(BE_ALONE, title, "1/s", rate));
        }
        if let Some(busy) = busy {
            let title = "part of the time in which requests are in progress, alone";
            numbers.push(Number::new(LC_BUSY, title, "1", busy));
        }
        Ok(numbers)
    }
}

fn seconds(outcome: &Outcome) -> f64 {
    // CAST: minutes in nanoseconds are far below what a float counts exactly.
    outcome.duration.as_nanos() as f64 / 1e9
}

fn read(loads: &[&Load], outcome: &Outcome) -> Measurement {
    let seconds = seconds(outcome);
    let mut results = Vec::new();
    let (mut latencies, mut services, mut slow) = (Vec::new(), Vec::new(), Vec::new());
    let (mut missed, mut unfinished) = (None::<u64>, 0);
    for (load, task) in loads.iter().zip(&outcome.tasks) {
        let (lc, be) = match load.role {
            Role::Lc => {
                let lc = lc(load, task, outcome);
                latencies.extend(task.latencies().iter().map(|latency| latency.as_nanos()));
                services.extend(service_times(task, outcome));
                slow.extend(requests(task));
                if let Some(lc) = &lc {
                    unfinished += lc.unfinished;
                    missed = lc.missed.map(|late| late + missed.unwrap_or(0)).or(missed);
                }
                (lc, None)
            }
            Role::Be => (None, Some(be(task.launches_in_time, seconds, outcome.exact))),
        };
        results.push(LoadResult { name: load.name.clone(), role: load.role, lc, be });
    }
    let lc = Distribution::of(latencies).map(|latency| LcResult {
        latency,
        service: Distribution::of(services),
        unfinished,
        missed,
        slowest: SlowRequest::slowest(slow),
    });
    let has_be = loads.iter().any(|load| load.role == Role::Be);
    let launches = loads.iter().zip(&outcome.tasks).filter(|(load, _)| load.role == Role::Be);
    let launches = launches.map(|(_, task)| task.launches_in_time).sum();
    let be = has_be.then(|| be(launches, seconds, outcome.exact));
    Measurement { lc, be, loads: results, ..Measurement::default() }
}

/// From the beginning of requests to their ends. Requests that begin after the measured time run
/// without best-effort work and do not count.
fn service_times(task: &TaskOutcome, outcome: &Outcome) -> Vec<u64> {
    let end = Instant::ZERO + outcome.duration;
    let served = task.served.iter().filter(|served| served.began < end);
    served.map(|served| served.ended.since(served.began).as_nanos()).collect()
}

/// Every request by the simulator's clock, which begins with the measured window.
fn requests(task: &TaskOutcome) -> Vec<SlowRequest> {
    let request = |served: &Served| {
        let [due, began, ended] =
            [served.arrived, served.began, served.ended].map(Instant::as_nanos);
        SlowRequest::since(0, due, began, ended)
    };
    task.served.iter().map(request).collect()
}

fn lc(load: &Load, task: &TaskOutcome, outcome: &Outcome) -> Option<LcResult> {
    let end = Instant::ZERO + outcome.duration;
    let latency = Distribution::of(task.latencies().iter().map(|l| l.as_nanos()).collect())?;
    let late = task.served.iter().filter(|served| served.ended > end);
    Some(LcResult {
        latency,
        service: Distribution::of(service_times(task, outcome)),
        // The simulator serves every request; these were in progress at the end of the window.
        unfinished: late.count() as u64,
        missed: load.deadline.map(|_| task.deadline_misses),
        slowest: SlowRequest::slowest(requests(task)),
    })
}

fn be(launches: u64, seconds: f64, exact: bool) -> BeResult {
    // CAST: far below what a float counts exactly.
    BeResult::new(launches as f64, "kernels", seconds, Some(exact))
}

fn counts(loads: &[&Load], outcome: &Outcome) -> Vec<Number> {
    let mut counts = vec![
        ("preemptions", "preemptions", outcome.preemptions),
        ("reexecuted", "kernels whose execution began more than once", outcome.reexecuted),
        ("lost", "kernels that never completed", outcome.lost),
    ];
    if loads.iter().any(|load| load.memory_mib > 0) {
        let refused = outcome.tasks.iter().filter(|task| task.refused).count() as u64;
        counts.push(("evictions", "moves of a load's memory to the host", outcome.evictions));
        counts.push(("refused", "loads that got no memory", refused));
    }
    let number = |(name, title, count): (&str, &str, u64)| {
        // CAST: far below what a float counts exactly.
        Number::new(name, title, COUNT, count as f64)
    };
    counts.into_iter().map(number).collect()
}
