//! About how long a simulation takes: what costs time are launches.

use std::time::Duration;

use crate::plan::Step;
use crate::results::Role;
use crate::suite::{Load, Work};

/// What a launch takes to simulate, in seconds, on a machine of 2024.
const LAUNCH_S: f64 = 18e-6;
/// A second of virtual time in which nothing happens.
const IDLE_S: f64 = 0.01;

/// About how long a measurement takes.
pub(super) fn estimate(step: &Step<'_>) -> Duration {
    // CAST: minutes in nanoseconds are far below what a float counts exactly.
    let virtual_s = step.case.simulated.length(step.is_short).as_nanos() as f64 / 1e9;
    // Alone means twice: requests, and best-effort work. Together they share the device.
    let launches: f64 = step.case.of(Role::Lc).map(requested).sum::<f64>() + back_to_back(step);
    Duration::from_secs_f64(virtual_s * (IDLE_S + launches * LAUNCH_S))
}

/// Launches a second of a load that is told when.
fn requested(load: &Load) -> f64 {
    // CAST: as above.
    let apart = load.arrivals.mean().map_or(f64::INFINITY, |mean| mean.as_nanos() as f64 / 1e9);
    f64::from(load.kernels) / apart
}

/// Launches a second of all best-effort loads, which fill the device in turn.
fn back_to_back(step: &Step<'_>) -> f64 {
    let kernels = step.case.of(Role::Be).filter(|load| load.work != Work::Endless);
    // CAST: as above.
    let lengths: Vec<f64> = kernels.map(|load| load.kernel.as_nanos() as f64 / 1e9).collect();
    let sum: f64 = lengths.iter().sum();
    if sum > 0.0 { lengths.len() as f64 / sum } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::Mode;
    use crate::suite::built_in;

    #[test]
    fn short_kernels_take_longer_to_simulate() {
        let suite = built_in("micro").unwrap();
        let mode = Mode::Hold.info();
        let of = |name: &str| {
            let case = suite.cases.iter().find(|case| case.name == name).unwrap();
            let step = Step { case, mode: &mode, repetition: 0, seed: 1, is_short: false };
            let virtual_s = case.simulated.long.as_nanos() as f64 / 1e9;
            estimate(&step).as_secs_f64() / virtual_s
        };
        assert!(of("be-10us") > 1.5 && of("be-10us") < 3.0, "{}", of("be-10us"));
        assert!(of("be-8ms") < 0.1, "{}", of("be-8ms"));
    }
}
