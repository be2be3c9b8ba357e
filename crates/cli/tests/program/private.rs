//! Private sessions: commands without a daemon, on an emulated GPU with real processes.

use std::io::{BufRead, BufReader};
use std::path::Path;

use gpreempt_stage::{LIMIT, until};
use gpreempt_wire::statistics::TaskState;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::machine::{Commands, ENDLESS, PrivateMachine, pid};

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["line"] == kind).collect()
}

#[test]
fn an_attach_schedules_and_answers_like_a_daemon() {
    let machine = PrivateMachine::new("attach");
    let (low, high) = (pid(&machine.low), pid(&machine.high));
    let session = machine.attach(&[]);
    let tasks: Value = serde_json::from_str(&machine.text(&["ps", "--json"])).unwrap();
    let row = |pid: &str| {
        let tasks = tasks.as_array().unwrap().iter();
        tasks.clone().find(|task| format!("{}", task["pid"]) == pid).unwrap().clone()
    };
    assert_eq!((&row(&low)["priority"], &row(&low)["state"]), (&json!(2), &json!("preempted")));
    assert_eq!(row(&high)["priority"], 12);
    assert!(machine.text(&["policy"]).starts_with("strict"));

    // Another terminal, through the same socket.
    let said = machine.text(&["set", &low, "-p", "14"]);
    assert!(said.starts_with(&format!("{low} has priority 14\n")), "{said}");
    assert!(said.contains("1 other process on GPU 0 will be preempted for it"), "{said}");
    until("the other one waits", || {
        machine.is_stopped(&machine.high) && !machine.is_stopped(&machine.low)
    });
    assert!(machine.text(&["preempt", &low]).contains("was preempted: 1 group"));
    assert!(machine.text(&["suspend", &low, "--for", "100ms"]).contains("was resumed"));
    assert_eq!(
        machine.text(&["detach", &high]),
        format!("{high} is no longer scheduled; its GPU settings are restored\n")
    );
    machine.until_all_run();
    assert_eq!(machine.text(&["resume", &low]), format!("{low} was resumed\n"));

    // No process is attached any more, so the command ends by itself.
    let mut session = session;
    let (code, lines, errors) = session.wait();
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{lines:?}");
    let attached = of_kind(&lines, "attached");
    assert_eq!(attached.len(), 2, "{lines:?}");
    assert_eq!((&attached[0]["contexts"], &attached[0]["priority"]), (&json!(1), &json!(2)));
    assert!(!of_kind(&lines, "decision").is_empty());
    let requests: Vec<&Value> =
        of_kind(&lines, "request").into_iter().map(|line| &line["request"]).collect();
    let (low_id, high_id) = (machine.low.pid(), machine.high.pid());
    let expected = [
        json!({ "set": { "pid": low_id, "priority": 14 } }),
        json!({ "detach": { "pid": high_id } }),
        json!({ "detach": { "pid": low_id } }),
    ];
    assert_eq!(requests, expected.iter().collect::<Vec<_>>());
    assert_eq!(lines.last().unwrap()["line"], "over");
    assert!(lines.iter().all(|line| line["time_ns"].is_u64()), "{lines:?}");
    machine.until_nothing_is_left();
    assert!(!machine.stage.socket().exists());
    machine.finish();
}

#[test]
fn a_second_session_is_refused_with_the_pid_of_the_first() {
    let machine = PrivateMachine::new("second");
    let session = machine.attach(&[]);
    let owner = format!("gpreempt attach (pid {}) controls the GPUs", session.id());
    let (code, line) = machine.error(&["attach", &pid(&machine.high), "-p", "3"]);
    assert_eq!(code, 2);
    assert!(line.contains(&owner) && line.contains("`gpreempt set`"), "{line}");
    let output = machine.run(&["run", "-p", "3", "--", "sh", "-c", "exit 7"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7));
    assert!(said.contains("runs without a priority") && said.contains(&owner), "{said}");

    let mut refused = machine.daemon().spawn().unwrap();
    let ended = refused.process().wait(LIMIT).unwrap();
    assert!(!ended.status.success() && ended.err.contains(&owner), "{ended:?}");
    machine.until_low_waits();
    assert_eq!(session.end(Signal::INT).0, Some(0));
    machine.until_all_run();
    machine.until_nothing_is_left();
    let _daemon = machine.start_daemon();
    machine.finish();
}

