//! Requests, their permissions, and the work that one iteration does for them.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU32};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::{sleep, spawn};
use std::time::Duration;

use gpreempt_stage::{LIMIT, Load, Stage, until};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};
use rustix::process::Signal;

use super::contention::{
    ENDLESS, code, priority, process, start, start_daemon, start_gpu, suspend,
};

#[test]
fn a_client_reads_a_snapshot() {
    let (daemon, _stage) = start();
    let mut client = daemon.connect();
    client.expect_ok(&Request::Ping).unwrap();
    let snapshot = daemon.snapshot();
    assert_eq!(snapshot.daemon.pid, daemon.pid());
    assert_eq!((snapshot.policy.as_str(), snapshot.interval_us), ("strict", 5_000));
    assert!(snapshot.daemon.sessions >= 1 && snapshot.daemon.turns > 0);
    assert!(snapshot.tasks.is_empty() && snapshot.devices.is_empty());
}

#[test]
fn processes_without_a_gpu_can_be_registered_and_not_set() {
    let (daemon, _stage) = start();
    let mut client = daemon.connect();
    let own = process(std::process::id());
    for process in [own, Process::SENDER] {
        client.expect_ok(&Request::Register { process, change: priority(12) }).unwrap();
    }
    let set = Request::Set { process: own, change: priority(3) };
    assert_eq!(code(client.expect_ok(&set)), Some(RefusalCode::NotControlled));
    let suspend = suspend(std::process::id(), 50);
    assert_eq!(code(client.expect_ok(&suspend)), Some(RefusalCode::NotControlled));
    let resume = Request::Resume { process: own };
    assert_eq!(code(client.expect_ok(&resume)), Some(RefusalCode::NotControlled));
    let gone = Request::Register { process: process(i32::MAX.unsigned_abs()), change: priority(1) };
    assert_eq!(code(client.expect_ok(&gone)), Some(RefusalCode::NoSuchProcess));
    let replaced = Process::new(std::process::id(), 1).unwrap();
    let replaced = Request::Register { process: replaced, change: priority(1) };
    assert_eq!(code(client.expect_ok(&replaced)), Some(RefusalCode::NoSuchProcess));
    let weight = NonZeroU32::new(5_000);
    let heavy = SchedAttrChange { weight, ..SchedAttrChange::default() };
    let heavy = Request::Register { process: own, change: heavy };
    assert_eq!(code(client.expect_ok(&heavy)), Some(RefusalCode::BadSetting));
    client.expect_ok(&Request::ResumeAll).unwrap();
}

#[test]
fn hints_of_processes_without_a_gpu_have_no_effect() {
    let (daemon, _stage) = start();
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let page = daemon.connect().open_page().unwrap();
    let slot = page.claim().unwrap();
    page.begin(slot, 500);
    page.end(slot);
    page.begin(slot, 0);
    daemon.connect().expect_ok(&Request::Ping).unwrap();
    assert_eq!(follow.next_within(Duration::from_millis(200)).unwrap(), None);
    drop(page);
    assert_eq!(follow.next_within(Duration::from_millis(200)).unwrap(), None);
    daemon.connect().expect_ok(&Request::Ping).unwrap();
}

#[test]
fn the_policy_is_read_and_changed_and_followers_are_notified() {
    let (daemon, _stage) = start();
    let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
    let mut client = daemon.connect();
    let before = client.policy(None).unwrap();
    assert_eq!((before.name(), before.value("interval_ms")), (Some("strict"), Some(5)));
    let mut settings = PolicySettings::new("fair");
    settings.set("interval_ms", 2).unwrap();
    let after = client.policy(Some(settings)).unwrap();
    assert_eq!((after.name(), after.value("interval_ms")), (Some("fair"), Some(2)));
    assert_eq!(daemon.snapshot().policy, "fair");
    let event = follow.next_within(LIMIT).unwrap().unwrap();
    assert_eq!(event.kind, EventKind::Policy);
    assert_eq!(event.reason.as_str(), "the policy is fair now");
    let refused = client.policy(Some(PolicySettings::new("best")));
    assert_eq!(code(refused.map(drop)), Some(RefusalCode::BadSetting));
    let mut settings = PolicySettings::new("");
    settings.set("interval_ms", 0).unwrap();
    let refused = client.policy(Some(settings));
    assert_eq!(code(refused.map(drop)), Some(RefusalCode::BadSetting));
    assert_eq!(client.policy(None).unwrap(), after);
}

#[test]
fn a_trace_ends_by_itself() {
    let (daemon, _stage) = start();
    let seconds = NonZeroU16::new(1).unwrap();
    let mut trace = daemon.connect().follow(&Request::Trace { seconds }).unwrap();
    assert_eq!(trace.next_within(Duration::from_millis(100)).unwrap(), None);
    assert!(!trace.is_over());
    assert_eq!(trace.next_within(LIMIT).unwrap(), None);
    assert!(trace.is_over());
}

