//! The promises about the daemon, the samples they are about, and whether each was kept.

use serde_json::{Value, json};

use super::cost::Cost;
use super::latency::{Kfd, Latency};
use super::scale::Scale;

/// What may be added to the interval until the command.
const REACTION_US: u64 = 1_000;
/// The longest way from a hint to the command.
const HINT_US: u64 = 200;
/// The most the daemon may use of one core, in percent.
const DAEMON_PERCENT: f64 = 1.0;
/// The most memory the daemon may have.
const DAEMON_KIB: u64 = 20 * 1_000_000 / 1_024;
/// The most `top` may use of one core, in percent.
const TOP_PERCENT: f64 = 3.0;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PromiseResult {
    promise: String,
    measured: String,
    pub(super) is_kept: bool,
}

impl PromiseResult {
    fn new(promise: &str, measured: String, is_kept: bool) -> Self {
        Self { promise: promise.to_owned(), measured, is_kept }
    }

    pub(super) fn to_json(&self) -> Value {
        let Self { promise, measured, is_kept } = self;
        json!({ "promise": promise, "measured": measured, "kept": is_kept })
    }
}

pub(super) fn of_latency(latency: &Latency) -> Vec<PromiseResult> {
    let within = |promise: &str, sample: &Sample, limit_us: u64| {
        let [p50, p99, max] = [500, 990, 1_000].map(|permille| sample.us(permille));
        let measured = format!("p50 {p50} us, p99 {p99} us, max {max} us, n {}", sample.len());
        PromiseResult::new(promise, measured, p99 <= limit_us && sample.len() > 0)
    };
    let interval_us = latency.interval_us + REACTION_US;
    let hint = format!("hint to command: p99 <= 200 us (bare wake-up {} us)", latency.bare.us(990));
    vec![
        within("work to command: p99 <= interval + 1 ms", &latency.work, interval_us),
        within(&hint, &latency.hint, HINT_US),
        within("the same with a busy daemon", &latency.hint_busy, HINT_US),
    ]
}

pub(super) fn of_cost(cost: &Cost) -> Vec<PromiseResult> {
    let Cost { daemon_percent, daemon_kib, top_percent, .. } = *cost;
    vec![
        PromiseResult::new(
            "daemon < 1 % of a core",
            format!("{daemon_percent:.2} %"),
            daemon_percent < DAEMON_PERCENT,
        ),
        PromiseResult::new("daemon < 20 MB", format!("{daemon_kib} KiB"), daemon_kib < DAEMON_KIB),
        PromiseResult::new(
            "top < 3 % of a core",
            format!("{top_percent:.2} %"),
            top_percent < TOP_PERCENT,
        ),
    ]
}

pub(super) fn of_scale(scale: &Scale) -> Vec<PromiseResult> {
    // A machine that stalls makes every thread late; the loop must not be late by itself.
    let (missed, machine) = (scale.missed_turns, scale.machine_missed());
    vec![
        PromiseResult::new(
            "no turn works longer than an interval",
            format!(
                "{}; at most {} us; a thread that does the same every time: {}; at most {} us",
                scale.overrun_turns,
                scale.turn_cpu_us_max,
                scale.machine_overrun(),
                scale.machine_work_us_max(),
            ),
            scale.overrun_turns == 0,
        ),
        PromiseResult::new(
            "no turn begins an interval late",
            format!("{missed} missed; {machine} by a thread that only sleeps"),
            missed == 0,
        ),
        PromiseResult::new(
            "flat memory",
            format!("{} KiB more in the end", scale.growth_kib()),
            scale.is_flat(),
        ),
    ]
}

/// The latency of a high-priority program on an AMD device.
pub(super) fn of_kfd(kfd: &Kfd) -> Vec<PromiseResult> {
    let (p99_us, bound_us) = (kfd.beside.p99_us(), kfd.bound_us());
    let preempts = kfd.cost.len();
    vec![
        PromiseResult::new(
            "AMD: p99 <= interval + cost + alone",
            format!(
                "beside {}; alone {}; bound {bound_us} us = {} + {} + {}; {preempts} preempts; a \
                 thread that sleeps wakes late by p50 {} us, p99 {} us",
                kfd.beside.in_words(),
                kfd.alone.in_words(),
                kfd.interval_us,
                kfd.cost_us(),
                kfd.alone.p99_us(),
                kfd.machine.us(500),
                kfd.machine.us(990),
            ),
            p99_us <= bound_us && preempts > 0,
        ),
        PromiseResult::new(
            "AMD: work to command within the same turn",
            format!("p50 {} us, p99 {} us", kfd.reaction.us(500), kfd.reaction.us(990)),
            kfd.reaction.us(990) <= REACTION_US && kfd.reaction.len() > 0,
        ),
    ]
}

pub(super) fn table(promises: &[PromiseResult]) -> String {
    let rows = promises.iter().map(|PromiseResult { promise, measured, is_kept }| {
        let kept = if *is_kept { "kept" } else { "BROKEN" };
        format!("{promise:<48} {kept:<7} {measured}")
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// Measured times, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    ns: Vec<u64>,
}

impl Sample {
    pub(super) fn push(&mut self, ns: u64) {
        self.ns.push(ns);
    }

    pub(super) const fn len(&self) -> usize {
        self.ns.len()
    }

    /// The percentile in thousandths (nearest rank), in microseconds. Zero without samples.
    pub(super) fn us(&self, permille: usize) -> u64 {
        let mut sorted = self.ns.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * permille).div_ceil(1_000).max(1);
        sorted.get(rank - 1).copied().unwrap_or(0).div_ceil(1_000)
    }

    pub(super) fn beyond_us(&self, us: u64) -> usize {
        self.ns.iter().filter(|ns| **ns > us * 1_000).count()
    }

    pub(super) fn to_json(&self) -> Value {
        let [p50, p99, max] = [500, 990, 1_000].map(|permille| self.us(permille));
        json!({ "n": self.len(), "p50": p50, "p99": p99, "max": max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_promises_stand_out() {
        let promises = [
            PromiseResult::new("small", "9 KiB".to_owned(), true),
            PromiseResult::new("fast", "9 s".to_owned(), false),
        ];
        let table = table(&promises);
        assert_eq!(table.matches("BROKEN").count(), 1);
        assert!(table.lines().nth(1).unwrap().contains("9 s"), "{table}");
        assert_eq!(promises[1].to_json()["kept"], false);
    }

    #[test]
    fn ranks_are_times_that_occurred() {
        let mut sample = Sample::default();
        assert_eq!(sample.us(990), 0);
        for us in (1..=1_000).rev() {
            sample.push(us * 1_000);
        }
        assert_eq!([500, 990, 1_000].map(|permille| sample.us(permille)), [500, 990, 1_000]);
        assert_eq!((sample.beyond_us(998), sample.beyond_us(1_000)), (2, 0));
        sample.push(1);
        assert_eq!(sample.us(0), 1, "a part of a microsecond counts as one");
    }
}
