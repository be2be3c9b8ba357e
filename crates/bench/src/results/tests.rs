use super::*;

fn measured(mode: &str, repetition: u32, latency_ns: u64, kept: Option<f64>) -> Measurement {
    let latency = Distribution::of(vec![latency_ns]).unwrap();
    let slowest = vec![SlowRequest::since(0, 1, 2, latency_ns)];
    let lc = LcResult { latency, service: None, unfinished: 0, missed: None, slowest };
    let be = kept.map(|kept| BeResult {
        of_alone: Some(kept / 2.0),
        kept: Some(kept),
        ..BeResult::new(10.0, "kernels", 1.0, Some(true))
    });
    Measurement {
        case: "gap".into(),
        mode: mode.into(),
        repetition,
        seed: 1,
        took_s: 1.5,
        lc: Some(lc),
        be,
        numbers: vec![Number::new("be_off_p50", "BE off the device", "ns", 185_000.0)],
        ..Measurement::default()
    }
}

fn failed(mode: &str, repetition: u32, reason: &str) -> Measurement {
    let status = Status::Failed { reason: reason.into() };
    Measurement { status, lc: None, be: None, ..measured(mode, repetition, 1, None) }
}

fn results(measurements: Vec<Measurement>) -> Results {
    let mode = |name: &str| ModeInfo {
        name: name.into(),
        title: format!("mode {name}"),
        alone: (name != ALONE).then(|| ALONE.to_owned()),
    };
    let suite = SuiteInfo { name: "s".into(), title: "t".into(), digest: "00".into(), text: None };
    let mut results = Results {
        repetitions: 3,
        modes: vec![mode("alone"), mode("held"), mode("mps")],
        cases: vec![CaseInfo {
            name: "gap".into(),
            title: "requests with gaps".into(),
            loads: vec!["lc".into()],
            point: Some(CurvePoint {
                curve: "load".into(),
                axis: "LC load".into(),
                unit: "%".into(),
                value: 12.5,
            }),
        }],
        measurements,
        checks: vec![Check {
            name: "held is fast".into(),
            case: Some("gap".into()),
            mode: None,
            passed: true,
            text: "1.2".into(),
        }],
        ..Results::new(suite, "emulated", "gpreempt bench s".into())
    };
    results.summarise();
    results
}

#[test]
fn ratios_are_those_of_the_same_repetition() {
    let results = results(vec![
        measured("alone", 0, 100, None),
        measured("held", 0, 120, Some(0.9)),
        measured("alone", 1, 200, None),
        measured("held", 1, 220, Some(0.95)),
        failed("held", 2, "no device"),
    ]);
    let held = results.summary.iter().find(|row| row.mode == "held").unwrap();
    assert_eq!((held.ok, held.failure.as_deref()), (2, Some("no device")));
    let ratio = held.p50_ratio.unwrap();
    assert_eq!((ratio.low, ratio.high, ratio.count), (1.1, 1.2, 2));
    assert_eq!(held.be_kept.unwrap().high, 0.95);
    assert_eq!(results.summary.len(), 2, "a mode that was not measured has no row");
}

#[test]
fn a_mode_that_failed_has_its_row() {
    let results = results(vec![failed("mps", 0, "cannot start")]);
    assert_eq!(results.summary[0].mode, "mps");
    assert_eq!(results.summary[0].failure.as_deref(), Some("cannot start"));
    assert_eq!(results.summary[0].p50_ns, None);
}

#[test]
fn a_written_file_can_be_read() {
    let before = results(vec![measured("alone", 0, 7, Some(1.0)), failed("mps", 0, "why")]);
    assert_eq!(Results::read("r.json", &before.to_text()), Ok(before));
}

fn load(name: &str, role: Role, lc: Option<LcResult>) -> LoadResult {
    LoadResult { name: name.into(), role, lc, be: None }
}

/// A measurement with one latency-critical load, or with two that are not the same.
fn with_loads(count: usize) -> Measurement {
    let mut one = measured("alone", 0, 7, None);
    let other = measured("alone", 0, 9, None).lc;
    one.loads = vec![load("be", Role::Be, None), load("lc", Role::Lc, one.lc.clone())];
    one.loads.extend((1..count).map(|_| load("more", Role::Lc, other.clone())));
    one
}

#[test]
fn the_requests_of_the_only_load_are_written_once() {
    let before = results(vec![with_loads(1), with_loads(2)]);
    let text = before.to_text();
    assert_eq!(text.matches("\"cdf\"").count(), 1 + 3, "{text}");
    assert_eq!(Results::read("r.json", &text), Ok(before));
}

/// The older format contains the copies and is pretty-printed.
#[test]
fn older_files_that_contain_the_requests_twice_can_be_read() {
    let before = results(vec![with_loads(1), with_loads(2)]);
    let text = serde_json::to_string_pretty(&before).unwrap();
    assert_eq!(text.matches("\"cdf\"").count(), 2 + 3);
    assert_eq!(Results::read("r.json", &text), Ok(before));
}

