//! Rules about certain GPUs, and GPUs that go and come back.

use std::fs;

use gpreempt_stage::{Stage, until};
use gpreempt_wire::statistics::TaskState;
use rustix::process::Signal;

use super::contention::{ENDLESS, start_daemon, start_gpu};

#[test]
fn a_rule_about_a_gpu_counts_before_anything_is_known_of_its_users() {
    let folder = Stage::new("daemon").unwrap();
    let config = folder.path("config.toml");
    let write = |gpu: &str| {
        fs::write(&config, format!("[[rule]]\ngpu = {gpu}\npriority = 6\n")).unwrap();
    };
    write("0");
    let emulator = start_gpu(&folder, "cwsr");
    let before = emulator.load(ENDLESS).unwrap();
    let daemon = start_daemon(&folder, &emulator);
    let after = emulator.load(ENDLESS).unwrap();
    for load in [&before, &after] {
        until("the rule counts", || {
            daemon.task(load.pid()).is_some_and(|task| task.priority == Some(6))
        });
    }
    let why = daemon.task(after.pid()).unwrap().why;
    assert!(why.contains("rule 1"), "{why}");
    for (gpu, is_it) in [("1", false), ("\"EMU-\"", true), ("\"41:00.0\"", false), ("\"0\"", true)]
    {
        write(gpu);
        daemon.signal(Signal::HUP);
        until(gpu, || {
            let state = daemon.task(after.pid()).map(|task| task.state);
            state.is_some_and(|state| (state != TaskState::Untouched) == is_it)
        });
    }
}

#[test]
fn a_gpu_that_is_back_is_no_problem_any_more() {
    let folder = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&folder, "cwsr");
    let daemon = start_daemon(&folder, &emulator);
    until("there is a device", || !daemon.snapshot().devices.is_empty());
    let is_gone = || daemon.snapshot().problems.iter().any(|problem| problem.contains("is gone"));
    assert!(!is_gone());
    drop(emulator);
    until("it is missed", is_gone);
    let _emulator = start_gpu(&folder, "cwsr");
    until("it is back", || !daemon.snapshot().devices.is_empty());
    until("nobody misses it", || !is_gone());
}
