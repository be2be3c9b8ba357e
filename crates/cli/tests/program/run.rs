//! `gpreempt run`, generated files, and commands that find no service and no driver.

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::request::Request;
use rustix::process::{Pid, Signal, kill_process};

use super::Stage;
use super::fake_daemon::{Answer, FakeDaemon};

const SHOW: &str = "echo $$ $GPREEMPT_PRIORITY $GPREEMPT_WEIGHT $GPREEMPT_DEADLINE_US \
                    $GPREEMPT_LATENCY_BUDGET";

#[test]
fn the_daemon_knows_the_process_before_it_becomes_the_program() {
    let folder = Stage::new("run").unwrap();
    let daemon = FakeDaemon::start(folder.root(), |_| Answer::Ok);
    // Options after the program are the program's; `--` is allowed and not needed.
    let options = ["run", "-p", "12", "--weight", "3", "--deadline", "5000"];
    let budget = ["--latency-budget", "20%", "sh", "-c", SHOW];
    let text = folder.stdout(&[&options[..], &budget].concat());
    let (pid, rest) = text.trim_end().split_once(' ').unwrap();
    assert_eq!(rest, "12 3 5000 20%");
    let heard = daemon.heard_from();
    let [(peer, request), (_, Request::Snapshot)] = heard.as_slice() else {
        unreachable!("{heard:?}")
    };
    assert_eq!(peer.pid.to_string(), pid, "the process that asked became the program");
    let change = SchedAttrChange {
        priority: Priority::new(12),
        weight: NonZeroU32::new(3),
        deadline_us: Some(5_000),
        latency_budget: LatencyBudget::from_percent(20),
        evictable: None,
    };
    assert_eq!(*request, Request::Register { process: Process::SENDER, change });
}

#[test]
fn exit_codes_are_those_of_the_program() {
    let folder = Stage::new("run-codes").unwrap();
    let _daemon = FakeDaemon::start(folder.root(), |_| Answer::Ok);
    let run = |script| folder.run(&["run", "-p", "1", "--", "sh", "-c", script]).status;
    assert_eq!(run("exit 7").code(), Some(7));
    assert_eq!(run("kill -9 $$").signal(), Some(9));
    let (code, line) = folder.failure(&["run", "-p", "1", "--", "/no/such/program"]);
    assert_eq!(code, 127);
    assert!(line.starts_with("gpreempt: /no/such/program cannot be started"), "{line}");
    let (code, _) = folder.failure(&["run", "-p", "1", "--", "/"]);
    assert_eq!(code, 126);
}

