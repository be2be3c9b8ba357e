//! With an emulated GPU and processes that use it.

use std::num::NonZeroU32;
use std::time::Instant;

use gpreempt_core::id::DeviceId;
use gpreempt_core::priority::Priority;
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::process::Process;
use gpreempt_wire::refusal::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::{TaskSnapshot, TaskState};
use gpreempt_wire::traits::TraitsChange;
use rustix::process::{Pid, Signal, kill_process};

use super::daemon::{Daemon, Folder, PATIENCE, until};
use super::requests::code;
use super::scene::{Emulator, Load};

/// A daemon, an emulator, and two loads without end: one less important than the other.
struct Scene {
    low: Load,
    high: Load,
    daemon: Daemon,
    emulator: Emulator,
    folder: Folder,
}

impl Scene {
    fn new(machine: &str) -> Self {
        let folder = Folder::new();
        let emulator = Emulator::start(&folder, machine);
        let low = emulator.load(&[("GPREEMPT_PRIORITY", "2")]);
        let daemon = Self::daemon(&folder);
        until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
        let high = emulator.load(&[("GPREEMPT_PRIORITY", "7")]);
        Self { low, high, daemon, emulator, folder }
    }

    fn daemon(folder: &Folder) -> Daemon {
        let socket = folder.path("gpu");
        Daemon::start(folder, &["--emulated", socket.to_str().unwrap()])
    }

    fn until_low_waits(&self) {
        until("the low one was preempted", || {
            state(&self.daemon, &self.low) == Some(TaskState::Preempted)
                && state(&self.daemon, &self.high) == Some(TaskState::Running)
                && self.emulator.is_stopped(self.low.pid())
        });
    }
}

fn task(daemon: &Daemon, load: &Load) -> Option<TaskSnapshot> {
    daemon.task(load.pid())
}

fn state(daemon: &Daemon, load: &Load) -> Option<TaskState> {
    task(daemon, load).map(|task| task.state)
}

fn process(load: &Load) -> Process {
    Process::new(load.pid(), 0).unwrap()
}

fn priority(level: u8) -> TraitsChange {
    TraitsChange { priority: Priority::new(level), ..TraitsChange::default() }
}

#[test]
fn the_less_important_one_waits_and_nothing_is_lost() {
    for machine in ["cwsr", "tsg"] {
        let mut scene = Scene::new(machine);
        scene.until_low_waits();
        let Scene { low, high, daemon, emulator, .. } = &mut scene;
        let waiting = task(daemon, low).unwrap();
        assert_eq!(waiting.priority, Some(2));
        assert!(waiting.preempts >= 1 && waiting.pending > 0, "{waiting:?}");
        assert!(waiting.why.contains("its environment"), "{}", waiting.why);
        let device = &daemon.snapshot().devices[0];
        assert_eq!(device.kind, "emulated");
        assert!(device.preempts >= 1);
        daemon.signal(Signal::TERM);
        assert!(daemon.wait().success(), "{:?}", daemon.log());
        assert!(!emulator.is_stopped(low.pid()), "everything is as it was");
        for load in [low, high] {
            load.finish();
        }
    }
}

