//! Commands that change processes, beside a daemon: they go through it.

use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::TaskState;
use gpreempt_wire::traits::TraitsChange;
use serde_json::json;

use super::Stage;
use super::fake_daemon::{Deed, FakeDaemon};
use super::with_daemon::{process, snapshot, wishes};

#[test]
fn an_attach_goes_through_the_daemon_and_gives_back_what_was() {
    let stage = Stage::new("attach-beside").unwrap();
    let daemon = FakeDaemon::start(stage.root(), |request| match request {
        Request::Snapshot => Deed::Snapshot(Box::new(snapshot(TaskState::Running))),
        _ => Deed::Ok,
    });
    let text = stage.stdout(&["attach", "4242:12", "9", "-p", "5", "--for", "50ms"]);
    let attached = ["attached 4242 (train) with priority 12", "attached 9 (shell) with priority 5"];
    assert!(attached.iter().all(|line| text.contains(line)), "{text}");
    assert!(text.ends_with("everything is as it was\n"), "{text}");
    let change = |level| TraitsChange { priority: Priority::new(level), ..Default::default() };
    let other = Process::new(9, 0).unwrap();
    let heard = wishes(&daemon);
    let expected = [
        Request::Follow,
        Request::Set { process: process(), change: change(12) },
        Request::Set { process: other, change: change(5) },
        // One was scheduled before, the other was not.
        Request::Detach { process: other },
        Request::Set { process: process(), change: change(3) },
    ];
    assert_eq!(heard, expected);
    let (code, line) = stage.failure(&["attach", "4242", "--min-share", "10"]);
    assert_eq!(code, 2);
    assert!(line.contains("gpreemptd is running") && line.contains("aging"), "{line}");
}

#[test]
fn a_preempt_goes_through_the_daemon_and_lets_go_again() {
    let stage = Stage::new("preempt-beside").unwrap();
    let mut is_suspended = false;
    let daemon = FakeDaemon::start(stage.root(), move |request| {
        is_suspended |= matches!(request, Request::Suspend { .. });
        match request {
            Request::Snapshot if is_suspended => {
                let mut known = snapshot(TaskState::Suspended);
                known.tasks[0].queues[0].on = false;
                Deed::Snapshot(Box::new(known))
            }
            Request::Snapshot => Deed::Snapshot(Box::new(snapshot(TaskState::Running))),
            _ => Deed::Ok,
        }
    });
    let taken = stage.json(&["preempt", "4242", "--wait", "300ms", "--json"]);
    assert_eq!((&taken["groups"], &taken["waited"]), (&json!(1), &json!(true)));
    let lease_ms = NonZeroU32::new(300).unwrap();
    let expected = [
        Request::Follow,
        Request::Suspend { process: process(), lease_ms },
        Request::Resume { process: process() },
    ];
    assert_eq!(wishes(&daemon), expected);
}

#[test]
fn observe_points_to_the_daemon() {
    let stage = Stage::new("beside").unwrap();
    let daemon = FakeDaemon::start(stage.root(), |_| Deed::Ok);
    let output = stage.run(&["observe", "4242"]);
    let line = String::from_utf8_lossy(&output.stderr);
    // It only reads; where there is a driver it does that beside a daemon, too.
    if line.contains("process 4242") {
        println!("SKIPPED: observe has a driver to ask here");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert!(line.contains("gpreemptd is running") && line.contains("`gpreempt top`"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert_eq!(daemon.heard(), []);
}