#[test]
fn signals_reach_the_program() {
    let folder = Stage::new("run-signals").unwrap();
    let _daemon = FakeDaemon::start(folder.root(), |_| Answer::Ok);
    let script = "trap 'exit 43' TERM; echo ready; while :; do sleep 0.01; done";
    let mut program = folder
        .gpreempt(&["run", "-p", "1", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = Pid::from_raw(i32::try_from(program.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(program.wait().unwrap().code(), Some(43));
}

#[test]
fn without_a_daemon_and_a_driver_the_program_runs_without_a_priority() {
    if std::path::Path::new("/sys/module/nvidia").exists() {
        println!("SKIPPED: this machine has a driver");
        return;
    }
    let folder = Stage::new("run-alone").unwrap();
    let program =
        folder.run(&["run", "-p", "9", "--", "sh", "-c", "echo $GPREEMPT_PRIORITY; exit 3"]);
    assert_eq!(program.status.code(), Some(3));
    assert_eq!(program.stdout, b"9\n");
    let errors = String::from_utf8(program.stderr).unwrap();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("gpreemptd is not running; sh runs without a priority"), "{errors}");
    // Nothing else is printed about a program that does not exist.
    let (code, line) = folder.failure(&["run", "-p", "9", "no-such-program", "--help"]);
    assert_eq!((code, line.lines().count()), (127, 1), "{line}");
    assert!(line.starts_with("gpreempt: no-such-program cannot be started: "), "{line}");
}

#[test]
fn without_a_driver_every_command_about_processes_fails_with_that_reason() {
    if std::path::Path::new("/sys/module/nvidia").exists() {
        println!("SKIPPED: this machine has a driver; hw/hardware_test.py tests it");
        return;
    }
    let folder = Stage::new("processes-none").unwrap();
    for arguments in [
        &["attach", "1", "-p", "2"][..],
        &["attach", "1:12", "2:3", "--dry-run"],
        &["suspend", "1", "--for", "1s"],
        &["observe", "1"],
        &["preempt", "1"],
    ] {
        let (code, line) = folder.failure(arguments);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("no NVIDIA driver is loaded"), "{line}");
    }
    if std::path::Path::new("/dev/kfd").exists() {
        println!("SKIPPED: this machine has AMD devices");
        return;
    }
    let (code, line) = folder.failure(&["suspend", "--gpu", "0", "--everything"]);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("no NVIDIA driver is loaded"), "{line}");
    assert!(folder.stdout(&["ps"]).contains("No process uses a GPU"));
    assert_eq!(folder.json(&["ps", "--json"]), serde_json::json!([]));
}

#[test]
fn a_process_that_is_not_attached_cannot_be_changed() {
    let folder = Stage::new("processes-detached").unwrap();
    for arguments in [&["set", "1", "-p", "3"][..], &["detach", "1"]] {
        let (code, line) = folder.failure(arguments);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains("process 1 is not attached"), "{line}");
    }
    let (code, line) = folder.failure(&["resume", "1"]);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("neither suspended nor attached"), "{line}");
    assert_eq!(folder.json(&["resume", "--all", "--json"]), serde_json::json!({ "resumed": [] }));
}

#[test]
fn wrong_arguments_about_processes_are_refused() {
    let folder = Stage::new("processes-nonsense").unwrap();
    for arguments in [
        &["attach"][..],
        &["attach", "me"],
        &["attach", "1:16"],
        &["attach", "1:3:0"],
        &["attach", "1", "--min-share", "51"],
        &["attach", "1", "--policy", "lottery"],
        &["suspend", "1", "--for", "10"],
        &["suspend"],
        &["suspend", "--everything"],
        &["suspend", "--gpu", "0"],
        &["suspend", "1", "--gpu", "0", "--everything"],
        &["set", "1"],
        &["resume"],
        &["resume", "1", "--all"],
        &["observe", "1", "--every-us", "1"],
    ] {
        let (code, line) = folder.failure(arguments);
        assert_eq!(code, 2, "{arguments:?}: {line}");
    }
}

#[test]
fn the_script_of_every_shell_has_every_command() {
    let folder = Stage::new("completions").unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = folder.stdout(&["completions", shell]);
        for word in ["attach", "events", "policy", "run", "top", "trace"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
    folder.file("complete.bash", folder.stdout(&["completions", "bash"]));
    let script = "source ./complete.bash && complete -p gpreempt";
    let output =
        Command::new("bash").args(["-c", script]).current_dir(folder.root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (code, _) = folder.failure(&["completions", "tcsh"]);
    assert_eq!(code, 2);
}

#[test]
fn every_command_has_a_page() {
    let folder = Stage::new("man").unwrap();
    folder.stdout(&["man", "."]);
    let (code, line) = folder.failure(&["man", "no/where"]);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("there is no folder no/where; create it first"), "{line}");
    assert!(!folder.path("no").exists());
    let names = folder.names().unwrap();
    for name in [
        "",
        "-attach",
        "-compare",
        "-demo",
        "-evict",
        "-doctor",
        "-ps",
        "-sim",
        "-restore",
        "-run",
        "-suspend",
        "-top",
        "-trace",
        "-bench",
        "-bench-list",
        "-bench-report",
        "-bench-compare",
        "-bench-predict",
    ] {
        let page = format!("gpreempt{name}.1");
        assert!(names.contains(&page), "{page} in {names:?}");
    }
    let page = std::fs::read_to_string(folder.path("gpreempt-sim.1")).unwrap();
    assert!(page.contains(".SH SYNOPSIS") && page.contains("gpreempt sim"), "{page}");
}
