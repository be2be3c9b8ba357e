//! The program as its users see it, on machines with and without a device.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpreempt-load")).args(arguments).output().expect("it starts")
}

#[test]
fn without_a_device_it_says_so_in_one_sentence() {
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
    // Made for whoever comes later.
    std::fs::remove_file(flag).unwrap();
}

#[test]
fn wrong_arguments_are_told_from_a_missing_device() {
    assert_eq!(run(&["be", "--seconds", "0"]).status.code(), Some(2));
    assert_eq!(run(&["be", "--endless", "--kind", "counter"]).status.code(), Some(2));
    let bad_path = ["be", "--peer", "reset", "--watch", "/nowhere/flag"];
    assert_eq!(run(&bad_path).status.code(), Some(2));
    let twice = ["peer", "slices", "--lc", "7", "--be", "7", "--seconds", "1"];
    assert_eq!(run(&twice).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}

#[test]
fn the_program_can_be_its_own_keeper() {
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
    // When its owner is gone and nothing is left to undo, the session ends.
    drop(keeper.stdin.take());
    assert!(keeper.wait().unwrap().success());
    assert!(!folder.exists());
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn whoever_was_left_alone_before_it_began_does_not_begin() {
    // The first process of the machine did not start this one.
    let output = run(&["leash", "--parent", "1", "--", "echo", "begun"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("whoever started this is gone"), "{said}");
    let own = std::process::id().to_string();
    let output = run(&["leash", "--parent", &own, "--", "echo", "begun"]);
    assert_eq!(output.stdout, b"begun\n");
    let output = run(&["leash", "--parent", &own, "--", "/nowhere/program"]);
    assert_eq!(output.status.code(), Some(1));
}
