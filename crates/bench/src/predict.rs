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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Environment, SCHEMA, Status, SuiteInfo};
    use crate::suite::built_in;

    /// What the simulator itself measured, as if it were a GPU that is `slower` times as slow.
    fn results(suite: &Suite, mode: &str, slower: u64) -> Results {
        let case = suite.cases.iter().find(|case| case.name == "gap30").unwrap();
        let modes = Emulated.modes();
        let mode = modes.iter().find(|known| known.name == mode).unwrap();
        let step = Step { case, mode, repetition: 0, seed: 1, is_short: true };
        let measured = Emulated.measure(&step).unwrap();
        let mut lc = measured.lc.unwrap();
        if let Some(service) = &mut lc.service {
            service.p50_ns *= slower;
        }
        let measurement = Measurement {
            case: case.name.clone(),
            mode: mode.name.clone(),
            repetition: 0,
            seed: 1,
            took_s: 0.0,
            status: Status::Ok,
            lc: Some(lc),
            be: None,
            loads: Vec::new(),
            numbers: Vec::new(),
            time_line: None,
        };
        Results {
            schema: SCHEMA,
            suite: SuiteInfo {
                name: suite.name.clone(),
                title: suite.title.clone(),
                digest: suite.digest.clone(),
            },
            backend: "nvidia".into(),
            command: String::new(),
            commit: None,
            environment: Environment::default(),
            started: String::new(),
            finished: None,
            repetitions: 1,
            short: true,
            modes,
            cases: Vec::new(),
            measurements: vec![measurement],
            summary: Vec::new(),
            checks: Vec::new(),
        }
    }

    #[test]
    fn a_prediction_is_close_or_says_how_far_off_it_is() {
        let suite = built_in("micro").unwrap();
        let close = predict(&suite, &results(&suite, "hold", 1)).unwrap();
        assert_eq!(close.len(), 1);
        assert!(close[0].is_close && close[0].off == 0.0, "{close:?}");
        let far = predict(&suite, &results(&suite, "hold", 2)).unwrap();
        assert!(!far[0].is_close && far[0].off == -0.5, "{far:?}");
    }

    #[test]
    fn results_of_another_text_are_refused() {
        let suite = built_in("micro").unwrap();
        let mut results = results(&suite, "alone", 1);
        results.suite.digest = "0".into();
        let error = predict(&suite, &results).unwrap_err();
        assert!(error.contains("another text"), "{error}");
    }
}
