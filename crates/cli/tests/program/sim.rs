//! `gpreempt sim`, and wrong input of commands without a service.

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
    let reason = "preempt  offline: online waits with priority 12 while this one runs with 2";
    assert!(text.contains(reason) && !text.contains("queue1"), "{text}");
    // The online task computes for 0.25 ms of every 5 ms, and the offline one in the rest.
    let share = |task: usize| outcome["tasks"][task]["device_share"].as_f64().unwrap();
    assert!((0.04..0.15).contains(&share(0)) && (0.8..=1.0).contains(&share(1)), "{outcome}");
    assert!(text.contains(&format!("{:.1} %", 100.0 * share(0))), "{text}");
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

/// Runs a wrong scenario and returns its one line of error.
fn error_of(folder: &Stage, text: impl AsRef<[u8]>) -> String {
    folder.file("bad.toml", text);
    let before = folder.names().unwrap();
    let (code, line) = folder.failure(&["sim", "bad.toml", "--trace", "out.json"]);
    assert_eq!(code, 2, "{line}");
    assert_eq!(folder.names().unwrap(), before, "nothing is written");
    line
}

#[test]
fn wrong_scenarios_are_refused_with_file_line_and_field() {
    let folder = Stage::new("bad-scenario").unwrap();
    let broken = [
        ("priority = 12", "priority = 16", "bad.toml:24: task[0].priority: "),
        ("priority = 12", "prioritty = 12", "bad.toml:24: task[0].prioritty: "),
        ("groups = 100", "groups = 0", "bad.toml:14: kernel[0].groups: "),
        ("kernel = \"long\"", "kernel = \"none\"", "bad.toml:33: task[1].request[0].kernel: "),
        ("interval_us = 1000", "interval_us = 10", "bad.toml:8: scheduler.interval_us: "),
        ("duration_ms = 30", "duration_ms = \"30\"", "bad.toml:4: duration_ms: "),
    ];
    for (good, bad, start) in broken {
        assert!(SCENARIO.contains(good));
        let line = error_of(&folder, SCENARIO.replacen(good, bad, 1));
        assert!(line.starts_with(&format!("gpreempt: {start}")), "{line}");
    }
    let syntax = error_of(&folder, "name = [");
    assert!(syntax.starts_with("gpreempt: bad.toml:1: syntax: "), "{syntax}");
    let cycle = format!("{SCENARIO}after = \"offline\"\nrequests = 1\n");
    assert!(error_of(&folder, cycle).contains("task[1].after: "));
    let bytes = error_of(&folder, b"name = \"\xff\"\n");
    assert!(bytes.starts_with("gpreempt: bad.toml:1: file: "), "{bytes}");
}

#[test]
fn missing_and_huge_files_are_refused() {
    let folder = Stage::new("bad-file").unwrap();
    let (code, line) = folder.failure(&["sim", "missing.toml"]);
    assert_eq!(code, 2);
    assert!(line.starts_with("gpreempt: missing.toml: cannot be read: "), "{line}");
    let (code, line) = folder.failure(&["sim", "/dev/zero"]);
    assert_eq!(code, 2);
    assert!(line.contains("/dev/zero"), "{line}");
    let (code, line) = folder.failure(&["demo", "--device", "voodoo2"]);
    assert_eq!(code, 2);
    assert!(line.contains("there is no device `voodoo2`; use one of h200, mi300x"), "{line}");
    assert_eq!(folder.run(&["sim"]).status.code(), Some(2));
}

#[test]
fn a_full_disk_is_one_line_and_leaves_nothing() {
    let folder = Stage::new("bad-disk").unwrap();
    folder.file("small.toml", SCENARIO);
    let (code, line) = folder.failure(&["sim", "small.toml", "--trace", "/dev/full"]);
    assert_eq!(code, 2);
    assert!(line.contains("/dev/full"), "{line}");
    let (code, line) = folder.failure(&["demo", "--seconds", "1", "--out", "no/such/folder.html"]);
    assert_eq!(code, 2);
    assert!(line.contains("no/such"), "{line}");
    assert_eq!(folder.names().unwrap(), ["small.toml"]);
}

#[test]
fn a_kernel_with_an_invalid_access_is_named() {
    let folder = Stage::new("bad-kernel").unwrap();
    let asm = "asm = \"global_store [s15 + 4000000], s0\\nend\"";
    folder.file("bad.toml", SCENARIO.replacen("program = \"reduce\"", asm, 1));
    let (code, line) = folder.failure(&["sim", "bad.toml"]);
    assert_eq!(code, 1);
    assert!(line.contains("kernel `short`"), "{line}");
}

#[test]
fn a_closed_output_is_no_error() {
    let folder = Stage::new("bad-pipe").unwrap();
    let script =
        format!("'{}' compare | head -1; exit ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_gpreempt"));
    let output = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.root())
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
