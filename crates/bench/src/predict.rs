//! Predictions: the medians of the simulator beside those measured on a GPU, for the same cases and
//! modes.

use serde::Serialize;

use crate::emulated::Emulated;
use crate::engine::Backend;
use crate::plan::Step;
use crate::results::{Estimate, Measurement, ModeInfo, Results};
use crate::suite::{Backends, Case, Suite};

/// The largest relative error of a good prediction.
pub const TOLERANCE: f64 = 0.15;
/// Simulations of a case, each with different random arrivals.
const SEEDS: u64 = 5;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    pub case: String,
    pub mode: String,
    /// The measured median service time (ns), the median of all repetitions.
    pub measured_ns: f64,
    /// The simulated one (ns) plus `host_ns`.
    pub predicted_ns: f64,
    /// What the host adds to a request in the baseline (ns): the simulator models the device only.
    pub host_ns: f64,
    /// The relative error: 0.1 is 10 % too much.
    pub off: f64,
    pub is_close: bool,
}

/// Predicts every median of the results that the simulator can.
///
/// Service times are compared, from a request's beginning to its end: where requests queue up, the
/// time that they wait depends on the length of the measurement.
///
/// # Errors
/// If the results are of another text of the suite, or the simulator cannot run a case.
pub fn predict(suite: &Suite, results: &Results) -> Result<Vec<Prediction>, String> {
    if suite.digest != results.suite.digest {
        return Err(format!(
            "the results are of another text of the suite {}; name its file with --suite FILE, or \
             measure again",
            suite.name
        ));
    }
    let known = Emulated::default().modes();
    let mut predictions = Vec::new();
    for case in suite.cases.iter().filter(|case| case.backends != Backends::Nvidia) {
        let mut host_ns = None;
        for mode in &known {
            let measured = results.of(&case.name, &mode.name).filter(|each| each.is_ok());
            let medians: Vec<f64> = measured.filter_map(median).collect();
            let Some(measured) = Estimate::of(&medians) else { continue };
            let simulated_ns = simulate(case, mode)?;
            // The baseline comes first and shows what the host adds.
            let Some(host_ns) = host_ns else {
                host_ns = Some((measured.median - simulated_ns).max(0.0));
                continue;
            };
            let predicted_ns = simulated_ns + host_ns;
            let off = predicted_ns / measured.median - 1.0;
            predictions.push(Prediction {
                case: case.name.clone(),
                mode: mode.name.clone(),
                measured_ns: measured.median,
                predicted_ns,
                host_ns,
                off,
                is_close: off.abs() <= TOLERANCE,
            });
        }
    }
    Ok(predictions)
}

/// The simulated median service time (ns).
fn simulate(case: &Case, mode: &ModeInfo) -> Result<f64, String> {
    let mut medians = Vec::new();
    for seed in 1..=SEEDS {
        let step = Step { case, mode, repetition: 0, seed, is_short: false };
        let lc = Emulated::default().measure(&step)?.lc.ok_or_else(|| nothing(case))?;
        // CAST: a latency is far below what a float counts exactly.
        medians.push(lc.service.unwrap_or(lc.latency).p50_ns as f64);
    }
    Estimate::of(&medians).map(|median| median.median).ok_or_else(|| nothing(case))
}

fn nothing(case: &Case) -> String {
    format!("the simulator served no request of case {}", case.name)
}

fn median(measurement: &Measurement) -> Option<f64> {
    let service = measurement.lc.as_ref()?.service.as_ref()?;
    // CAST: a latency is far below what a float counts exactly.
    Some(service.p50_ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::built_in;

    /// Results of the simulator, as if of a GPU that takes `more` times as long in one mode, and of
    /// a host that adds 50 us.
    fn results(suite: &Suite, mode: &str, more: u64) -> Results {
        let case = suite.cases.iter().find(|case| case.name == "gap30").unwrap();
        let modes = Emulated::default().modes();
        let measure = |name: &str, more: u64| {
            let mode = modes.iter().find(|known| known.name == name).unwrap();
            let step = Step { case, mode, repetition: 0, seed: 1, is_short: true };
            let mut lc = Emulated::default().measure(&step).unwrap().lc.unwrap();
            if let Some(service) = &mut lc.service {
                service.p50_ns = service.p50_ns * more + 50_000;
            }
            Measurement {
                case: case.name.clone(),
                mode: mode.name.clone(),
                lc: Some(lc),
                ..Measurement::default()
            }
        };
        let measurements = vec![measure("alone", 1), measure(mode, more)];
        Results {
            short: true,
            modes: Emulated::default().modes(),
            measurements,
            ..Results::new(suite.info(), "nvidia", String::new())
        }
    }

    #[test]
    fn a_prediction_is_close_or_says_how_far_off_it_is() {
        let suite = built_in("micro").unwrap();
        let close = predict(&suite, &results(&suite, "hold", 1)).unwrap();
        assert_eq!(close.len(), 1);
        assert!(close[0].is_close && close[0].off.abs() < 0.02, "{close:?}");
        assert!((close[0].host_ns - 50_000.0).abs() < 1_000.0, "{close:?}");
        let far = predict(&suite, &results(&suite, "hold", 2)).unwrap();
        assert!(!far[0].is_close && (far[0].off + 0.5).abs() < 0.02, "{far:?}");
    }

    #[test]
    fn service_times_are_compared_where_requests_queue_up() {
        let suite = built_in("micro").unwrap();
        let found = predict(&suite, &results(&suite, "default", 1)).unwrap();
        assert!(found[0].is_close && found[0].predicted_ns > 20e6, "{found:?}");
    }

    #[test]
    fn results_of_another_text_are_refused() {
        let suite = built_in("micro").unwrap();
        let mut results = results(&suite, "hold", 1);
        results.suite.digest = "0".into();
        let error = predict(&suite, &results).unwrap_err();
        assert!(error.contains("another text"), "{error}");
        assert!(error.contains("with --suite FILE"), "{error}");
    }
}
