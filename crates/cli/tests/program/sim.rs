use std::collections::BTreeSet;

use super::{SCENARIO, Stage};

#[test]
fn a_scenario_runs_and_its_seed_can_be_chosen() {
    let folder = Stage::new("sim").unwrap();
    folder.file("small.toml", SCENARIO);
    let outcome = folder.json(&["sim", "small.toml", "--json"]);
    assert_eq!(outcome["tasks"][0]["name"], "online");
    assert_eq!(outcome["tasks"][0]["deadline_misses"], 0);
    assert_eq!(outcome["exact"], true);
    assert!(outcome["preemptions"].as_u64().unwrap() > 0);
    let other = folder.json(&["sim", "small.toml", "--seed", "77", "--json"]);
    assert_eq!(other["seed"], 77);
    let text = folder.stdout(&["sim", "small.toml"]);
    assert!(text.contains("waits with priority 12 while this one runs with 2"), "{text}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let folder = Stage::new("sim-seed").unwrap();
    let once = folder.stdout(&["sim", "--seed", "12", "--json"]);
    assert_eq!(once, folder.stdout(&["sim", "--seed", "12", "--json"]));
    assert_ne!(once, folder.stdout(&["sim", "--seed", "13", "--json"]));
}

#[test]
fn seeds_are_counted() {
    let folder = Stage::new("sim-seeds").unwrap();
    let tally = folder.json(&["sim", "--seeds", "25", "--start", "100", "--json"]);
    assert_eq!(tally["clean"], 25);
    assert_eq!(tally["violation"], serde_json::Value::Null);
    let text = folder.stdout(&["sim", "--seeds", "5"]);
    assert!(text.starts_with("5 seeds (0 to 4) hold"), "{text}");
}

#[test]
fn the_trace_is_what_perfetto_reads() {
    let folder = Stage::new("sim-trace").unwrap();
    folder.file("small.toml", SCENARIO);
    folder.stdout(&["sim", "small.toml", "--trace", "out.json"]);
    let bytes = std::fs::read(folder.path("out.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let phases: BTreeSet<&str> = events.iter().map(|e| e["ph"].as_str().unwrap()).collect();
    assert_eq!(phases, BTreeSet::from(["M", "X", "i"]));
    let named = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
    assert!(named("save").count() > 0 && named("restore").count() > 0);
    // Slices of one thread do not overlap, or Perfetto draws nonsense.
    for thread in [1, 2] {
        let mut slices: Vec<(f64, f64)> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["tid"] == thread)
            .map(|event| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap()))
            .collect();
        slices.sort_by(|left, right| left.0.total_cmp(&right.0));
        assert!(slices.len() > 5);
        for pair in slices.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0 + 0.001, "{pair:?}");
        }
    }
    let preempt = named("preempt").next().unwrap();
    assert!(preempt["args"]["reason"].as_str().unwrap().contains("priority"));
}

#[test]
fn every_example_runs() {
    let folder = Stage::new("sim-examples").unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path().into_os_string().into_string().unwrap();
        let outcome = folder.json(&["sim", &path, "--json"]);
        assert_eq!(outcome["exact"], true, "{path}");
        assert_eq!(outcome["lost"], 0, "{path}");
        count += 1;
    }
    assert!(count >= 6);
}
