//! With an emulated GPU and processes that use it.

use std::num::NonZeroU32;
use std::time::Instant;

use gpreempt_core::id::DeviceId;
use gpreempt_core::priority::Priority;
use gpreempt_stage::{Daemon, LIMIT, Load, Stage, until};
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::{TaskSnapshot, TaskState};
use rustix::process::{Pid, Signal, kill_process};

use super::contention::{Contention, ENDLESS, start_daemon, start_gpu, state};
use super::requests::code;

fn task(daemon: &Daemon, load: &Load) -> Option<TaskSnapshot> {
    daemon.task(load.pid())
}

fn process(load: &Load) -> Process {
    Process::new(load.pid(), 0).unwrap()
}

fn priority(level: u8) -> SchedAttrChange {
    SchedAttrChange { priority: Priority::new(level), ..SchedAttrChange::default() }
}

#[test]
fn the_less_important_one_waits_and_nothing_is_lost() {
    for machine in ["cwsr", "tsg"] {
        let mut contention = Contention::on_gpu(machine);
        contention.until_low_waits();
        let Contention { low, high, daemon, emulator, .. } = &mut contention;
        let waiting = task(daemon, low).unwrap();
        assert_eq!(waiting.priority, Some(2));
        assert!(waiting.preempts >= 1 && waiting.pending > 0, "{waiting:?}");
        assert!(waiting.why.contains("its environment"), "{}", waiting.why);
        let device = &daemon.snapshot().devices[0];
        assert_eq!(device.kind, "emulated");
        assert!(device.preempts >= 1);
        daemon.signal(Signal::TERM);
        assert!(daemon.wait().unwrap().success(), "{:?}", daemon.log());
        assert!(!emulator.is_stopped(low.pid()), "everything is as it was");
        for load in [low, high] {
            load.finish_exact().unwrap();
        }
    }
}

#[test]
fn when_the_daemon_is_killed_nothing_stays_stopped_and_the_next_one_goes_on() {
    let mut contention = Contention::on_gpu("cwsr");
    for _ in 0..2 {
        contention.until_low_waits();
        contention.daemon.kill().unwrap();
        let killed = Instant::now();
        until("it runs again", || !contention.emulator.is_stopped(contention.low.pid()));
        println!("it ran again {:?} after the daemon was killed", killed.elapsed());
        contention.restart_daemon();
    }
    contention.until_low_waits();
    // Both at once: then it is the next daemon that undoes it.
    let keeper =
        Pid::from_raw(i32::try_from(contention.daemon.keeper().unwrap()).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    contention.daemon.kill().unwrap();
    contention.restart_daemon();
    contention.until_low_waits();
    contention.high.finish_exact().unwrap();
    until("it has the device to itself", || {
        state(&contention.daemon, &contention.low) == Some(TaskState::Running)
    });
    contention.low.finish_exact().unwrap();
}

#[test]
fn what_people_asked_for_outlives_the_daemon() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let lease_ms = NonZeroU32::new(600_000).unwrap();
    let (low, high) = (process(&contention.low), process(&contention.high));
    let mut client = contention.daemon.connect();
    client.expect_ok(&Request::Set { process: low, change: priority(9) }).unwrap();
    client.expect_ok(&Request::Suspend { process: high, lease_ms }).unwrap();
    drop(client);
    // Killed at once, and stopped in good order.
    for is_killed in [true, false] {
        if is_killed {
            contention.daemon.kill().unwrap();
        } else {
            contention.daemon.signal(Signal::TERM);
            assert!(contention.daemon.wait().unwrap().success());
        }
        until("nothing is stopped", || !contention.emulator.is_stopped(contention.high.pid()));
        contention.restart_daemon();
        until("it is suspended again", || {
            state(&contention.daemon, &contention.high) == Some(TaskState::Suspended)
                && contention.emulator.is_stopped(contention.high.pid())
        });
        until("it is met", || task(&contention.daemon, &contention.low).is_some());
        let told = task(&contention.daemon, &contention.low).unwrap();
        assert_eq!(told.priority, Some(9), "{}", told.why);
    }
    contention.daemon.connect().expect_ok(&Request::ResumeAll).unwrap();
    contention.daemon.connect().expect_ok(&Request::Detach { process: low }).unwrap();
    contention.daemon.kill().unwrap();
    // What makes no sense is ignored.
    contention.restart_daemon();
    until("it stays detached", || {
        state(&contention.daemon, &contention.low) == Some(TaskState::Untouched)
    });
    contention.daemon.kill().unwrap();
    std::fs::write(contention.stage.path("state/orders.json"), "{ half").unwrap();
    contention.restart_daemon();
    contention.until_low_waits();
}

