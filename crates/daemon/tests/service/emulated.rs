//! The daemon with an emulated GPU and processes that use it.

use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

use gpreempt_core::id::DeviceId;
use gpreempt_stage::{Daemon, LIMIT, Load, Stage, until};
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::process::Process;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::{TaskSnapshot, TaskState};
use rustix::process::{Pid, Signal, kill_process};

use super::contention::{
    Contention, ENDLESS, code, priority, process, resume, set, start_daemon, start_gpu,
    start_on_gpu, start_with_load, state, suspend, until_running,
};

fn task(daemon: &Daemon, load: &Load) -> Option<TaskSnapshot> {
    daemon.task(load.pid())
}

#[test]
fn the_lower_priority_is_preempted_and_no_work_is_lost() {
    for machine in ["cwsr", "tsg"] {
        let mut contention = Contention::on_gpu(machine);
        contention.until_low_waits();
        let waiting = contention.low_task();
        assert_eq!(waiting.priority, Some(2));
        assert!(waiting.preempts >= 1 && waiting.pending > Some(0), "{waiting:?}");
        assert!(waiting.why.contains("its environment"), "{}", waiting.why);
        let device = &contention.daemon.snapshot().devices[0];
        assert_eq!(device.kind, "emulated");
        assert!(device.preempts >= 1);
        contention.stop_daemon();
        assert!(!contention.is_low_stopped(), "all GPU settings are restored");
        contention.finish();
    }
}

#[test]
fn after_a_kill_no_process_stays_stopped_and_the_next_daemon_schedules() {
    let mut contention = Contention::on_gpu("cwsr");
    for _ in 0..2 {
        contention.until_low_waits();
        contention.daemon.kill().unwrap();
        let killed = Instant::now();
        until("it runs again", || !contention.is_low_stopped());
        println!("the load ran again {:?} after the daemon was killed", killed.elapsed());
        contention.restart_daemon();
    }
    contention.until_low_waits();
    // Both at once: then the next daemon undoes the changes.
    let keeper =
        Pid::from_raw(i32::try_from(contention.daemon.keeper().unwrap()).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    contention.daemon.kill().unwrap();
    contention.restart_daemon();
    contention.until_low_waits();
    contention.high.finish_exact().unwrap();
    until("it has the device alone", || {
        state(&contention.daemon, &contention.low) == Some(TaskState::Running)
    });
    contention.low.finish_exact().unwrap();
}

#[test]
fn user_settings_survive_a_restart_of_the_daemon() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let mut client = contention.daemon.connect();
    client.expect_ok(&set(&contention.low, 9)).unwrap();
    client.expect_ok(&suspend(contention.high.pid(), 600_000)).unwrap();
    drop(client);
    for is_killed in [true, false] {
        if is_killed {
            contention.daemon.kill().unwrap();
        } else {
            contention.stop_daemon();
        }
        until("no load is stopped", || !contention.is_high_stopped());
        contention.restart_daemon();
        until("it is suspended again", || {
            state(&contention.daemon, &contention.high) == Some(TaskState::Suspended)
                && contention.is_high_stopped()
        });
        until("it is tracked", || task(&contention.daemon, &contention.low).is_some());
        let task = contention.low_task();
        assert_eq!(task.priority, Some(9), "{}", task.why);
    }
    contention.daemon.connect().expect_ok(&Request::ResumeAll).unwrap();
    let detach = Request::Detach { process: process(contention.low.pid()) };
    contention.daemon.connect().expect_ok(&detach).unwrap();
    contention.daemon.kill().unwrap();
    contention.restart_daemon();
    until("it stays detached", || {
        state(&contention.daemon, &contention.low) == Some(TaskState::Untouched)
    });
    contention.daemon.kill().unwrap();
    fs::write(contention.stage.path("state/orders.json"), "{ half").unwrap();
    contention.restart_daemon();
    contention.until_low_waits();
}

#[test]
fn a_replaced_keeper_undoes_the_changes_of_a_killed_daemon() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let before = contention.daemon.keeper().unwrap();
    let keeper = Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    until("another keeper", || contention.daemon.keeper().unwrap() != before);
    contention.until_low_waits();
    contention.daemon.kill().unwrap();
    until("it runs again", || !contention.is_low_stopped());
}

