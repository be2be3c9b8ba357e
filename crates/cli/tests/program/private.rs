//! Private sessions: commands without a daemon, on an emulated GPU with real processes.

mod scene;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use gpreempt_wire::state::TaskState;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::amd::{Player, until};
use scene::Scene;

fn of_kind<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["line"] == kind).collect()
}

#[test]
fn an_attach_schedules_and_answers_like_a_daemon() {
    let scene = Scene::new("attach");
    let (low, high) = (scene.low.pid(), scene.high.pid());
    let session = scene.attach(&[]);
    let tasks: Value = serde_json::from_str(&scene.text(&["ps", "--json"])).unwrap();
    let row = |pid: &str| {
        let tasks = tasks.as_array().unwrap().iter();
        tasks.clone().find(|task| format!("{}", task["pid"]) == pid).unwrap().clone()
    };
    assert_eq!((&row(&low)["priority"], &row(&low)["state"]), (&json!(2), &json!("preempted")));
    assert_eq!(row(&high)["priority"], 12);
    assert!(scene.text(&["policy"]).starts_with("strict"));

    // Another terminal, through the same socket.
    assert_eq!(scene.text(&["set", &low, "-p", "14"]), format!("{low} has priority 14\n"));
    until("the other one waits", || scene.is_stopped(&scene.high) && !scene.is_stopped(&scene.low));
    assert!(scene.text(&["preempt", &low]).contains("was taken off its GPUs: 1 group"));
    assert!(scene.text(&["suspend", &low, "--for", "100ms"]).contains("runs again"));
    assert_eq!(scene.text(&["detach", &high]), format!("{high} is as it was\n"));
    scene.until_all_run();
    assert_eq!(scene.text(&["resume", &low]), format!("{low} runs again\n"));

    // Nothing is attached any more, so the command ends by itself.
    let mut session = session;
    let (code, lines, errors) = session.wait();
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{lines:?}");
    let attached = of_kind(&lines, "attached");
    assert_eq!(attached.len(), 2, "{lines:?}");
    assert_eq!((&attached[0]["contexts"], &attached[0]["priority"]), (&json!(1), &json!(2)));
    assert!(!of_kind(&lines, "decision").is_empty());
    let requests: Vec<&Value> =
        of_kind(&lines, "request").into_iter().map(|line| &line["request"]).collect();
    let (low_id, high_id) = (scene.low.id(), scene.high.id());
    let expected = [
        json!({ "set": { "pid": low_id, "priority": 14 } }),
        json!({ "detach": { "pid": high_id } }),
        json!({ "detach": { "pid": low_id } }),
    ];
    assert_eq!(requests, expected.iter().collect::<Vec<_>>());
    assert_eq!(lines.last().unwrap()["line"], "over");
    assert!(lines.iter().all(|line| line["time_ns"].is_u64()), "{lines:?}");
    scene.until_nothing_is_left();
    assert!(!scene.folder.0.join("gpreemptd.sock").exists());
    scene.finish();
}

#[test]
fn a_second_session_is_refused_with_the_pid_of_the_first() {
    let scene = Scene::new("second");
    let session = scene.attach(&[]);
    let owner = format!("gpreempt attach (pid {}) controls the GPUs", session.id());
    let (code, line) = scene.complaint(&["attach", &scene.high.pid(), "-p", "3"]);
    assert_eq!(code, 2);
    assert!(line.contains(&owner) && line.contains("`gpreempt set`"), "{line}");
    let output = scene.run(&["run", "-p", "3", "--", "sh", "-c", "exit 7"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7));
    assert!(said.contains("runs without a priority") && said.contains(&owner), "{said}");

    let refused = scene.daemon().output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains(&owner), "{said}");
    scene.until_low_waits();
    assert_eq!(session.end(Signal::INT).0, Some(0));
    scene.until_all_run();
    scene.until_nothing_is_left();
    let _daemon = scene.start_daemon();
    scene.finish();
}

