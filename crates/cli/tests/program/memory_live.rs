//! Commands about GPU memory with the real service, in a daemon and in private sessions, and
//! processes that have memory on an emulated GPU.

use gpreempt_stage::until;
use gpreempt_wire::statistics::TaskState;
use rustix::process::Signal;
use serde_json::Value;

use super::machine::{Commands, PrivateMachine, Session, pid};

impl PrivateMachine {
    fn until_low_is(&self, state: TaskState) {
        until(&format!("{state:?}"), || self.task(&self.low).is_some_and(|it| it.state == state));
    }

    fn until_low_runs(&self) {
        let is_out = |state| {
            matches!(state, TaskState::Evicting | TaskState::Evicted | TaskState::Restoring)
        };
        until("it runs again", || self.task(&self.low).is_some_and(|it| !is_out(it.state)));
    }
}

fn kinds(lines: &[Value]) -> Vec<&str> {
    lines.iter().filter_map(|line| line["line"].as_str()).collect()
}

#[test]
fn the_daemon_keeps_a_process_evicted_until_it_is_restored() {
    let machine = PrivateMachine::new("evict-daemon");
    let _daemon = machine.start_daemon();
    let low = pid(&machine.low);
    let text = machine.text(&["evict", &low]);
    assert!(text.contains(") is evicted: ") && text.contains("`gpreempt restore"), "{text}");
    machine.until_low_is(TaskState::Evicted);
    let table = machine.text(&["ps"]);
    assert!(table.contains("evicted") && table.contains("on host"), "{table}");
    let (code, line) = machine.error(&["evict", &low]);
    assert!(code == 2 && line.contains("is evicted already"), "{code} {line}");
    assert_eq!(machine.text(&["restore", &low]), format!("{low} was restored\n"));
    machine.until_low_runs();
    let (code, line) = machine.error(&["restore", &low]);
    assert!(code == 2 && line.contains("not evicted"), "{code} {line}");

    // With a lease, and as a tree of one process.
    let text = machine.text(&["evict", "--tree", &low, "--for", "300ms"]);
    assert!(text.contains(") is evicted for 300ms"), "{text}");
    machine.until_low_runs();

    let text = machine.text(&["suspend", &low, "--evict", "--for", "300ms"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert_eq!(lines[0], format!("{low} is evicted and suspended for 300ms"));
    machine.until_low_runs();
    machine.finish();
}

#[test]
fn an_eviction_without_a_daemon_ends_with_its_command() {
    let machine = PrivateMachine::new("evict-private");
    let low = pid(&machine.low);
    let evict = |more: &[&str]| -> Session {
        let session = machine.start(&[&["evict", &low, "--json"], more].concat());
        machine.until_low_is(TaskState::Evicted);
        session
    };
    let (code, lines, errors) = evict(&[]).end(Signal::INT);
    assert_eq!((code, kinds(&lines), errors.as_str()), (Some(0), vec!["evicted", "restored"], ""));
    machine.until_no_session_is_left();

    // The time is over, or another command restores the process.
    let (code, lines, _) = evict(&["--for", "500ms"]).wait();
    assert_eq!((code, kinds(&lines)), (Some(0), vec!["evicted", "restored"]));
    let mut session = evict(&[]);
    assert_eq!(machine.text(&["restore", &low]), format!("{low} was restored\n"));
    let (code, lines, errors) = session.wait();
    assert_eq!((code, kinds(&lines), errors.as_str()), (Some(0), vec!["evicted", "restored"], ""));

    // An attach that an eviction interrupts continues, and its session serves both commands.
    let attach = machine.attach(&[]);
    assert_eq!(evict(&["--for", "300ms"]).wait().0, Some(0));
    machine.until_low_waits();
    let (code, lines, _) = attach.end(Signal::INT);
    assert!(code == Some(0) && !kinds(&lines).contains(&"detached"), "{lines:?}");
    machine.until_no_session_is_left();

    // The keeper restores what a killed command evicted.
    let (code, ..) = evict(&[]).end(Signal::KILL);
    assert_eq!(code, None);
    machine.until_no_session_is_left();
    machine.until_all_run();
    machine.finish();
}

#[test]
fn a_program_starts_with_room_and_is_refused_without() {
    let machine = PrivateMachine::new("run-memory");
    let _daemon = machine.start_daemon();
    let program = machine.stage.path("started");
    let program = program.to_str().unwrap();
    let run = |memory| ["run", "-p", "12", "--memory", memory, "--", "touch", program];
    let (code, line) = machine.error(&run("4TiB"));
    assert_eq!((code, line.lines().count()), (2, 1), "{line}");
    assert!(line.contains("do not fit into the GPU"), "{line}");
    assert!(!machine.stage.path("started").exists());
    machine.text(&run("1GiB"));
    assert!(machine.stage.path("started").exists());
    machine.finish();
}
