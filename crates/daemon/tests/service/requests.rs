//! What is asked for, and who may.

use std::num::{NonZeroU16, NonZeroU32};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use gpreempt_core::priority::Priority;
use gpreempt_stage::{LIMIT, Stage};
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;

fn change(priority: u8) -> SchedAttrChange {
    SchedAttrChange { priority: Priority::new(priority), ..SchedAttrChange::default() }
}

pub(crate) fn code(result: Result<(), ClientError>) -> Option<RefusalCode> {
    match result {
        Ok(()) => None,
        Err(ClientError::Refused(refusal)) => Some(refusal.code),
        Err(other) => panic!("{other}"),
    }
}

fn process(pid: u32) -> Process {
    Process::new(pid, 0).unwrap()
}

#[test]
fn hello_ping_snapshot() {
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
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
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    let mut client = daemon.connect();
    let own = process(std::process::id());
    for process in [own, Process::SENDER] {
        client.expect_ok(&Request::Register { process, change: change(12) }).unwrap();
    }
    let set = Request::Set { process: own, change: change(3) };
    assert_eq!(code(client.expect_ok(&set)), Some(RefusalCode::NotControlled));
    let lease_ms = NonZeroU32::new(50).unwrap();
    let suspend = Request::Suspend { process: own, lease_ms };
    assert_eq!(code(client.expect_ok(&suspend)), Some(RefusalCode::NotControlled));
    let resume = Request::Resume { process: own };
    assert_eq!(code(client.expect_ok(&resume)), Some(RefusalCode::NotControlled));
    let gone = Request::Register { process: process(i32::MAX.unsigned_abs()), change: change(1) };
    assert_eq!(code(client.expect_ok(&gone)), Some(RefusalCode::NoSuchProcess));
    let replaced = Process::new(std::process::id(), 1).unwrap();
    let replaced = Request::Register { process: replaced, change: change(1) };
    assert_eq!(code(client.expect_ok(&replaced)), Some(RefusalCode::NoSuchProcess));
    let weight = NonZeroU32::new(5_000);
    let heavy = SchedAttrChange { weight, ..SchedAttrChange::default() };
    let heavy = Request::Register { process: own, change: heavy };
    assert_eq!(code(client.expect_ok(&heavy)), Some(RefusalCode::BadSetting));
    client.expect_ok(&Request::ResumeAll).unwrap();
}

#[test]
fn hints_of_processes_without_a_gpu_mean_nothing() {
    let stage = Stage::new("daemon").unwrap();
    let daemon = stage.daemon().start().unwrap();
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
fn the_policy_is_read_and_changed_and_followers_hear_of_it() {
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
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
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    let seconds = NonZeroU16::new(1).unwrap();
    let mut trace = daemon.connect().follow(&Request::Trace { seconds }).unwrap();
    assert_eq!(trace.next_within(Duration::from_millis(100)).unwrap(), None);
    assert!(!trace.is_over());
    assert_eq!(trace.next_within(LIMIT).unwrap(), None);
    assert!(trace.is_over());
}

#[test]
fn a_page_is_opened_once() {
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    let writer = daemon.connect().open_page().unwrap();
    let slot = writer.claim().unwrap();
    for _ in 0..1000 {
        writer.begin(slot, 100);
        writer.end(slot);
    }
    assert!(writer.is_connected());
    daemon.connect().expect_ok(&Request::Ping).unwrap();
}

/// What the test below does in a process of another user: the socket is in this variable, and the
/// pid of somebody else's process.
const STRANGER: &str = "GPREEMPT_TEST_STRANGER";
/// Somebody who is nobody everywhere.
const NOBODY: u32 = 65_534;

#[test]
fn strangers_may_lower_their_own_and_nothing_else() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can be two users");
        return;
    }
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    let victim = std::process::id();
    // A copy that everybody may read: the one we run from may be in somebody's home.
    let copy = folder.path("stranger");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    if Command::new(&copy).arg("--list").uid(NOBODY).output().is_err() {
        println!("SKIPPED: another user cannot run what is in the temporary folder");
        return;
    }
    let output = Command::new(copy)
        .args(["--exact", "requests::a_stranger_asks", "--nocapture"])
        .env(STRANGER, format!("{victim} {}", daemon.socket().display()))
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("asked everything"), "{said}");
}

#[test]
fn a_stranger_asks() {
    let Ok(told) = std::env::var(STRANGER) else { return };
    let (victim, socket) = told.split_once(' ').unwrap();
    let options = ClientOptions {
        paths: vec![socket.into()],
        timeout: LIMIT,
        ..ClientOptions::new(Role::Command, "stranger")
    };
    let mut client = Client::connect(&options).unwrap();
    let others = process(victim.parse().unwrap());
    let own = Process::SENDER;
    let mut ask = |request: &Request| code(client.expect_ok(request));
    assert_eq!(ask(&Request::Register { process: own, change: change(7) }), None);
    let denied = Some(RefusalCode::NotPermitted);
    assert_eq!(ask(&Request::Register { process: own, change: change(8) }), denied);
    assert_eq!(ask(&Request::Register { process: others, change: change(1) }), denied);
    assert_eq!(ask(&Request::Set { process: others, change: change(1) }), denied);
    let lease_ms = NonZeroU32::new(1).unwrap();
    assert_eq!(ask(&Request::Suspend { process: others, lease_ms }), denied);
    assert_eq!(ask(&Request::Detach { process: others }), denied);
    assert_eq!(ask(&Request::PolicySet(PolicySettings::new("fair"))), denied);
    client.snapshot().unwrap();
    println!("asked everything");
}