#[test]
fn requests_of_a_load_that_differ_from_the_measurement_are_kept() {
    let mut before = results(vec![with_loads(1)]);
    before.measurements[0].loads[1].lc.as_mut().unwrap().unfinished = 3;
    assert_eq!(Results::read("r.json", &before.to_text()), Ok(before));
}

#[test]
fn each_measurement_has_a_line() {
    let written = results(vec![with_loads(1), with_loads(2), failed("mps", 0, "why")]);
    let text = written.to_text();
    let lines = text.lines().filter(|line| line.starts_with("{\"case\":\"gap\",\"mode\":"));
    // The rows of the summary begin like that as well.
    assert_eq!(lines.count(), 3 + written.summary.len());
}

#[test]
fn other_files_are_refused() {
    let error = Results::read("r.json", "{}").unwrap_err();
    assert!(error.starts_with("r.json: not a results file: "), "{error}");
    let later = r#"{"schema": 2}"#;
    let error = Results::read("r.json", later).unwrap_err();
    assert_eq!(
        error,
        "r.json: has format 2, this program reads format 1; use the version of gpreempt that wrote \
         it"
    );
}

#[test]
fn a_mode_that_serves_too_slowly_is_overloaded() {
    let waiting = |mode: &str, repetition: u32, unfinished: u64| {
        let mut measured = measured(mode, repetition, 100, None);
        if let Some(lc) = &mut measured.lc {
            lc.latency = Distribution::of(vec![100; 320]).unwrap();
            lc.unfinished = unfinished;
        }
        measured
    };
    let results = results(vec![
        waiting("held", 0, 2),
        waiting("held", 1, 57),
        waiting("held", 2, 0),
        waiting("mps", 0, 57),
        waiting("mps", 1, 60),
    ]);
    let is_so =
        |mode: &str| results.summary.iter().find(|row| row.mode == mode).unwrap().overloaded;
    assert!(!is_so("held") && is_so("mps"));
}

/// As [`measured`], on a host with that wake-up latency.
fn late(mode: &str, repetition: u32, latency_ns: u64, late_ns: u64) -> Measurement {
    let mut measured = measured(mode, repetition, latency_ns, None);
    let late = Distribution::of(vec![late_ns]);
    measured.numbers = HostNoise::numbers(late.as_ref(), None);
    measured
}

#[test]
fn a_tail_that_host_noise_may_have_caused_is_marked_in_every_mode() {
    const MS: u64 = 1_000_000;
    let row = |late_ns: [u64; 6], mode: &str| {
        let mut measured = Vec::new();
        for (repetition, latency_ns) in [(0, 5 * MS), (1, 6 * MS), (2, 7 * MS)] {
            let place = 2 * repetition as usize;
            measured.push(late("alone", repetition, 5 * MS, late_ns[place]));
            measured.push(late("held", repetition, latency_ns, late_ns[place + 1]));
        }
        let results = results(measured);
        results.summary.iter().find(|row| row.mode == mode).unwrap().disturbed
    };
    // A tenth of the 5 ms that requests take alone is where it begins.
    let (quiet, noisy) = (MS / 2, MS / 2 + 1);
    assert!(!row([quiet; 6], "held") && !row([quiet; 6], "alone"));
    let only = |place: usize| {
        let mut late_ns = [quiet; 6];
        late_ns[place] = noisy;
        late_ns
    };
    assert!(row(only(3), "held") && !row(only(3), "alone"), "the second makes the median");
    assert!(!row(only(1), "held") && !row(only(5), "held"), "the others do not");
    assert!(row(only(2), "held") && row(only(2), "alone"), "a ratio is of two");
    let mut without = results(vec![late("held", 0, 5 * MS, 9 * MS)]);
    assert!(!without.summary[0].disturbed, "the latency of the baseline is unknown");
    without.measurements.push(measured("alone", 0, 5 * MS, None));
    without.summarise();
    assert!(!without.summary[0].disturbed && without.summary[1].disturbed);
}

#[test]
fn files_without_the_newer_fields_can_be_read() {
    let mut text: serde_json::Value =
        serde_json::from_str(&results(vec![measured("alone", 0, 7, None)]).to_text()).unwrap();
    assert!(text["suite"].get("text").is_none());
    text["summary"][0].as_object_mut().unwrap().remove("overloaded");
    text["summary"][0].as_object_mut().unwrap().remove("disturbed").unwrap();
    text["measurements"][0]["lc"].as_object_mut().unwrap().remove("slowest").unwrap();
    let read = Results::read("r.json", &text.to_string()).unwrap();
    assert!(read.suite.text.is_none() && !read.summary[0].overloaded);
    assert!(!read.summary[0].disturbed);
    assert!(read.measurements[0].lc.as_ref().unwrap().slowest.is_empty());
}

#[test]
fn the_largest_count_of_unfinished_requests_does_not_overflow() {
    let mut one = measured("alone", 0, 100, None);
    one.lc.as_mut().unwrap().unfinished = 1 << 63;
    assert!(results(vec![one]).summary[0].overloaded);
}