#[test]
fn a_keeper_that_was_replaced_does_its_duty() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let before = contention.daemon.keeper().unwrap();
    let keeper = Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    until("another keeper", || contention.daemon.keeper().unwrap() != before);
    contention.until_low_waits();
    contention.daemon.kill().unwrap();
    until("it runs again", || !contention.emulator.is_stopped(contention.low.pid()));
}

#[test]
fn a_daemon_that_stood_still_begins_a_new_session_and_goes_on() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let set = Request::Set { process: process(&contention.low), change: priority(3) };
    contention.daemon.connect().expect_ok(&set).unwrap();
    let keeper = contention.daemon.keeper().unwrap();
    contention.daemon.signal(Signal::STOP);
    until("it runs again", || !contention.emulator.is_stopped(contention.low.pid()));
    contention.daemon.signal(Signal::CONT);
    contention.until_low_waits();
    assert_ne!(contention.daemon.keeper().unwrap(), keeper);
    assert_eq!(
        task(&contention.daemon, &contention.low).unwrap().priority,
        Some(3),
        "it keeps what it has"
    );
    let log = contention.daemon.log();
    let lines = log.iter().filter(|line| line.contains("a new session begins")).count();
    assert_eq!(lines, 1, "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("killed")), "{log:#?}");
    // The new keeper does its duty too.
    contention.daemon.kill().unwrap();
    until("it runs again", || !contention.emulator.is_stopped(contention.low.pid()));
    contention.high.finish_exact().unwrap();
    contention.low.finish_exact().unwrap();
}

#[test]
fn priorities_change_and_followers_see_why() {
    let contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let daemon = &contention.daemon;
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let mut client = daemon.connect();
    let set = Request::Set { process: process(&contention.low), change: priority(15) };
    client.expect_ok(&set).unwrap();
    until("they changed places", || {
        state(daemon, &contention.high) == Some(TaskState::Preempted)
            && state(daemon, &contention.low) == Some(TaskState::Running)
    });
    let told = task(daemon, &contention.low).unwrap();
    assert_eq!(told.priority, Some(15));
    assert!(told.why.starts_with("priority 15 (asked for by uid"), "{}", told.why);
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
    let detach = Request::Detach { process: process(&contention.low) };
    client.expect_ok(&detach).unwrap();
    until("it is left alone", || state(daemon, &contention.low) == Some(TaskState::Untouched));
    until("so is the device", || !contention.emulator.is_stopped(contention.high.pid()));
}

#[test]
fn a_suspension_is_stronger_than_any_priority_and_ends_with_its_lease() {
    let contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let daemon = &contention.daemon;
    let mut client = daemon.connect();
    let high = process(&contention.high);
    let long = NonZeroU32::new(600_000).unwrap();
    client.expect_ok(&Request::Suspend { process: high, lease_ms: long }).unwrap();
    until("the low one runs", || state(daemon, &contention.low) == Some(TaskState::Running));
    let suspended = task(daemon, &contention.high).unwrap();
    assert_eq!(suspended.state, TaskState::Suspended);
    assert!(suspended.lease_ms.is_some_and(|ms| ms > 500_000), "{suspended:?}");
    assert!(contention.emulator.is_stopped(contention.high.pid()));
    client.expect_ok(&Request::Resume { process: high }).unwrap();
    contention.until_low_waits();
    let again = Request::Resume { process: high };
    assert_eq!(code(client.expect_ok(&again)), Some(RefusalCode::NotControlled));
    let short = NonZeroU32::new(50).unwrap();
    client.expect_ok(&Request::Suspend { process: high, lease_ms: short }).unwrap();
    until("the lease is over", || task(daemon, &contention.high).unwrap().lease_ms.is_none());
    contention.until_low_waits();
    client.expect_ok(&Request::Suspend { process: high, lease_ms: long }).unwrap();
    client.expect_ok(&Request::ResumeAll).unwrap();
    contention.until_low_waits();
}

#[test]
fn a_hint_makes_room_before_there_is_work() {
    let folder = Stage::new("daemon").unwrap();
    std::fs::write(folder.path("config.toml"), "[scheduler]\nhint_max_ms = 10000\n").unwrap();
    let emulator = start_gpu(&folder, "cwsr");
    let daemon = start_daemon(&folder, &emulator);
    let low = emulator.load_at(2, ENDLESS).unwrap();
    let mut messages = daemon.connect();
    let register = Request::Register { process: Process::SENDER, change: priority(12) };
    messages.expect_ok(&register).unwrap();
    let mut own = Client::connect(&folder.path("gpu"), 4096).unwrap();
    let _queue = own.open_queue(DeviceId(0), 16).unwrap();
    until("we are scheduled", || {
        daemon.task(std::process::id()).is_some_and(|task| !task.queues.is_empty())
    });
    until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let page = daemon.connect().open_page().unwrap();
    let slot = page.claim().unwrap();
    page.begin(slot, 0);
    let preempt =
        follow.find_map(|event| event.ok().filter(|event| event.kind == EventKind::Preempt));
    assert_eq!(preempt.unwrap().by_process.map(Process::pid), Some(std::process::id()));
    until("the low one made room", || emulator.is_stopped(low.pid()));
    page.end(slot);
    until("it is back", || !emulator.is_stopped(low.pid()));
    page.begin(slot, 0);
    until("the low one made room again", || emulator.is_stopped(low.pid()));
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
    until("a hint with a deadline does the same", || emulator.is_stopped(low.pid()));
    assert_eq!(next_hint(EventKind::HintBegin), 500_000);
    page.end(slot);
    until("the low one runs again", || !emulator.is_stopped(low.pid()));
    assert_eq!(next_hint(EventKind::HintEnd), 0);
}

#[test]
fn children_of_a_registered_process_have_what_was_asked_for() {
    let folder = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&folder, "cwsr");
    let daemon = start_daemon(&folder, &emulator);
    let register = Request::Register { process: Process::SENDER, change: priority(11) };
    let mut client = daemon.connect();
    client.expect_ok(&register).unwrap();
    let child = emulator.load(ENDLESS).unwrap();
    until("it is known", || task(&daemon, &child).is_some_and(|task| task.priority == Some(11)));
    drop(child);
    until("it is forgotten", || daemon.snapshot().tasks.is_empty());
}

