//! What came out, in a few sentences.

use std::collections::BTreeSet;

use crate::results::{Results, Status};

/// What came out.
pub(super) fn sentence(results: &Results) -> String {
    let mut parts = vec![extent(results)];
    parts.extend(checks(results));
    parts.extend(failures(results));
    if results.finished.is_none() {
        parts.push("The run was interrupted: this is what it measured until then.".to_owned());
    }
    parts.join(" ")
}

fn extent(results: &Results) -> String {
    let cases = counted(results.cases.len(), "case");
    let modes = counted(results.modes.len(), "mode");
    let repetitions = match results.repetitions {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    };
    // What is known about a device is told where the numbers come from.
    let devices = results.environment.devices.iter();
    let names = devices.map(|device| device.split(" (").next().unwrap_or(device));
    let devices = names.collect::<Vec<_>>().join(" and ");
    let place = if devices.is_empty() { results.backend.as_str() } else { devices.as_str() };
    let kind = if results.backend == "emulated" { " (emulated)" } else { "" };
    format!("{cases} in {modes}, each {repetitions}, on {place}{kind}.")
}

fn checks(results: &Results) -> Option<String> {
    let (all, passed) = (results.checks.len(), results.checks.iter().filter(|c| c.passed).count());
    match (all, passed) {
        (0, _) => None,
        (1, 1) => Some("What the suite asks for holds.".to_owned()),
        _ if all == passed => Some(format!("All {all} things the suite asks for hold.")),
        _ => Some(format!("{} of {all} things the suite asks for do not hold.", all - passed)),
    }
}

fn failures(results: &Results) -> Option<String> {
    let failed = results.measurements.iter().filter(|each| match each.status {
        Status::Failed { .. } => true,
        Status::Ok | Status::Skipped { .. } => false,
    });
    let modes: BTreeSet<&str> = failed.map(|each| each.mode.as_str()).collect();
    let names = modes.into_iter().collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| format!("Measurements failed in: {names}."))
}

/// `1 case`, `2 cases`.
pub(super) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