#[test]
fn a_session_undoes_everything_however_it_ends() {
    let machine = PrivateMachine::new("ends");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL, Signal::QUIT] {
        let session = machine.attach(&[]);
        let (code, lines, _) = session.end(signal);
        let is_orderly = [Signal::INT, Signal::TERM, Signal::HUP].contains(&signal);
        assert_eq!(code, is_orderly.then_some(0), "{signal:?}");
        assert_eq!(of_kind(&lines, "over").len(), usize::from(is_orderly), "{signal:?}");
        machine.until_all_run();
        machine.until_no_session_is_left();
        // After a session was killed, no daemon is reported as missing.
        let (code, line) = machine.error(&["set", &pid(&machine.low), "-p", "3"]);
        assert_eq!(code, 2);
        assert!(line.contains("is not attached"), "{signal:?}: {line}");
    }
    // The reader of its output closes it.
    let mut session = machine.attach(&[]);
    let mut lines = BufReader::new(session.stdout()).lines();
    assert!(lines.next().unwrap().unwrap().contains("attached"));
    drop(lines);
    until("it ends", || session.0.try_wait().unwrap().is_some());
    machine.until_all_run();
    // A time that is over.
    assert_eq!(machine.attach(&["--for", "1s"]).wait().0, Some(0));
    machine.until_all_run();
    machine.until_nothing_is_left();
    machine.finish();
}

#[test]
fn an_attach_whose_output_is_not_read_ends_in_time() {
    let machine = PrivateMachine::new("unread");
    let (low, high) = (format!("{}:2", machine.low.pid()), format!("{}:2", machine.high.pid()));
    let arguments = ["attach", &low, &high, "--policy", "round-robin", "--json", "--for", "5s"];
    let mut session = machine.start(&arguments);
    // Room for about twenty lines, of which more are printed in five seconds.
    let out = session.stdout();
    rustix::pipe::fcntl_setpipe_size(&out, 4096).unwrap();
    until("it ends", || session.0.try_wait().unwrap().is_some());
    machine.until_all_run();
    machine.until_nothing_is_left();
    machine.finish();
}

#[test]
fn a_killed_suspension_is_undone() {
    let machine = PrivateMachine::new("suspend-kill");
    for signal in [Signal::KILL, Signal::HUP] {
        let session = machine.start(&["suspend", &pid(&machine.low), "--for", "600s", "--json"]);
        until("it is off", || machine.is_stopped(&machine.low));
        session.end(signal);
        machine.until_all_run();
    }
    machine.finish();
}

#[test]
fn a_suspension_outlives_the_session_of_another_command() {
    let machine = PrivateMachine::new("suspend-two");
    let first = machine.start(&["suspend", &pid(&machine.low), "--json"]);
    until("the first is off", || machine.is_stopped(&machine.low));
    let second = machine.start(&["suspend", &pid(&machine.high), "--json"]);
    until("the second is off", || machine.is_stopped(&machine.high));
    first.end(Signal::KILL);
    until("the first runs and the second is off again", || {
        let is_suspended =
            |load| machine.task(load).is_some_and(|task| task.state == TaskState::Suspended);
        !machine.is_stopped(&machine.low)
            && machine.is_stopped(&machine.high)
            && is_suspended(&machine.high)
    });
    let (code, lines, errors) = second.end(Signal::INT);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{lines:?}");
    assert_eq!(lines.len(), 2, "stopped once and resumed once: {lines:?}");
    machine.until_all_run();
    machine.finish();
}

#[test]
fn suspend_and_preempt_without_a_daemon() {
    let machine = PrivateMachine::new("suspend");
    let (low, gpu) = (pid(&machine.low), machine.emulator.place());
    let short = machine.text(&["suspend", &low, "--for", "100ms"]);
    let words: Vec<&str> = short.lines().collect();
    assert!(
        words[0].starts_with(&format!("{low} (")) && words[0].ends_with("for 100ms"),
        "{short}"
    );
    assert_eq!(words[1], format!("{low} was resumed"));
    assert!(!machine.is_stopped(&machine.low));

    let mut session = machine.start(&["suspend", &low, "--json"]);
    until("it is off", || machine.is_stopped(&machine.low));
    until("it is told", || {
        machine.task(&machine.low).is_some_and(|task| task.state == TaskState::Suspended)
    });
    assert_eq!(machine.text(&["resume", "--all"]), format!("{low} was resumed\n"));
    let (code, lines, errors) = session.wait();
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let kinds: Vec<&Value> = lines.iter().map(|line| &line["line"]).collect();
    assert_eq!(kinds, [&json!("stopped"), &json!("resumed")]);

    let taken: Value =
        serde_json::from_str(&machine.text(&["preempt", &low, "--json", "--wait", "1s"])).unwrap();
    assert_eq!((&taken["groups"], &taken["waited"]), (&json!(1), &json!(true)));
    assert!(taken["took_us"].as_u64().unwrap() > 0, "{taken}");

    let every = ["suspend", "--gpu", "0", "--everything", "--for", "300ms"];
    let all = machine.text(&[&every[..], &["--emulated", gpu.to_str().unwrap()]].concat());
    for load in [&machine.low, &machine.high] {
        assert!(all.contains(&format!("{} was resumed", pid(load))), "{all}");
    }
    let (code, line) = machine.error(&["suspend", "--gpu", "7", "--everything"]);
    assert_eq!(code, 2);
    assert!(line.contains("there is no GPU 7; there are "), "{line}");
    machine.until_nothing_is_left();
    machine.finish();
}

