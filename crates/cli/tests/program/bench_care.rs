//! What `gpreempt bench` must not do: lose results, mix them, or report success after a failure.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Child;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, fcntl_setfl, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Stage;

/// A suite that runs in a moment.
const SMALL: &str = "name = 'small'\ntitle = 'A small one'\nrepetitions = 1\n\
    [[case]]\nname = 'gap'\ntitle = 'Requests with gaps'\nvirtual_ms = 20\n\
    [[case.load]]\nname = 'lc'\nrole = 'lc'\narrivals = { every_us = 10000 }\n\
    [[case.load]]\nname = 'be'\nrole = 'be'\nkernel_us = 2000\n";

const RUN: [&str; 5] = ["bench", "small.toml", "--modes", "hold", "--out"];

/// A folder with the results of a run that was interrupted, after `change`.
fn interrupted(name: &str, change: impl FnOnce(&mut Value)) -> Stage {
    let folder = Stage::new(name).unwrap();
    folder.file("small.toml", SMALL);
    folder.stdout(&[&RUN[..], &["r"]].concat());
    let path = folder.path("r/result.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut results: Value = serde_json::from_str(&text).unwrap();
    results["finished"] = Value::Null;
    change(&mut results);
    std::fs::write(&path, results.to_string()).unwrap();
    folder
}

#[test]
fn a_page_does_not_overwrite_the_results() {
    let folder = interrupted("care-page", |_| {});
    std::os::unix::fs::symlink("r/result.json", folder.path("soft")).unwrap();
    std::fs::hard_link(folder.path("r/result.json"), folder.path("hard")).unwrap();
    let before = std::fs::read(folder.path("r/result.json")).unwrap();
    for out in ["r/result.json", "r/../r/result.json", "soft", "hard"] {
        let (code, error) = folder.failure(&["bench", "report", "r/result.json", "-o", out]);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains("the page would overwrite"), "{error}");
    }
    assert_eq!(std::fs::read(folder.path("r/result.json")).unwrap(), before);
    let said = folder.json(&["bench", "report", "r/result.json", "-o", "p.html", "--json"]);
    assert_eq!(said["page"], "p.html");
}

