//! `gpreempt-load` as a program, on machines with and without a CUDA device.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpreempt-load")).args(arguments).output().expect("it starts")
}

#[test]
fn without_a_device_it_reports_that_in_one_line() {
    let output = run(&["devices"]);
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(0) {
        println!("SKIPPED: this machine has a device");
        return;
    }
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.starts_with("SKIPPED: there is no CUDA device to run on: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    for load in ["be", "lc"] {
        assert_eq!(run(&[load, "--seconds", "1"]).status.code(), Some(3));
    }
}

#[test]
fn published_designs_need_a_device_too() {
    if run(&["devices"]).status.code() == Some(0) {
        println!("SKIPPED: this machine has a device");
        return;
    }
    let flag = std::env::temp_dir().join(format!("gpreempt-program-{}", std::process::id()));
    let flag = flag.to_str().unwrap();
    for arguments in [
        &["peer", "slices", "--lc", "1", "--be", "2", "--seconds", "1"][..],
        &["be", "--peer", "reset", "--watch", flag, "--clear-ring"],
        &["be", "--peer", "reset", "--watch", flag],
        &["lc", "--announce", flag],
    ] {
        let output = run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.starts_with("SKIPPED: ") && said.lines().count() == 1, "{said}");
    }
    // Created for the load that comes later.
    std::fs::remove_file(flag).unwrap();
}

#[test]
fn wrong_arguments_have_another_exit_code_than_a_missing_device() {
    assert_eq!(run(&["be", "--seconds", "0"]).status.code(), Some(2));
    assert_eq!(run(&["be", "--endless", "--kind", "counter"]).status.code(), Some(2));
    let bad_path = ["be", "--peer", "reset", "--watch", "/nowhere/flag"];
    assert_eq!(run(&bad_path).status.code(), Some(2));
    let twice = ["peer", "slices", "--lc", "7", "--be", "7", "--seconds", "1"];
    assert_eq!(run(&twice).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

#[test]
fn the_program_has_a_keeper_of_its_own() {
    let root = std::env::temp_dir().join(format!("gpreempt-own-keeper-{}", std::process::id()));
    let folder = root.join("session-1-0");
    std::fs::create_dir_all(&folder).unwrap();
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_gpreempt-load"))
        .arg("keeper")
        .arg(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(folder.is_dir());
    // When its owner has ended and nothing is left to undo, the session ends.
    drop(keeper.stdin.take());
    assert!(keeper.wait().unwrap().success());
    assert!(!folder.exists());
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_program_whose_parent_has_ended_does_not_start() {
    // Process 1 did not start this one.
    let output = run(&["leash", "--parent", "1", "--", "echo", "begun"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the parent process has ended"), "{said}");
    let own = std::process::id().to_string();
    let output = run(&["leash", "--parent", &own, "--", "echo", "begun"]);
    assert_eq!(output.stdout, b"begun\n");
    let output = run(&["leash", "--parent", &own, "--", "/nowhere/program"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_suite_of_the_hardware_tests_can_be_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hw/hardware.toml");
    let text = std::fs::read_to_string(path).unwrap();
    let suite = gpreempt_bench::suite::read_suite("hw/hardware.toml", &text).unwrap();
    assert_eq!((suite.cases.len(), suite.criteria.len()), (15, 13));
}

#[test]
fn the_python_tests_of_the_script_for_all_suites_pass() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hw/bench_all_test.py");
    let mut python = Command::new("python3");
    let Ok(output) = python.arg("-B").arg(script).output() else {
        println!("SKIPPED: there is no python3");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