#[test]
fn however_a_session_ends_everything_is_undone() {
    let scene = Scene::new("ends");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL, Signal::QUIT] {
        let session = scene.attach(&[]);
        let (code, lines, _) = session.end(signal);
        let is_orderly = [Signal::INT, Signal::TERM, Signal::HUP].contains(&signal);
        assert_eq!(code, is_orderly.then_some(0), "{signal:?}");
        assert_eq!(of_kind(&lines, "over").len(), usize::from(is_orderly), "{signal:?}");
        scene.until_all_run();
        scene.until_no_session_is_left();
        // A session that was killed is no reason to call for a daemon.
        let (code, line) = scene.complaint(&["set", &scene.low.pid(), "-p", "3"]);
        assert_eq!(code, 2);
        assert!(line.contains("is not attached"), "{signal:?}: {line}");
    }
    // The reader of its output goes away.
    let mut session = scene.attach(&[]);
    let mut lines = BufReader::new(session.stdout()).lines();
    assert!(lines.next().unwrap().unwrap().contains("attached"));
    drop(lines);
    until("it ends", || session.0.try_wait().unwrap().is_some());
    scene.until_all_run();
    // A time that is over.
    assert_eq!(scene.attach(&["--for", "1s"]).wait().0, Some(0));
    scene.until_all_run();
    scene.until_nothing_is_left();
    scene.finish();
}

#[test]
fn a_killed_suspension_is_undone() {
    let scene = Scene::new("suspend-kill");
    for signal in [Signal::KILL, Signal::HUP] {
        let session = scene.start(&["suspend", &scene.low.pid(), "--for", "600s", "--json"]);
        until("it is off", || scene.is_stopped(&scene.low));
        session.end(signal);
        scene.until_all_run();
    }
    scene.finish();
}

#[test]
fn a_suspension_outlives_the_session_of_another_command() {
    let scene = Scene::new("suspend-two");
    let first = scene.start(&["suspend", &scene.low.pid(), "--json"]);
    until("the first is off", || scene.is_stopped(&scene.low));
    let second = scene.start(&["suspend", &scene.high.pid(), "--json"]);
    until("the second is off", || scene.is_stopped(&scene.high));
    first.end(Signal::KILL);
    until("the first runs and the second is off again", || {
        let is_suspended =
            |load| scene.task(load).is_some_and(|task| task.state == TaskState::Suspended);
        !scene.is_stopped(&scene.low) && scene.is_stopped(&scene.high) && is_suspended(&scene.high)
    });
    let (code, lines, errors) = second.end(Signal::INT);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{lines:?}");
    assert_eq!(lines.len(), 2, "stopped once and resumed once: {lines:?}");
    scene.until_all_run();
    scene.finish();
}

#[test]
fn suspend_and_preempt_without_a_daemon() {
    let scene = Scene::new("suspend");
    let (low, gpu) = (scene.low.pid(), scene.folder.0.join("gpu"));
    let short = scene.text(&["suspend", &low, "--for", "100ms"]);
    let words: Vec<&str> = short.lines().collect();
    assert!(
        words[0].starts_with(&format!("{low} (")) && words[0].ends_with("for 100ms"),
        "{short}"
    );
    assert_eq!(words[1], format!("{low} runs again"));
    assert!(!scene.is_stopped(&scene.low));

    let mut session = scene.start(&["suspend", &low, "--json"]);
    until("it is off", || scene.is_stopped(&scene.low));
    until("it is told", || {
        scene.task(&scene.low).is_some_and(|task| task.state == TaskState::Suspended)
    });
    assert_eq!(scene.text(&["resume", "--all"]), format!("{low} runs again\n"));
    let (code, lines, errors) = session.wait();
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let kinds: Vec<&Value> = lines.iter().map(|line| &line["line"]).collect();
    assert_eq!(kinds, [&json!("stopped"), &json!("resumed")]);

    let taken: Value =
        serde_json::from_str(&scene.text(&["preempt", &low, "--json", "--wait", "1s"])).unwrap();
    assert_eq!((&taken["groups"], &taken["waited"]), (&json!(1), &json!(true)));
    assert!(taken["took_us"].as_u64().unwrap() > 0, "{taken}");

    let every = ["suspend", "--gpu", "0", "--everything", "--for", "300ms"];
    let all = scene.text(&[&every[..], &["--emulated", gpu.to_str().unwrap()]].concat());
    for load in [&scene.low, &scene.high] {
        assert!(all.contains(&format!("{} runs again", load.pid())), "{all}");
    }
    let (code, line) = scene.complaint(&["suspend", "--gpu", "7", "--everything"]);
    assert_eq!(code, 2);
    assert!(line.contains("there is no GPU 7; there are "), "{line}");
    scene.until_nothing_is_left();
    scene.finish();
}