#[test]
fn unknown_processes_are_left_alone_until_a_rule_speaks_of_them() {
    let folder = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&folder, "cwsr");
    let daemon = start_daemon(&folder, &emulator);
    let load = emulator.load(ENDLESS).unwrap();
    until("it is known", || state(&daemon, &load) == Some(TaskState::Untouched));
    let config = folder.path("config.toml");
    std::fs::write(&config, "[[rule]]\nexecutable = \"/*\"\npriority = 3\n").unwrap();
    daemon.signal(Signal::HUP);
    until("the rule counts", || task(&daemon, &load).unwrap().priority == Some(3));
    std::fs::write(&config, "[[rule]]\nexecutable = \"/*\"\nignore = true\n").unwrap();
    daemon.signal(Signal::HUP);
    until("it is left alone", || state(&daemon, &load) == Some(TaskState::Untouched));
    let set = Request::Set { process: process(&load), change: priority(5) };
    let refused = code(daemon.connect().expect_ok(&set));
    assert_eq!(refused, Some(RefusalCode::NotControlled));
}

#[test]
fn nothing_is_done_that_cannot_be_written_down() {
    let folder = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&folder, "cwsr");
    let daemon = start_daemon(&folder, &emulator);
    let low = emulator.load_at(2, ENDLESS).unwrap();
    until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
    // Something is where the file would be, so it cannot be written, as on a full disk.
    let key = task(&daemon, &low).unwrap();
    let entries = std::fs::read_dir(folder.path("state")).unwrap();
    let session = entries.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    std::fs::create_dir(session.join(format!("{}-{}.new", key.pid, key.start_ticks))).unwrap();
    let high = emulator.load_at(7, ENDLESS).unwrap();
    daemon.until_logged("the journal cannot be written");
    assert!(!emulator.is_stopped(low.pid()) && !emulator.is_stopped(high.pid()));
    let problems = daemon.snapshot().problems;
    assert!(problems.iter().any(|problem| problem.contains("journal")), "{problems:?}");
    std::fs::remove_dir(session.join(format!("{}-{}.new", key.pid, key.start_ticks))).unwrap();
    until("it is done as soon as it can be", || emulator.is_stopped(low.pid()));
}