#[test]
fn a_failed_measurement_gives_exit_code_1() {
    let folder = interrupted("care-failed", |results| {
        results["measurements"][1]["status"] =
            serde_json::json!({ "state": "failed", "reason": "it did" });
    });
    let output = folder.run(&[&RUN[..], &["r", "--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error.trim_end(), "{\"error\":\"one measurement failed\"}", "and no progress");
}

#[test]
fn results_of_two_builds_or_machines_are_not_mixed() {
    for (name, change, expected) in [
        ("commit", &(|r: &mut Value| r["commit"] = "old".into()) as &dyn Fn(&mut Value), "commit"),
        ("version", &|r| r["environment"]["versions"][0]["version"] = "0.0.1".into(), "version"),
        ("devices", &|r| r["environment"]["devices"] = serde_json::json!(["abacus"]), "devices"),
        ("driver", &|r| r["environment"]["driver"] = "1.2".into(), "driver: 1.2 there"),
    ] {
        let folder = interrupted(&format!("care-{name}"), change);
        let (code, error) = folder.failure(&[&RUN[..], &["r"]].concat());
        assert_eq!(code, 2, "{error}");
        assert!(error.contains("is of ") && error.contains(expected), "{error}");
    }
    let folder = interrupted("care-same", |results| results["commit"] = "abc".into());
    folder.stdout(&[&RUN[..], &["r", "--commit", "abc"]].concat());
}

#[test]
fn a_second_run_in_the_same_folder_is_refused() {
    let folder = Stage::new("care-lock").unwrap();
    folder.file("small.toml", SMALL);
    std::fs::create_dir(folder.path("r")).unwrap();
    let mut options = std::fs::File::options();
    let file = options.write(true).create_new(true).mode(0o600).open(folder.path("r/.lock"));
    let file = file.unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let (code, error) = folder.failure(&[&RUN[..], &["r"]].concat());
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("another gpreempt bench writes into r"), "{error}");
    assert!(!folder.path("r/result.json").exists());
    drop(file);
    folder.stdout(&[&RUN[..], &["r"]].concat());
}

/// A measurement in progress that would take minutes, and both ends of its stderr.
fn long(folder: &Stage) -> (Child, PipeReader, PipeWriter) {
    let text = SMALL.replace("virtual_ms = 20", "virtual_ms = 600000").replace("10000", "100");
    folder.file("small.toml", text);
    let (mut said, writer) = std::io::pipe().unwrap();
    let mut command = folder.gpreempt(&[&RUN[..], &["r"]].concat());
    let child = command.stderr(writer.try_clone().unwrap()).spawn().unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b" left\n") {
        let mut byte = [0];
        said.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
    (child, said, writer)
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[test]
fn a_long_simulation_ends_on_a_signal_and_on_two_at_once() {
    let folder = Stage::new("care-stop").unwrap();
    let (mut child, mut said, writer) = long(&folder);
    drop(writer);
    // Both are pending when it continues.
    for signal in [Signal::STOP, Signal::INT, Signal::TERM, Signal::CONT] {
        send(&child, signal);
    }
    let mut error = String::new();
    said.read_to_string(&mut error).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{error}");
    assert!(error.contains("stopped before the first measurement"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path("r")).unwrap().count(), 1, "the lock's file");
}

#[test]
fn a_second_ctrl_c_ends_the_program_at_once() {
    let folder = Stage::new("care-second").unwrap();
    let (mut child, _said, mut writer) = long(&folder);
    // The pipe is full and is not read, so the program blocks on its message.
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while writer.write(b"x").is_ok() {}
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    send(&child, Signal::INT);
    let status = format!("/proc/{}/status", child.id());
    let is_pending = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap() != 0
    };
    wait_until(|| !is_pending());
    send(&child, Signal::INT);
    let mut code = None;
    wait_until(|| {
        code = child.try_wait().unwrap();
        code.is_some()
    });
    let _ = child.kill();
    assert_eq!(code.and_then(|code| code.code()), Some(130));
}

/// Waits for at most 30 s.
fn wait_until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_plan_can_be_printed_as_json() {
    let folder = Stage::new("care-plan").unwrap();
    let file = folder.file("my suite.toml", SMALL);
    let plan = folder.json(&["bench", &file, "--dry-run", "--modes", "hold", "--json"]);
    assert_eq!(plan["measurements"], 2);
    assert_eq!(plan["cases"][0]["modes"], serde_json::json!(["alone", "hold"]));
    assert!(plan["seconds"].is_u64() && plan["cases"][0]["repetitions"] == 1, "{plan}");
}

#[test]
fn wrong_names_in_a_suite_are_reported_with_file_line_and_field() {
    let folder = Stage::new("care-names").unwrap();
    let check = "[[check]]\nname = 'n'\nmode = 'nope'\nwhat = 'be_kept'\nat_most_percent = 1\n";
    for (text, expected) in [
        (SMALL.replace("'small'", "'../small'"), "s.toml:1: name: is \"../small\""),
        (
            SMALL.replace("virtual_ms", "modes = ['zz']\nvirtual_ms"),
            "s.toml:7: case[0].modes[0]: there is no mode \"zz\"",
        ),
        (
            SMALL.replace("repetitions", "emulated_modes = ['zz']\nrepetitions"),
            "s.toml:3: emulated_modes[0]: there is no mode \"zz\"",
        ),
        (format!("{SMALL}{check}"), "s.toml:18: check[0].mode: there is no mode \"nope\""),
    ] {
        let file = folder.file("s.toml", text);
        let (code, error) = folder.failure(&["bench", &file]);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(expected), "{error}");
    }
}
