//! `gpreempt run`.

use std::io::{BufRead, BufReader};
use std::num::NonZeroU32;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use gpreempt_core::priority::Priority;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::traits::TraitsChange;
use rustix::process::{Pid, Signal, kill_process};

use super::Stage;
use super::fake_daemon::{Deed, FakeDaemon};

const SHOW: &str = "echo $$ $GPREEMPT_PRIORITY $GPREEMPT_WEIGHT $GPREEMPT_DEADLINE_US";

#[test]
fn the_daemon_knows_the_very_process_before_it_begins() {
    let folder = Stage::new("run").unwrap();
    let daemon = FakeDaemon::start(folder.root(), |_| Deed::Ok);
    let options = ["run", "-p", "12", "--weight", "3", "--deadline", "5000", "--"];
    let text = folder.stdout(&[&options[..], &["sh", "-c", SHOW]].concat());
    let (pid, rest) = text.trim_end().split_once(' ').unwrap();
    assert_eq!(rest, "12 3 5000");
    let heard = daemon.heard_from();
    let [(peer, request)] = heard.as_slice() else { unreachable!("{heard:?}") };
    assert_eq!(peer.pid.to_string(), pid, "the process that asked became the program");
    let change = TraitsChange {
        priority: Priority::new(12),
        weight: NonZeroU32::new(3),
        deadline_us: Some(5_000),
    };
    assert_eq!(*request, Request::Register { process: Process::SENDER, change });
}

#[test]
fn exit_codes_are_those_of_the_program() {
    let folder = Stage::new("run-codes").unwrap();
    let _daemon = FakeDaemon::start(folder.root(), |_| Deed::Ok);
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
    let _daemon = FakeDaemon::start(folder.root(), |_| Deed::Ok);
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
fn without_a_daemon_and_a_driver_the_program_runs_as_it_is() {
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
}
