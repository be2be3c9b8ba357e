//! What was promised, and whether it was kept.

use serde_json::{Value, json};

use super::cost::Cost;
use super::kfd::Kfd;
use super::latency::Latency;
use super::sample::Sample;
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

/// One promise.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Verdict {
    promise: String,
    measured: String,
    is_kept: bool,
}

impl Verdict {
    fn new(promise: &str, measured: String, is_kept: bool) -> Self {
        Self { promise: promise.to_owned(), measured, is_kept }
    }

    pub(super) const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        let Self { promise, measured, is_kept } = self;
        json!({ "promise": promise, "measured": measured, "kept": is_kept })
    }
}

/// How fast it reacts.
pub(super) fn of_latency(latency: &Latency) -> Vec<Verdict> {
    let within = |promise: &str, sample: &Sample, limit_us: u64| {
        let [p50, p99, max] = [500, 990, 1_000].map(|permille| sample.us(permille));
        let measured = format!("p50 {p50} us, p99 {p99} us, max {max} us, n {}", sample.len());
        Verdict::new(promise, measured, p99 <= limit_us && sample.len() > 0)
    };
    let interval_us = latency.interval_us + REACTION_US;
    let hint = format!("hint to command: p99 <= 200 us (bare wake-up {} us)", latency.bare.us(990));
    vec![
        within("work to command: p99 <= interval + 1 ms", &latency.work, interval_us),
        within(&hint, &latency.hint, HINT_US),
        within("the same with a busy daemon", &latency.hint_busy, HINT_US),
    ]
}

/// What it costs.
pub(super) fn of_cost(cost: &Cost) -> Vec<Verdict> {
    let Cost { daemon_percent, daemon_kib, top_percent, .. } = *cost;
    vec![
        Verdict::new(
            "daemon < 1 % of a core",
            format!("{daemon_percent:.2} %"),
            daemon_percent < DAEMON_PERCENT,
        ),
        Verdict::new("daemon < 20 MB", format!("{daemon_kib} KiB"), daemon_kib < DAEMON_KIB),
        Verdict::new(
            "top < 3 % of a core",
            format!("{top_percent:.2} %"),
            top_percent < TOP_PERCENT,
        ),
    ]
}

/// How far it reaches.
pub(super) fn of_scale(scale: &Scale) -> Vec<Verdict> {
    // A machine that stands still makes everybody late; the loop must not be late by itself.
    let (missed, machine) = (scale.missed_turns, scale.machine_missed());
    vec![
        Verdict::new(
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
        Verdict::new(
            "no turn begins an interval late",
            format!("{missed} missed; {machine} by a thread that only sleeps"),
            missed == 0,
        ),
        Verdict::new(
            "flat memory",
            format!("{} KiB more in the end", scale.growth_kib()),
            scale.is_flat(),
        ),
    ]
}

/// What it is worth to an important program on an AMD device.
pub(super) fn of_kfd(kfd: &Kfd) -> Vec<Verdict> {
    let (p99_us, bound_us) = (kfd.beside.p99_us(), kfd.bound_us());
    let preempts = kfd.cost.len();
    vec![
        Verdict::new(
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
        Verdict::new(
            "AMD: work to command within the same turn",
            format!("p50 {} us, p99 {} us", kfd.reaction.us(500), kfd.reaction.us(990)),
            kfd.reaction.us(990) <= REACTION_US && kfd.reaction.len() > 0,
        ),
    ]
}

/// For people.
pub(super) fn table(verdicts: &[Verdict]) -> String {
    let rows = verdicts.iter().map(|Verdict { promise, measured, is_kept }| {
        let kept = if *is_kept { "kept" } else { "BROKEN" };
        format!("{promise:<48} {kept:<7} {measured}")
    });
    rows.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_promises_stand_out() {
        let verdicts = [
            Verdict::new("small", "9 KiB".to_owned(), true),
            Verdict::new("fast", "9 s".to_owned(), false),
        ];
        let table = table(&verdicts);
        assert_eq!(table.matches("BROKEN").count(), 1);
        assert!(table.lines().nth(1).unwrap().contains("9 s"), "{table}");
        assert_eq!(verdicts[1].to_json()["kept"], false);
    }
}