#[test]
fn a_hint_page_takes_many_hints() {
    let (daemon, _stage) = start();
    let writer = daemon.connect().open_page().unwrap();
    let slot = writer.claim().unwrap();
    for _ in 0..1000 {
        writer.begin(slot, 100);
        writer.end(slot);
    }
    assert!(writer.is_connected());
    daemon.connect().expect_ok(&Request::Ping).unwrap();
}

/// Set in the process of another user that runs the second test: a pid of root, and the socket.
const OTHER_USER: &str = "GPREEMPT_TEST_OTHER_USER";
/// The unprivileged user of every Linux system.
const UNPRIVILEGED: u32 = 65_534;

#[test]
fn another_user_may_lower_its_own_processes_only() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can be two users");
        return;
    }
    let (daemon, stage) = start();
    let victim = std::process::id();
    // A copy that every user may read.
    let copy = stage.path("other-user");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    if Command::new(&copy).arg("--list").uid(UNPRIVILEGED).output().is_err() {
        println!("SKIPPED: another user cannot run what is in the temporary stage");
        return;
    }
    let output = Command::new(copy)
        .args(["--exact", "requests::requests_of_another_user", "--nocapture"])
        .env(OTHER_USER, format!("{victim} {}", daemon.socket().display()))
        .uid(UNPRIVILEGED)
        .gid(UNPRIVILEGED)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("asked everything"), "{said}");
}

#[test]
fn requests_of_another_user() {
    let Ok(told) = std::env::var(OTHER_USER) else { return };
    let (victim, socket) = told.split_once(' ').unwrap();
    let options = ClientOptions {
        paths: vec![socket.into()],
        timeout: LIMIT,
        ..ClientOptions::new(Role::Command, "other-user")
    };
    let mut client = Client::connect(&options).unwrap();
    let others = process(victim.parse().unwrap());
    let own = Process::SENDER;
    let mut ask = |request: &Request| code(client.expect_ok(request));
    assert_eq!(ask(&Request::Register { process: own, change: priority(7) }), None);
    let denied = Some(RefusalCode::NotPermitted);
    assert_eq!(ask(&Request::Register { process: own, change: priority(8) }), denied);
    assert_eq!(ask(&Request::Register { process: others, change: priority(1) }), denied);
    assert_eq!(ask(&Request::Set { process: others, change: priority(1) }), denied);
    assert_eq!(ask(&suspend(others.pid(), 1)), denied);
    assert_eq!(ask(&Request::Detach { process: others }), denied);
    assert_eq!(ask(&Request::PolicySet(PolicySettings::new("fair"))), denied);
    client.snapshot().unwrap();
    println!("asked everything");
}

const LOADS: usize = 6;
const ASKERS: usize = 4;

#[test]
fn a_reload_ends_when_the_rules_have_been_evaluated_for_every_process() {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let _loads: Vec<Load> = (0..LOADS).map(|_| emulator.load_at(2, ENDLESS).unwrap()).collect();
    let daemon = start_daemon(&stage, &emulator);
    let having = |priority: u8| {
        let tasks = daemon.snapshot().tasks;
        let is_so =
            |task: &&TaskSnapshot| task.priority == Some(priority) && !task.queues.is_empty();
        tasks.iter().filter(is_so).count()
    };
    until("every process and every queue is known", || having(2) == LOADS);
    let rule = "[[rule]]\nexecutable = \"*/gpreempt-load\"\npriority = 1\n";
    stage.write("config.toml", rule).unwrap();
    daemon.signal(Signal::HUP);
    daemon.until_logged("configuration reloaded");
    assert_eq!(having(1), LOADS, "{:#?}", daemon.log());
}

#[test]
fn an_iteration_answers_one_snapshot_request() {
    let (daemon, _stage) = start();
    let clients: Vec<Client> = (0..ASKERS).map(|_| daemon.connect()).collect();
    // All clients ask while the daemon is stopped, so that all requests wait when it continues.
    daemon.signal(Signal::STOP);
    let ask = |mut client: Client| spawn(move || client.snapshot().unwrap());
    let asked: Vec<_> = clients.into_iter().map(ask).collect();
    sleep(Duration::from_millis(100));
    daemon.signal(Signal::CONT);
    let turn_of = |text: String| Snapshot::from_json(&text).unwrap().daemon.turns;
    let turns: BTreeSet<u64> = asked.into_iter().map(|ask| turn_of(ask.join().unwrap())).collect();
    assert_eq!(turns.len(), ASKERS, "{turns:?}");
}
