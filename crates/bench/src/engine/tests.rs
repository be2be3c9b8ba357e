use super::*;
use crate::plan::{RunSelection, cases, modes, steps};
use crate::results::{BeResult, Distribution, LcResult, Number};
use crate::suite::read_suite;

const TEXT: &str = "name = 's'\ntitle = 't'\n\
    [[case]]\nname = 'c'\ntitle = 'C'\n\
    [[case.load]]\nname = 'lc'\nrole = 'lc'\narrivals = { every_us = 1000 }\n\
    [[case.load]]\nname = 'be'\nrole = 'be'\n\
    [[check]]\nname = 'fast'\nmode = 'x'\nwhat = 'p50_ratio'\nat_most_percent = 150\n\
    [[check]]\nname = 'kept'\nmode = 'x'\nwhat = 'be_kept'\nat_least_percent = 90\n\
    [[check]]\nname = 'broken is fast'\nmode = 'broken'\nwhat = 'p50_ratio'\n\
    at_most_percent = 150\n";

#[derive(Default)]
struct Fake {
    measured: Vec<(String, u32)>,
}

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "emulated"
    }

    fn modes(&self) -> Vec<ModeInfo> {
        let mode = |name: &str, alone: Option<&str>| ModeInfo {
            name: name.into(),
            title: name.into(),
            alone: alone.map(str::to_owned),
        };
        let solo = Some("alone");
        vec![mode("alone", None), mode("x", solo), mode("broken", solo)]
    }

    fn missing(&mut self, _: &[Step<'_>]) -> Vec<String> {
        Vec::new()
    }

    fn environment(&mut self) -> Environment {
        Environment::default()
    }

    fn estimate(&self, _: &Step<'_>) -> Duration {
        Duration::from_secs(1)
    }

    fn measure(&mut self, step: &Step<'_>) -> Result<Measurement, String> {
        self.measured.push((step.mode.name.clone(), step.repetition));
        let lc = |ns: u64| {
            let latency = Distribution::of(vec![ns]).unwrap();
            let (unfinished, slowest) = (0, Vec::new());
            Some(LcResult { latency, service: None, unfinished, missed: None, slowest })
        };
        let number = |name: &str, value: f64| Number::new(name, name, "1", value);
        match step.mode.name.as_str() {
            "alone" => Ok(Measurement {
                lc: lc(100),
                numbers: vec![number(BE_ALONE, 100.0), number(LC_BUSY, 0.2)],
                ..Measurement::default()
            }),
            "x" => {
                let be = Some(BeResult::new(76.0, "kernels", 1.0, Some(true)));
                Ok(Measurement { lc: lc(120), be, ..Measurement::default() })
            }
            _ => Err("it broke".to_owned()),
        }
    }
}

/// Stops the run after `stops_at` measurements.
struct Until {
    kept: usize,
    stops_at: usize,
}

impl RunObserver for Until {
    fn begins(&mut self, progress: &Progress<'_>) {
        assert!(progress.to_string().contains(" left"));
    }

    fn keep(&mut self, results: &Results) -> Result<(), String> {
        self.kept = results.measurements.len();
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.kept >= self.stops_at
    }
}

#[test]
fn an_interrupted_run_continues_and_failures_are_results() {
    let suite = read_suite("s", TEXT).unwrap();
    let selection =
        RunSelection { backend: "emulated", repetitions: 2, is_short: false, cases: Vec::new() };
    let mut backend = Fake::default();
    let modes = modes(&["x".into(), "broken".into()], &backend.modes()).unwrap();
    let chosen = cases(&suite, &selection).unwrap();
    let steps = steps(&chosen, &modes, &selection);
    let mut results = fresh(
        &suite,
        "gpreempt bench s".into(),
        Environment::default(),
        &chosen,
        &modes,
        &selection,
    );

    let mut observer = Until { kept: 0, stops_at: 2 };
    let ended = run(&suite, &steps, &mut backend, &mut results, &mut observer);
    assert_eq!(ended, Ok(Ended::Stopped));
    assert_eq!(results.measurements.len(), 2);

    let mut observer = Until { kept: 0, stops_at: 100 };
    let ended = run(&suite, &steps, &mut backend, &mut results, &mut observer);
    assert_eq!(ended, Ok(Ended::Whole));
    assert_eq!(results.measurements.len(), 6);
    assert_eq!(backend.measured.len(), 6, "nothing is measured twice");

    let be = results.measurements[1].be.as_ref().unwrap();
    assert!((be.of_alone.unwrap() - 0.76).abs() < 1e-9);
    assert!((be.kept.unwrap() - 0.95).abs() < 1e-9);
    let passed: Vec<(&str, bool)> =
        results.checks.iter().map(|check| (check.name.as_str(), check.passed)).collect();
    assert_eq!(
        passed,
        [
            ("fast", true),
            ("kept", true),
            ("broken is fast", false),
            ("best-effort work happened exactly once", true)
        ]
    );
    assert!(results.checks[2].text.contains("it broke"), "{}", results.checks[2].text);
}