#[test]
fn when_the_daemon_is_killed_nothing_stays_stopped_and_the_next_one_goes_on() {
    let mut scene = Scene::new("cwsr");
    for _ in 0..2 {
        scene.until_low_waits();
        scene.daemon.kill();
        let killed = Instant::now();
        until("it runs again", || !scene.emulator.is_stopped(scene.low.pid()));
        println!("it ran again {:?} after the daemon was killed", killed.elapsed());
        scene.daemon = Scene::daemon(&scene.folder);
    }
    scene.until_low_waits();
    // Both at once: then it is the next daemon that undoes it.
    let keeper = Pid::from_raw(i32::try_from(scene.daemon.keeper()).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    scene.daemon.kill();
    let again = Scene::daemon(&scene.folder);
    scene.daemon = again;
    scene.until_low_waits();
    scene.high.finish();
    until("it has the device to itself", || {
        state(&scene.daemon, &scene.low) == Some(TaskState::Running)
    });
    scene.low.finish();
}

#[test]
fn what_people_asked_for_outlives_the_daemon() {
    let mut scene = Scene::new("cwsr");
    scene.until_low_waits();
    let lease_ms = NonZeroU32::new(600_000).unwrap();
    let (low, high) = (process(&scene.low), process(&scene.high));
    let mut client = scene.daemon.connect();
    client.expect_ok(&Request::Set { process: low, change: priority(9) }).unwrap();
    client.expect_ok(&Request::Suspend { process: high, lease_ms }).unwrap();
    drop(client);
    // Killed at once, and stopped in good order.
    for is_killed in [true, false] {
        if is_killed {
            scene.daemon.kill();
        } else {
            scene.daemon.signal(Signal::TERM);
            assert!(scene.daemon.wait().success());
        }
        until("nothing is stopped", || !scene.emulator.is_stopped(scene.high.pid()));
        scene.daemon = Scene::daemon(&scene.folder);
        until("it is suspended again", || {
            state(&scene.daemon, &scene.high) == Some(TaskState::Suspended)
                && scene.emulator.is_stopped(scene.high.pid())
        });
        until("it is met", || task(&scene.daemon, &scene.low).is_some());
        let told = task(&scene.daemon, &scene.low).unwrap();
        assert_eq!(told.priority, Some(9), "{}", told.why);
    }
    scene.daemon.connect().expect_ok(&Request::ResumeAll).unwrap();
    scene.daemon.connect().expect_ok(&Request::Detach { process: low }).unwrap();
    scene.daemon.kill();
    // What makes no sense is ignored.
    scene.daemon = Scene::daemon(&scene.folder);
    until("it stays detached", || state(&scene.daemon, &scene.low) == Some(TaskState::Untouched));
    scene.daemon.kill();
    std::fs::write(scene.folder.path("state/orders.json"), "{ half").unwrap();
    scene.daemon = Scene::daemon(&scene.folder);
    scene.until_low_waits();
}

#[test]
fn a_keeper_that_was_replaced_does_its_duty() {
    let mut scene = Scene::new("cwsr");
    scene.until_low_waits();
    let before = scene.daemon.keeper();
    let keeper = Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    until("another keeper", || scene.daemon.keeper() != before);
    scene.until_low_waits();
    scene.daemon.kill();
    until("it runs again", || !scene.emulator.is_stopped(scene.low.pid()));
}

#[test]
fn a_daemon_that_stood_still_begins_a_new_session_and_goes_on() {
    let mut scene = Scene::new("cwsr");
    scene.until_low_waits();
    let set = Request::Set { process: process(&scene.low), change: priority(3) };
    scene.daemon.connect().expect_ok(&set).unwrap();
    let keeper = scene.daemon.keeper();
    scene.daemon.signal(Signal::STOP);
    until("it runs again", || !scene.emulator.is_stopped(scene.low.pid()));
    scene.daemon.signal(Signal::CONT);
    scene.until_low_waits();
    assert_ne!(scene.daemon.keeper(), keeper);
    assert_eq!(task(&scene.daemon, &scene.low).unwrap().priority, Some(3), "it keeps what it has");
    let log = scene.daemon.log();
    let lines = log.iter().filter(|line| line.contains("a new session begins")).count();
    assert_eq!(lines, 1, "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("killed")), "{log:#?}");
    // The new keeper does its duty too.
    scene.daemon.kill();
    until("it runs again", || !scene.emulator.is_stopped(scene.low.pid()));
    scene.high.finish();
    scene.low.finish();
}

#[test]
fn priorities_change_and_followers_see_why() {
    let scene = Scene::new("cwsr");
    scene.until_low_waits();
    let daemon = &scene.daemon;
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let mut client = daemon.connect();
    let set = Request::Set { process: process(&scene.low), change: priority(15) };
    client.expect_ok(&set).unwrap();
    until("they changed places", || {
        state(daemon, &scene.high) == Some(TaskState::Preempted)
            && state(daemon, &scene.low) == Some(TaskState::Running)
    });
    let told = task(daemon, &scene.low).unwrap();
    assert_eq!(told.priority, Some(15));
    assert!(told.why.starts_with("priority 15 (asked for by uid"), "{}", told.why);
    let mut kinds = Vec::new();
    loop {
        let event = follow.next_within(PATIENCE).unwrap().expect("a preempt");
        kinds.push(event.kind);
        if event.kind == EventKind::Preempt {
            assert_eq!(event.process.map(Process::pid), Some(scene.high.pid()));
            assert_eq!(event.by_process.map(Process::pid), Some(scene.low.pid()));
            assert!(event.reason.as_str().contains("with priority 15"), "{event:?}");
            break;
        }
    }
    assert!(kinds.contains(&EventKind::Changed), "{kinds:?}");
    let event =
        follow.find_map(|event| event.ok().filter(|event| event.kind == EventKind::Preempted));
    assert!(event.unwrap().duration_ns > 0);
    let detach = Request::Detach { process: process(&scene.low) };
    client.expect_ok(&detach).unwrap();
    until("it is left alone", || state(daemon, &scene.low) == Some(TaskState::Untouched));
    until("so is the device", || !scene.emulator.is_stopped(scene.high.pid()));
}

#[test]
fn a_suspension_is_stronger_than_any_priority_and_ends_with_its_lease() {
    let scene = Scene::new("cwsr");
    scene.until_low_waits();
    let daemon = &scene.daemon;
    let mut client = daemon.connect();
    let high = process(&scene.high);
    let long = NonZeroU32::new(600_000).unwrap();
    client.expect_ok(&Request::Suspend { process: high, lease_ms: long }).unwrap();
    until("the low one runs", || state(daemon, &scene.low) == Some(TaskState::Running));
    let suspended = task(daemon, &scene.high).unwrap();
    assert_eq!(suspended.state, TaskState::Suspended);
    assert!(suspended.lease_ms.is_some_and(|ms| ms > 500_000), "{suspended:?}");
    assert!(scene.emulator.is_stopped(scene.high.pid()));
    client.expect_ok(&Request::Resume { process: high }).unwrap();
    scene.until_low_waits();
    let again = Request::Resume { process: high };
    assert_eq!(code(client.expect_ok(&again)), Some(RefusalCode::NotControlled));
    let short = NonZeroU32::new(50).unwrap();
    client.expect_ok(&Request::Suspend { process: high, lease_ms: short }).unwrap();
    until("the lease is over", || task(daemon, &scene.high).unwrap().lease_ms.is_none());
    scene.until_low_waits();
    client.expect_ok(&Request::Suspend { process: high, lease_ms: long }).unwrap();
    client.expect_ok(&Request::ResumeAll).unwrap();
    scene.until_low_waits();
}

#[test]
fn a_hint_makes_room_before_there_is_work() {
    let folder = Folder::new();
    std::fs::write(folder.path("config.toml"), "[scheduler]\nhint_max_ms = 10000\n").unwrap();
    let emulator = Emulator::start(&folder, "cwsr");
    let daemon = Scene::daemon(&folder);
    let low = emulator.load(&[("GPREEMPT_PRIORITY", "2")]);
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
    let folder = Folder::new();
    let emulator = Emulator::start(&folder, "cwsr");
    let daemon = Scene::daemon(&folder);
    let register = Request::Register { process: Process::SENDER, change: priority(11) };
    let mut client = daemon.connect();
    client.expect_ok(&register).unwrap();
    let child = emulator.load(&[]);
    until("it is known", || task(&daemon, &child).is_some_and(|task| task.priority == Some(11)));
    drop(child);
    until("it is forgotten", || daemon.snapshot().tasks.is_empty());
}

#[test]
fn unknown_processes_are_left_alone_until_a_rule_speaks_of_them() {
    let folder = Folder::new();
    let emulator = Emulator::start(&folder, "cwsr");
    let daemon = Scene::daemon(&folder);
    let load = emulator.load(&[]);
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
    let folder = Folder::new();
    let emulator = Emulator::start(&folder, "cwsr");
    let daemon = Scene::daemon(&folder);
    let low = emulator.load(&[("GPREEMPT_PRIORITY", "2")]);
    until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
    // Something is where the file would be, so it cannot be written, as on a full disk.
    let key = task(&daemon, &low).unwrap();
    let entries = std::fs::read_dir(folder.path("state")).unwrap();
    let session = entries.map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    std::fs::create_dir(session.join(format!("{}-{}.new", key.pid, key.start_ticks))).unwrap();
    let high = emulator.load(&[("GPREEMPT_PRIORITY", "7")]);
    daemon.until_logged("the journal cannot be written");
    assert!(!emulator.is_stopped(low.pid()) && !emulator.is_stopped(high.pid()));
    let problems = daemon.snapshot().problems;
    assert!(problems.iter().any(|problem| problem.contains("journal")), "{problems:?}");
    std::fs::remove_dir(session.join(format!("{}-{}.new", key.pid, key.start_ticks))).unwrap();
    until("it is done as soon as it can be", || emulator.is_stopped(low.pid()));
}
