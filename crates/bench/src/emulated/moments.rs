//! When best-effort work left, when the request's first instruction ran, when the other was back.

use gpreempt_core::time::Instant;
use gpreempt_sim::outcome::Outcome;
use gpreempt_sim::track::{Activity, Span};

use crate::results::{Distribution, Number, Role};
use crate::suite::Load;

/// The moments of all requests of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Moments {
    /// From a request being due to best-effort work being off the device.
    be_off: Vec<u64>,
    /// From there to the request's first instruction.
    first_instruction: Vec<u64>,
    /// From its end to best-effort work running again.
    resume: Vec<u64>,
}

impl Moments {
    /// Reads them off the time line. Requests that met nobody do not count.
    pub(super) fn of(loads: &[&Load], outcome: &Outcome) -> Self {
        let of = |role: Role, activity: Activity| {
            let mut spans: Vec<Span> = outcome
                .spans
                .iter()
                .filter(|span| span.activity == activity)
                .filter(|span| {
                    let owner = outcome.queues.iter().find(|(queue, ..)| *queue == span.queue);
                    owner.is_some_and(|&(_, task, _)| {
                        loads.get(task).is_some_and(|load| load.role == role)
                    })
                })
                .copied()
                .collect();
            spans.sort_unstable_by_key(|span| span.start);
            spans
        };
        let (lc_runs, be_runs) = (of(Role::Lc, Activity::Run), of(Role::Be, Activity::Run));
        let served = loads.iter().zip(&outcome.tasks).filter(|(load, _)| load.role == Role::Lc);
        let mut moments = Self::default();
        for request in served.flat_map(|(_, task)| &task.served) {
            let running = be_runs.partition_point(|span| span.start <= request.arrived);
            let met = running.checked_sub(1).map(|index| be_runs[index]);
            let Some(met) = met.filter(|span| span.end > request.arrived) else { continue };
            let first = lc_runs.partition_point(|span| span.start < request.began);
            let Some(first) = lc_runs.get(first) else { continue };
            moments.first_instruction.push(first.start.since(request.arrived).as_nanos());
            if met.end <= first.start {
                moments.be_off.push(met.end.since(request.arrived).as_nanos());
            }
            moments.resume.extend(back(&be_runs, request.ended));
        }
        moments
    }

    /// Their percentiles.
    pub(super) fn numbers(self) -> Vec<Number> {
        [
            ("be_off", "from a request to best-effort work being off", self.be_off),
            (
                "first_instruction",
                "from a request to its first instruction",
                self.first_instruction,
            ),
            ("resume", "from a request's end to best-effort work running", self.resume),
        ]
        .into_iter()
        .filter_map(|(name, title, times)| Some((name, title, Distribution::of(times)?)))
        .flat_map(|(name, title, spread)| Number::percentiles(name, title, &spread))
        .collect()
    }
}

/// How long it takes until somebody of them runs again.
fn back(runs: &[Span], ended: Instant) -> Option<u64> {
    let next = runs.partition_point(|span| span.start < ended);
    // Whoever runs already need not come back.
    let is_running = next.checked_sub(1).is_some_and(|before| runs[before].end > ended);
    if is_running {
        return None;
    }
    Some(runs.get(next)?.start.since(ended).as_nanos())
}
