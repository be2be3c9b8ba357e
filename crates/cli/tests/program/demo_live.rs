//! `gpreempt demo --live`, with the programs beside `gpreempt`.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpreempt_stage::{Stage, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A stage in which temporary folders are made, and every program beside `gpreempt`.
fn stage(name: &str) -> Stage {
    let stage = Stage::new(name).unwrap();
    for program in ["gpreemptd", "gpreempt-emu", "gpreempt-load"] {
        stage.program(program).unwrap();
    }
    stage
}

fn demo(stage: &Stage, more: &[&str]) -> Command {
    let mut command = stage.gpreempt(&[&["demo", "--live"], more].concat());
    command.env("TMPDIR", stage.root());
    command
}

/// Processes that name the folder of a demonstration in their arguments.
fn processes_in(stage: &Stage) -> usize {
    let folder = stage.path("gpreempt-live-").display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(&folder)).count()
}

fn folders(stage: &Stage) -> Vec<String> {
    stage.names().unwrap().into_iter().filter(|name| name.starts_with("gpreempt-live-")).collect()
}

#[test]
fn requests_are_faster_with_gpreempt_and_nothing_is_left() {
    let stage = stage("demo-live");
    let output = demo(&stage, &["--seconds", "3", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let phases = results["phases"].as_array().unwrap();
    let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["alone", "without", "with"]);
    let p50 = |phase: usize| phases[phase]["online"]["p50_us"].as_f64().unwrap();
    assert!(p50(1) > 3.0 * p50(0), "{results}");
    assert!(p50(2) < 0.7 * p50(1), "{results}");
    assert_eq!(results["exact"], true);
    assert_eq!(phases[0]["offline"], Value::Null);
    for phase in &phases[1..] {
        assert!(phase["offline"]["kernels_per_s"].as_f64().unwrap() > 1.0, "{results}");
        assert!(phase["offline"]["preemptions"].as_u64().unwrap() > 10, "{results}");
    }
    assert_eq!((folders(&stage), processes_in(&stage)), (Vec::<String>::new(), 0));

    let text = demo(&stage, &["--seconds", "1"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("saved mid-kernel") && text.contains("times with it (p50)"), "{text}");
}

/// A demonstration whose emulator, offline program and online program run.
fn running(stage: &Stage) -> Child {
    let mut command = demo(stage, &["--seconds", "60"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The demonstration itself does not name its folder.
    until("its programs run", || processes_in(stage) >= 2);
    child
}

#[test]
fn a_signal_ends_everything_and_removes_the_folder() {
    for signal in [Signal::INT, Signal::TERM] {
        let stage = stage("demo-live-signal");
        let child = running(&stage);
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors, "gpreempt: stopped\n");
        assert_eq!((folders(&stage), processes_in(&stage)), (Vec::<String>::new(), 0));
    }
}

#[test]
fn its_processes_end_with_it_when_it_is_killed() {
    let stage = stage("demo-live-killed");
    let mut child = running(&stage);
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    until("its processes end", || processes_in(&stage) == 0);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn missing_programs_are_named_with_the_way_to_build_them() {
    let stage = Stage::new("demo-live-missing").unwrap();
    let alone = stage.path("gpreempt");
    std::fs::copy(env!("CARGO_BIN_EXE_gpreempt"), &alone).unwrap();
    let mut command = Command::new(&alone);
    stage.clean(&mut command);
    let output = command.args(["demo", "--live"]).env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    for part in ["gpreempt-emu is neither beside gpreempt", "cargo build --release --workspace"] {
        assert!(error.contains(part) && error.lines().count() == 1, "{error}");
    }
}