#[test]
fn a_program_runs_beside_its_own_session() {
    let scene = Scene::new("run");
    let gpu = scene.folder.0.join("gpu");
    let own = std::env::current_exe().unwrap();
    let role = Player::command(&own, "load", &gpu);
    let mut command = scene.command(&["run", "-p", "12", "--"]);
    command.arg(own).args(role.get_args()).envs(role.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let program = Player::spawn(command.stdin(Stdio::null()).stderr(Stdio::null()));
    let scheduled = || scene.tasks()?.into_iter().find(|task| task.priority == Some(12));
    until("the program has its priority", || scheduled().is_some());
    assert_ne!(scheduled().unwrap().pid, program.id(), "it is a child");
    assert_eq!(scene.priority(&scene.low), None, "others are left alone");
    scene.text(&["set", &scene.low.pid(), "-p", "2"]);
    until("the low load waits", || scene.is_stopped(&scene.low));
    // The signal is the program's, and its exit code comes back.
    program.finish();
    scene.until_all_run();

    for (script, expected) in [("exit 7", 7), ("kill -9 $$", 137)] {
        let output = scene.run(&["run", "-p", "3", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
    }
    assert_eq!(scene.complaint(&["run", "-p", "3", "--", "/no/such/program"]).0, 127);
    assert_eq!(scene.complaint(&["run", "-p", "3", "--", "/"]).0, 126);
    scene.until_nothing_is_left();
    scene.finish();
}

#[test]
fn beside_a_daemon_every_command_goes_through_it() {
    let scene = Scene::new("beside");
    let (low, high) = (scene.low.pid(), scene.high.pid());
    let daemon = scene.start_daemon();
    scene.text(&["set", &high, "-p", "7"]);
    let session = scene.attach(&[]);
    assert_eq!((scene.priority(&scene.low), scene.priority(&scene.high)), (Some(2), Some(12)));
    // A daemon has room for more than one.
    assert_eq!(scene.run(&["attach", &low, "-p", "3", "--for", "50ms"]).status.code(), Some(0));
    scene.until_low_waits();
    let (code, lines, errors) = session.end(Signal::HUP);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{lines:?}");
    assert_eq!(of_kind(&lines, "attached").len(), 2);
    assert_eq!(scene.priority(&scene.high), Some(7), "as it was before");
    scene.until_all_run();

    let (code, line) = scene.complaint(&["attach", &low, "--policy", "fair"]);
    assert_eq!(code, 2);
    assert!(line.contains("`gpreempt policy NAME`"), "{line}");
    assert!(scene.text(&["preempt", &low]).contains("was taken off its GPUs: 1 group"));
    assert!(scene.text(&["suspend", &low, "--for", "100ms"]).contains("runs again"));
    scene.until_all_run();
    assert_eq!(scene.text(&["detach", &high]), format!("{high} is as it was\n"));
    let every = ["suspend", "--gpu", "0", "--everything", "--for", "100ms"];
    assert!(scene.text(&every).contains(&format!("{low} runs again")));
    drop(daemon);
    scene.until_all_run();
    scene.finish();
}

#[test]
fn what_a_session_cannot_do_is_refused_and_nothing_is_left() {
    let scene = Scene::new("refused");
    let (low, own) = (scene.low.pid(), std::process::id().to_string());
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
        let (code, line) = scene.complaint(arguments);
        assert_eq!(code, 2, "{arguments:?}: {line}");
        assert!(line.contains(words), "{arguments:?}: {line}");
        assert!(!scene.is_stopped(&scene.low), "{arguments:?}");
        scene.until_nothing_is_left();
    }
    scene.finish();
}