#[test]
fn a_program_runs_beside_its_own_session() {
    let machine = PrivateMachine::new("run");
    let mut command = machine.command(&["run", "-p", "12", "--"]);
    command.arg(machine.stage.program("gpreempt-load").unwrap());
    machine.emulator.spec().add_load(&mut command, ENDLESS);
    let mut program = machine.stage.start("the command", command).unwrap();
    let scheduled = || machine.tasks()?.into_iter().find(|task| task.priority == Some(12));
    until("the program has its priority", || scheduled().is_some());
    assert_ne!(scheduled().unwrap().pid, program.pid(), "it is a child");
    assert_eq!(machine.priority(&machine.low), None, "other processes are not scheduled");
    machine.text(&["set", &pid(&machine.low), "-p", "2"]);
    until("the low load waits", || machine.is_stopped(&machine.low));
    // The program gets the signal, and its exit code is returned.
    program.signal(Signal::TERM);
    let ended = program.wait(LIMIT).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    let last: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    assert_eq!(last["exactness"]["result"], "pass", "{last}");
    machine.until_all_run();

    for (script, expected) in [("exit 7", 7), ("kill -9 $$", 137)] {
        let output = machine.run(&["run", "-p", "3", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
    }
    assert_eq!(machine.error(&["run", "-p", "3", "--", "/no/such/program"]).0, 127);
    assert_eq!(machine.error(&["run", "-p", "3", "--", "/"]).0, 126);
    machine.until_nothing_is_left();
    machine.finish();
}

#[test]
fn beside_a_daemon_every_command_uses_it() {
    let machine = PrivateMachine::new("beside");
    let (low, high) = (pid(&machine.low), pid(&machine.high));
    let daemon = machine.start_daemon();
    machine.text(&["set", &high, "-p", "7"]);
    let session = machine.attach(&[]);
    assert_eq!(
        (machine.priority(&machine.low), machine.priority(&machine.high)),
        (Some(2), Some(12))
    );
    // A daemon permits several attaches.
    assert_eq!(machine.run(&["attach", &low, "-p", "3", "--for", "50ms"]).status.code(), Some(0));
    machine.until_low_waits();
    let (code, lines, errors) = session.end(Signal::HUP);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{lines:?}");
    assert_eq!(of_kind(&lines, "attached").len(), 2);
    assert_eq!(machine.priority(&machine.high), Some(7), "its former priority");
    machine.until_all_run();

    let (code, line) = machine.error(&["attach", &low, "--policy", "fair"]);
    assert_eq!(code, 2);
    assert!(line.contains("`gpreempt policy NAME`"), "{line}");
    assert!(machine.text(&["preempt", &low]).contains("was preempted: 1 group"));
    assert!(machine.text(&["suspend", &low, "--for", "100ms"]).contains("was resumed"));
    machine.until_all_run();
    assert_eq!(
        machine.text(&["detach", &high]),
        format!("{high} is no longer scheduled; its GPU settings are restored\n")
    );
    let every = ["suspend", "--gpu", "0", "--everything", "--for", "100ms"];
    assert!(machine.text(&every).contains(&format!("{low} was resumed")));
    drop(daemon);
    machine.until_all_run();
    machine.finish();
}

#[test]
fn impossible_requests_are_refused_and_leave_no_session() {
    let machine = PrivateMachine::new("refused");
    let (low, own) = (pid(&machine.low), std::process::id().to_string());
    let low = format!("{low}:2");
    for (arguments, words) in [
        (&["attach", &low, &low][..], "is named twice"),
        (&["attach", &low, &own], "uses no emulated GPU"),
        (&["attach", &low, "999999999"], "there is no process 999999999"),
        (&["suspend", &own, "--for", "1s"], "uses no emulated GPU"),
        (&["preempt", &own], "uses no emulated GPU"),
        (&["attach", &low, "--emulated", "/nonexistent/gpu"], "no emulator answers at"),
    ] {
        if Path::new("/sys/module/nvidia").exists() && words.contains("emulated GPU") {
            println!("SKIPPED: {arguments:?}: this machine has a driver");
            continue;
        }
        let (code, line) = machine.error(arguments);
        assert_eq!(code, 2, "{arguments:?}: {line}");
        assert!(line.contains(words), "{arguments:?}: {line}");
        assert!(!machine.is_stopped(&machine.low), "{arguments:?}");
        machine.until_nothing_is_left();
    }
    machine.finish();
}