#[test]
fn a_daemon_that_was_stalled_restarts_control_of_all_processes() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    contention.daemon.connect().expect_ok(&set(&contention.low, 3)).unwrap();
    let keeper = contention.daemon.keeper().unwrap();
    contention.daemon.signal(Signal::STOP);
    until("it runs again", || !contention.is_low_stopped());
    contention.daemon.signal(Signal::CONT);
    contention.until_low_waits();
    assert_ne!(contention.daemon.keeper().unwrap(), keeper);
    assert_eq!(contention.low_task().priority, Some(3), "it keeps its priority");
    let log = contention.daemon.log();
    let lines = log.iter().filter(|line| line.contains("restarting control")).count();
    assert_eq!(lines, 1, "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("killed")), "{log:#?}");
    // The new keeper undoes the changes as well.
    contention.daemon.kill().unwrap();
    until("it runs again", || !contention.is_low_stopped());
    contention.finish();
}

#[test]
fn followers_receive_a_change_of_priority_and_its_effect() {
    let contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let daemon = &contention.daemon;
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let mut client = daemon.connect();
    client.expect_ok(&set(&contention.low, 15)).unwrap();
    until("the other load runs", || {
        state(daemon, &contention.high) == Some(TaskState::Preempted)
            && state(daemon, &contention.low) == Some(TaskState::Running)
    });
    let task = contention.low_task();
    assert_eq!(task.priority, Some(15));
    assert!(task.why.starts_with("priority 15 (asked for by uid"), "{}", task.why);
    let mut kinds = Vec::new();
    loop {
        let event = follow.next_within(LIMIT).unwrap().expect("a preempt");
        kinds.push(event.kind);
        if event.kind == EventKind::Preempt {
            assert_eq!(event.process.map(Process::pid), Some(contention.high.pid()));
            assert_eq!(event.by_process.map(Process::pid), Some(contention.low.pid()));
            assert!(event.reason.as_str().contains("with priority 15"), "{event:?}");
            break;
        }
    }
    assert!(kinds.contains(&EventKind::Changed), "{kinds:?}");
    let event =
        follow.find_map(|event| event.ok().filter(|event| event.kind == EventKind::Preempted));
    assert!(event.unwrap().duration_ns > 0);
    let detach = Request::Detach { process: process(contention.low.pid()) };
    client.expect_ok(&detach).unwrap();
    until("it is not scheduled", || state(daemon, &contention.low) == Some(TaskState::Untouched));
    until("the other load is resumed", || !contention.is_high_stopped());
}

#[test]
fn a_suspension_overrides_every_priority_and_ends_with_its_lease() {
    let contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let daemon = &contention.daemon;
    let mut client = daemon.connect();
    let high = contention.high.pid();
    client.expect_ok(&suspend(high, 600_000)).unwrap();
    until("the low one runs", || state(daemon, &contention.low) == Some(TaskState::Running));
    let suspended = task(daemon, &contention.high).unwrap();
    assert_eq!(suspended.state, TaskState::Suspended);
    assert!(suspended.lease_ms.is_some_and(|ms| ms > 500_000), "{suspended:?}");
    assert!(contention.is_high_stopped());
    client.expect_ok(&resume(&contention.high)).unwrap();
    contention.until_low_waits();
    let again = client.expect_ok(&resume(&contention.high));
    assert_eq!(code(again), Some(RefusalCode::NotControlled));
    client.expect_ok(&suspend(high, 50)).unwrap();
    until("the lease is over", || task(daemon, &contention.high).unwrap().lease_ms.is_none());
    contention.until_low_waits();
    client.expect_ok(&suspend(high, 600_000)).unwrap();
    client.expect_ok(&Request::ResumeAll).unwrap();
    contention.until_low_waits();
}

#[test]
fn a_hint_preempts_others_before_there_is_work() {
    let stage = Stage::new("daemon").unwrap();
    fs::write(stage.path("config.toml"), "[scheduler]\nhint_max_ms = 10000\n").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let daemon = start_daemon(&stage, &emulator);
    let low = emulator.load_at(2, ENDLESS).unwrap();
    // This process is its parent, so a later registration would be its own too.
    until("the load is tracked", || task(&daemon, &low).is_some_and(|it| it.priority == Some(2)));
    let mut messages = daemon.connect();
    let register = Request::Register { process: Process::SENDER, change: priority(12) };
    messages.expect_ok(&register).unwrap();
    let mut own = Client::connect(&stage.path("gpu"), 4096).unwrap();
    let _queue = own.open_queue(DeviceId(0), 16).unwrap();
    until("this process is scheduled", || {
        daemon.task(std::process::id()).is_some_and(|task| !task.queues.is_empty())
    });
    until_running(&daemon, &low);
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let page = daemon.connect().open_page().unwrap();
    let slot = page.claim().unwrap();
    page.begin(slot, 0);
    let preempt =
        follow.find_map(|event| event.ok().filter(|event| event.kind == EventKind::Preempt));
    assert_eq!(preempt.unwrap().by_process.map(Process::pid), Some(std::process::id()));
    until("the low-priority load is preempted", || emulator.is_stopped(low.pid()));
    page.end(slot);
    until("it runs again", || !emulator.is_stopped(low.pid()));
    page.begin(slot, 0);
    until("it is preempted again", || emulator.is_stopped(low.pid()));
    drop(page);
    until("a hint ends with its session", || !emulator.is_stopped(low.pid()));
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let mut next_hint = |kind| {
        let found = follow.find_map(|event| event.ok().filter(|event| event.kind == kind));
        let event = found.unwrap();
        assert_eq!(event.process.map(Process::pid), Some(std::process::id()));
        event.duration_ns
    };
    let page = daemon.connect().open_page().unwrap();
    let slot = page.claim().unwrap();
    page.begin(slot, 500);
    until("a hint with a deadline preempts as well", || emulator.is_stopped(low.pid()));
    assert_eq!(next_hint(EventKind::HintBegin), 500_000);
    page.end(slot);
    until("it runs again", || !emulator.is_stopped(low.pid()));
    assert_eq!(next_hint(EventKind::HintEnd), 0);
}

#[test]
fn children_of_a_registered_process_get_its_priority() {
    let (daemon, emulator, _stage) = start_on_gpu();
    let register = Request::Register { process: Process::SENDER, change: priority(11) };
    let mut client = daemon.connect();
    client.expect_ok(&register).unwrap();
    let child = emulator.load(ENDLESS).unwrap();
    until("it is tracked", || task(&daemon, &child).is_some_and(|task| task.priority == Some(11)));
    drop(child);
    until("it is no longer tracked", || daemon.snapshot().tasks.is_empty());
}

#[test]
fn a_process_is_scheduled_as_soon_as_a_rule_matches_it() {
    let (daemon, emulator, stage) = start_on_gpu();
    let load = emulator.load(ENDLESS).unwrap();
    until("it is tracked", || state(&daemon, &load) == Some(TaskState::Untouched));
    let config = stage.path("config.toml");
    fs::write(&config, "[[rule]]\nexecutable = \"/*\"\npriority = 3\n").unwrap();
    daemon.signal(Signal::HUP);
    until("the rule applies", || task(&daemon, &load).unwrap().priority == Some(3));
    fs::write(&config, "[[rule]]\nexecutable = \"/*\"\nignore = true\n").unwrap();
    daemon.signal(Signal::HUP);
    until("it is not scheduled", || state(&daemon, &load) == Some(TaskState::Untouched));
    let refused = code(daemon.connect().expect_ok(&set(&load, 5)));
    assert_eq!(refused, Some(RefusalCode::NotControlled));
}

#[test]
fn no_change_is_made_that_the_journal_cannot_record() {
    let (low, daemon, emulator, stage) = start_with_load(2);
    // A folder in the place of the file makes writing fail, as on a full disk.
    let key = task(&daemon, &low).unwrap();
    let entries = fs::read_dir(stage.path("state")).unwrap();
    let session = entries.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    fs::create_dir(session.join(format!("{}-{}.new", key.pid, key.start_ticks))).unwrap();
    let high = emulator.load_at(7, ENDLESS).unwrap();
    daemon.until_logged("the journal cannot be written");
    assert!(!emulator.is_stopped(low.pid()) && !emulator.is_stopped(high.pid()));
    let problems = daemon.snapshot().problems;
    assert!(problems.iter().any(|problem| problem.contains("journal")), "{problems:?}");
    fs::remove_dir(session.join(format!("{}-{}.new", key.pid, key.start_ticks))).unwrap();
    until("the change is made as soon as it can be recorded", || emulator.is_stopped(low.pid()));
}

#[test]
fn a_rule_about_a_gpu_applies_to_the_first_queue_of_a_process() {
    let stage = Stage::new("daemon").unwrap();
    let config = stage.path("config.toml");
    let write = |gpu: &str| {
        fs::write(&config, format!("[[rule]]\ngpu = {gpu}\npriority = 6\n")).unwrap();
    };
    write("0");
    let emulator = start_gpu(&stage, "cwsr");
    let before = emulator.load(ENDLESS).unwrap();
    let daemon = start_daemon(&stage, &emulator);
    let after = emulator.load(ENDLESS).unwrap();
    for load in [&before, &after] {
        until("the rule applies", || {
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
fn a_gpu_that_comes_back_is_no_longer_reported_as_gone() {
    let (daemon, emulator, stage) = start_on_gpu();
    until("there is a device", || !daemon.snapshot().devices.is_empty());
    let is_gone = || daemon.snapshot().problems.iter().any(|problem| problem.contains("has ended"));
    assert!(!is_gone());
    drop(emulator);
    until("it is reported as gone", is_gone);
    let _emulator = start_gpu(&stage, "cwsr");
    until("it runs again", || !daemon.snapshot().devices.is_empty());
    until("it is not reported as gone", || !is_gone());
}

/// The traces that code injected into a process would leave.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    /// Code and files in its memory, with their addresses and rights.
    mappings: BTreeSet<String>,
    threads: usize,
    tracer: String,
    /// Handled and blocked signals.
    signals: Vec<String>,
}

impl Traces {
    fn of(pid: u32) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        // Its own heap and stacks change by themselves; they count only if they hold code.
        let is_telling = |line: &&str| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let name = words.get(5).copied().unwrap_or_default();
            words[1].contains('x') || !matches!(name, "" | "[heap]" | "[stack]")
        };
        let maps = read("maps");
        let status = read("status");
        let starts = |beginnings: &[&str]| {
            let is_one = |line: &&str| beginnings.iter().any(|word| line.starts_with(word));
            status.lines().filter(is_one).map(str::to_owned).collect::<Vec<_>>()
        };
        Self {
            mappings: maps.lines().filter(is_telling).map(str::to_owned).collect(),
            threads: fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(),
            tracer: starts(&["TracerPid:"]).concat(),
            signals: starts(&["SigCgt:", "SigBlk:", "Seccomp:"]),
        }
    }
}

#[test]
fn scheduling_adds_no_code_or_thread_to_a_process() {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let low = emulator.load_at(2, ENDLESS).unwrap();
    let high = emulator.load_at(7, ENDLESS).unwrap();
    let mut before = Traces::of(low.pid());
    until("it has started up", || {
        let now = Traces::of(low.pid());
        std::mem::replace(&mut before, Traces::of(low.pid())) == now
    });
    assert_eq!(before.tracer, "TracerPid:\t0");
    assert!(before.threads > 0 && before.mappings.len() > 3, "{before:?}");
    let daemon = start_daemon(&stage, &emulator);
    until("it is preempted", || {
        let task = daemon.task(low.pid());
        task.is_some_and(|task| task.state == TaskState::Preempted && task.preempts > 0)
    });
    assert_eq!(Traces::of(low.pid()), before, "while it is off");
    drop(high);
    until("it runs again", || {
        daemon.task(low.pid()).is_some_and(|task| task.state == TaskState::Running)
    });
    assert_eq!(Traces::of(low.pid()), before, "while it runs");
    drop(daemon);
    assert_eq!(Traces::of(low.pid()), before, "after the daemon ended");
}
