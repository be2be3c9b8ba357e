//! The daemon itself.

use gpreempt_wire::state::Snapshot;

use super::label::Labels;
use super::page::{Family, Page};
use super::value::Value;

/// How it does.
pub(super) fn write(page: &mut Page, snapshot: &Snapshot) {
    let daemon = &snapshot.daemon;
    page.family(
        &Family::gauge("gpreempt_build_info", "Always 1; the label is the daemon's version."),
        [(Labels::default().with("version", &daemon.version), Value::Whole(1))],
    );
    page.family(
        &Family::gauge("gpreempt_policy_info", "Always 1; the label says who comes first."),
        [(Labels::default().with("policy", &snapshot.policy), Value::Whole(1))],
    );
    for (family, value) in [
        (
            Family::gauge("gpreempt_interval_seconds", "How often rings are read."),
            Value::Micros(snapshot.interval_us),
        ),
        (
            Family::gauge("gpreempt_uptime_seconds", "How long the daemon has run."),
            Value::Millis(daemon.uptime_ms),
        ),
        (
            Family::counter("gpreempt_loop_turns_total", "Turns of the daemon's loop."),
            Value::Whole(daemon.turns),
        ),
        (
            Family::counter(
                "gpreempt_loop_late_turns_total",
                "Turns that came more than a millisecond too late.",
            ),
            Value::Whole(daemon.late_turns),
        ),
        (
            Family::counter(
                "gpreempt_loop_missed_turns_total",
                "Turns that came more than an interval too late.",
            ),
            Value::Whole(daemon.missed_turns),
        ),
        (
            Family::counter(
                "gpreempt_loop_overrun_turns_total",
                "Turns that took more than an interval of processor time.",
            ),
            Value::Whole(daemon.overrun_turns),
        ),
        (
            Family::counter("gpreempt_cpu_seconds_total", "Processor time of the daemon."),
            Value::Millis(daemon.cpu_ms),
        ),
        (
            Family::gauge("gpreempt_resident_bytes", "Memory of the daemon."),
            Value::Whole(daemon.resident_kib.saturating_mul(1_024)),
        ),
        (
            Family::gauge("gpreempt_sessions", "Clients that are connected to the daemon."),
            Value::Whole(u64::from(daemon.sessions)),
        ),
        (
            Family::gauge("gpreempt_problems", "Problems the daemon has met lately."),
            Value::Whole(count(snapshot.problems.len())),
        ),
        (
            Family::gauge("gpreempt_devices", "Devices that the daemon knows."),
            Value::Whole(count(snapshot.devices.len())),
        ),
        (
            Family::gauge("gpreempt_processes", "Processes that use devices."),
            Value::Whole(count(snapshot.tasks.len())),
        ),
    ] {
        page.single(&family, value);
    }
}

/// A length as a number of a line.
pub(super) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
