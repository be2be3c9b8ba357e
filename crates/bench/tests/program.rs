//! The program as its users see it, on machines with and without a device.

use std::process::{Command, Output};

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
fn wrong_arguments_are_told_from_a_missing_device() {
    assert_eq!(run(&["be", "--seconds", "0"]).status.code(), Some(2));
    assert_eq!(run(&["be", "--endless", "--kind", "counter"]).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
}
