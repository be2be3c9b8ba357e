//! The simulator against the hardware: the same cases, the same modes, both medians.

use serde::Serialize;

use crate::emulated::Emulated;
use crate::engine::Backend;
use crate::plan::Step;
use crate::results::{Estimate, Measurement, Results};
use crate::suite::{Backends, Case, Suite};

/// How far a prediction may be off.
pub const TOLERANCE: f64 = 0.15;

/// One case in one mode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The case's name.
    pub case: String,
    /// The mode's name.
    pub mode: String,
    /// The median service time that was measured (ns): the median of all repetitions.
    pub measured_ns: f64,
    /// The one that the simulator says (ns).
    pub predicted_ns: f64,
    /// How far it is off: 0.1 is 10 % too much.
    pub off: f64,
    /// Whether that is close enough.
    pub is_close: bool,
}

/// Predicts every median of the results that the simulator can.
///
/// Service times are compared, from a request's beginning to its end: where requests queue up,
/// the time that they wait is a matter of how long somebody measured.
///
/// # Errors
/// If the results are of another text of the suite, or the simulator cannot run a case.
pub fn predict(suite: &Suite, results: &Results) -> Result<Vec<Prediction>, String> {
    if suite.digest != results.suite.digest {
        return Err(format!(
            "the results are of another text of the suite {}; measure again",
            suite.name
        ));
    }
    let known = Emulated.modes();
    let mut predictions = Vec::new();
    for case in suite.cases.iter().filter(|case| case.backends != Backends::Nvidia) {
        for mode in &known {
            let measured = results.of(&case.name, &mode.name).filter(|each| each.is_ok());
            let medians: Vec<f64> = measured.filter_map(median).collect();
            let Some(measured) = Estimate::of(&medians) else { continue };
            let step = Step { case, mode, repetition: 0, seed: 1, is_short: results.short };
            let simulated = Emulated.measure(&step)?;
            let lc = simulated.lc.ok_or_else(|| nothing(case))?;
            let service = lc.service.unwrap_or(lc.latency);
            // CAST: a latency is far below what a float counts exactly.
            let predicted_ns = service.p50_ns as f64;
            let off = predicted_ns / measured.median - 1.0;
            predictions.push(Prediction {
                case: case.name.clone(),
                mode: mode.name.clone(),
                measured_ns: measured.median,
                predicted_ns,
                off,
                is_close: off.abs() <= TOLERANCE,
            });
        }
    }
    Ok(predictions)
}

fn nothing(case: &Case) -> String {
    format!("the simulator served no request of case {}", case.name)
}

fn median(measurement: &Measurement) -> Option<f64> {
    let lc = measurement.lc.as_ref()?;
    // CAST: a latency is far below what a float counts exactly.
    Some(lc.service.as_ref().unwrap_or(&lc.latency).p50_ns as f64)
}
