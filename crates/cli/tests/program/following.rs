//! Commands that follow a daemon: events, trace, top.

use std::net::TcpListener;

use gpreempt_core::priority::Priority;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::TaskState;
use gpreempt_wire::text::Text;
use serde_json::{Value, json};

use super::Stage;
use super::fake_daemon::{Answer, FakeDaemon};
use super::with_daemon::snapshot;

fn event(at_us: u64, kind: EventKind) -> Event {
    Event {
        device: Some(0),
        process: Process::new(4242, 777),
        queue: 1,
        priority: Priority::new(3),
        name: Text::new("train"),
        reason: Text::new("priority 12 waits"),
        ..Event::new(5_000_000_000 + at_us * 1_000, kind)
    }
}

fn events() -> Vec<Event> {
    vec![
        event(100, EventKind::Preempt),
        Event { duration_ns: 20_000, ..event(120, EventKind::Preempted) },
        event(900, EventKind::Resume),
    ]
}

fn answer(request: &Request) -> Answer {
    match request {
        Request::Snapshot => Answer::Snapshot(Box::new(snapshot(TaskState::Running))),
        Request::Trace { .. } => Answer::Events(events(), true),
        Request::Follow => Answer::Events(events(), true),
        _ => Answer::Ok,
    }
}

#[test]
fn events_are_lines() {
    let folder = Stage::new("events").unwrap();
    let _daemon = FakeDaemon::start(folder.root(), answer);
    let text = folder.stdout(&["events"]);
    assert_eq!(text.lines().count(), 3);
    let wanted = "     5.000120 preempted  train (4242) on device 0, 20.0us: \
                  priority 12 waits";
    assert_eq!(text.lines().nth(1), Some(wanted));
    let lines = folder.stdout(&["events", "--json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["kind"], &lines[0]["pid"]), (&json!("preempt"), &json!(4242)));
}

#[test]
fn events_are_filtered_and_counted() {
    let folder = Stage::new("filtered").unwrap();
    let _daemon = FakeDaemon::start(folder.root(), answer);
    let kinds = |arguments: &[&str]| {
        let text = folder.stdout(&[&["events", "--json"], arguments].concat());
        let kind = |line: &str| serde_json::from_str::<Value>(line).unwrap()["kind"].clone();
        text.lines().map(kind).collect::<Vec<Value>>()
    };
    assert_eq!(kinds(&["--kind", "resume"]), [json!("resume")]);
    assert_eq!(kinds(&["--kind", "preempt", "--kind", "resume"]).len(), 2);
    assert_eq!(kinds(&["--count", "2"]), [json!("preempt"), json!("preempted")]);
    assert_eq!(kinds(&["--pid", "4242"]).len(), 3);
    assert_eq!(kinds(&["--pid", "7"]), [] as [Value; 0]);
    let (code, line) = folder.failure(&["events", "--kind", "dance"]);
    assert_eq!(code, 2);
    assert!(line.contains("there are preempt, preempted"), "{line}");
    let (_, line) = folder.failure(&["events", "--count", "0"]);
    assert!(line.contains("must be a whole number from 1"), "{line}");
}

#[test]
fn a_daemon_that_ends_ends_the_events_with_an_error() {
    let folder = Stage::new("events-end").unwrap();
    let daemon = FakeDaemon::start(folder.root(), |_| Answer::Events(events(), false));
    let program = std::thread::scope(|scope| {
        let program = scope.spawn(|| folder.run(&["events"]));
        while daemon.heard().is_empty() {
            std::thread::yield_now();
        }
        drop(daemon);
        program.join().unwrap()
    });
    assert_eq!(program.status.code(), Some(1));
    assert_eq!(String::from_utf8(program.stdout).unwrap().lines().count(), 3);
    let errors = String::from_utf8(program.stderr).unwrap();
    assert!(errors.starts_with("gpreempt: gpreemptd closed the connection"), "{errors}");
}

#[test]
fn a_trace_is_a_file_that_perfetto_reads() {
    let folder = Stage::new("trace").unwrap();
    let daemon = FakeDaemon::start(folder.root(), answer);
    let result = folder.json(&["trace", "--for", "2s", "--out", "t.json", "--json"]);
    assert_eq!(result, json!({ "file": "t.json", "events": 3, "dropped": 0 }));
    let seconds = std::num::NonZeroU16::new(2).unwrap();
    assert_eq!(daemon.heard(), [Request::Snapshot, Request::Trace { seconds }]);
    let text = folder.stdout(&["trace", "--for", "1s"]);
    assert_eq!(text, "3 events in trace.json; open it in ui.perfetto.dev\n");
    let file = std::fs::read(folder.path("t.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let lines = file["traceEvents"].as_array().unwrap();
    let named = |name: &str| lines.iter().filter(|line| line["name"] == name).count();
    assert_eq!([named("run"), named("preempt"), named("off")], [1, 2, 1]);
    let decision = lines.iter().find(|line| line["cat"] == "decision").unwrap();
    assert_eq!(decision["args"]["reason"], "priority 12 waits");
    let (code, line) = folder.failure(&["trace", "--for", "1500ms"]);
    assert_eq!(code, 2, "{line}");
    let (code, line) = folder.failure(&["trace", "--for", "1s", "--out", "no/such/folder"]);
    assert_eq!(code, 2, "{line}");
}

#[test]
fn a_trace_is_written_up_to_the_end_of_the_daemon() {
    let folder = Stage::new("trace-end").unwrap();
    let daemon = FakeDaemon::start(folder.root(), |request| match request {
        Request::Snapshot => Answer::Snapshot(Box::new(snapshot(TaskState::Running))),
        _ => Answer::Events(events(), false),
    });
    let program = std::thread::scope(|scope| {
        let program = scope.spawn(|| folder.run(&["trace", "--for", "60s"]));
        while daemon.heard().len() < 2 {
            std::thread::yield_now();
        }
        drop(daemon);
        program.join().unwrap()
    });
    assert_eq!(program.status.code(), Some(1));
    let errors = String::from_utf8(program.stderr).unwrap();
    assert!(errors.contains("trace.json has the 3 events before it"), "{errors}");
    let file = std::fs::read(folder.path("trace.json")).unwrap();
    assert!(serde_json::from_slice::<Value>(&file).unwrap()["traceEvents"].is_array());
}

#[test]
fn top_once_is_text_and_json() {
    let folder = Stage::new("top").unwrap();
    let mut turn = 0;
    let daemon = FakeDaemon::start(folder.root(), move |_| {
        turn += 1;
        let mut snapshot = snapshot(TaskState::Running);
        snapshot.now_ns += turn * 100_000_000;
        snapshot.tasks[0].share = Some(0.5);
        Answer::Snapshot(Box::new(snapshot))
    });
    let text = folder.stdout(&["top", "--once", "--every", "100ms"]);
    assert!(text.starts_with("gpreempt top  2 processes  policy strict"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("train ")).count(), 2, "{text}");
    assert!(text.lines().any(|line| line.starts_with("train") && line.ends_with('▄')), "{text}");
    assert_eq!(daemon.heard().len(), 2);
    let line = folder.stdout(&["top", "--once", "--json"]);
    assert_eq!(line.lines().count(), 1);
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["tasks"][0]["pid"], 4242);
    let (code, line) = folder.failure(&["top"]);
    assert_eq!(code, 2);
    assert!(line.contains("top needs a terminal"), "{line}");
}

#[test]
fn top_web_says_why_the_page_cannot_be_served() {
    let folder = Stage::new("top-web").unwrap();
    let refused = |address: &str, expected: &str| {
        let (code, line) = folder.failure(&["top", "--web", address]);
        assert_eq!(code, 2, "{line}");
        assert!(line.contains(expected), "{line}");
    };
    refused("0.0.0.0:0", "other machines can reach 0.0.0.0:0");
    refused("127.0.0.1:0", "gpreemptd");
    let _daemon = FakeDaemon::start(folder.root(), |_| Answer::Ok);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = listener.local_addr().unwrap();
    refused(&used.to_string(), &format!("the page cannot be served at {used}: Address"));
}
