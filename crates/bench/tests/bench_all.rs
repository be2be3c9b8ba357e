//! The script that runs all suites has tests in its own language; here they are run.

use std::path::Path;
use std::process::Command;

#[test]
fn the_script_for_all_suites_minds_what_it_finds_and_who_ends_it() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hw/bench_all_test.py");
    let mut python = Command::new("python3");
    let Ok(output) = python.arg("-B").arg(script).output() else {
        println!("SKIPPED: there is no python3");
        return;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
