//! How a daemon begins and ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use gpreempt_device::journal::Journal;
use gpreempt_device::urgency;
use gpreempt_stage::{Stage, until};
use gpreempt_wire::client::ClientError;
use gpreempt_wire::request::Request;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn what_cannot_be_undone_does_not_keep_it_from_starting() {
    let folder = Stage::new("daemon").unwrap();
    let left = folder.path("state").join("session-1-0");
    fs::create_dir_all(&left).unwrap();
    // Something of a later version, or of a process that cannot be reached.
    let odd = left.join("1-1.json");
    let text = r#"{"process":{"pid":1,"start_ticks":1},"acts":[{"kind":"new"}]}"#;
    fs::write(&odd, text).unwrap();
    let mut daemon = folder.daemon().start().unwrap();
    daemon.until_logged("cannot be undone yet");
    // Somebody goes on trying, until there is nothing left.
    fs::remove_file(&odd).unwrap();
    until("its keeper is done", || !left.exists());
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn it_ends_in_good_order_when_told_to() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = Stage::new("daemon").unwrap();
        let mut daemon = folder.daemon().start().unwrap();
        let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
        daemon.signal(signal);
        assert!(daemon.wait().unwrap().success(), "{:?}", daemon.log());
        assert!(!daemon.socket().exists());
        for lock in ["gpreemptd.sock.lock", "state/gpreemptd.lock"] {
            assert!(!folder.path(lock).exists(), "{lock} is left");
        }
        assert!(follow.next().is_none_or(|event| event.is_err()), "followers hear that it ended");
        until("the keeper ends as well", || sessions(&folder) == 0);
        daemon.until_logged("everything is as it was");
    }
}

/// What it takes to be urgent.
const CAP_SYS_NICE: u32 = 23;

#[test]
fn it_and_its_keeper_come_before_what_only_computes() {
    let niceness = |pid: u32| -> i32 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.collect::<Vec<_>>()[16].parse().unwrap()
    };
    let own = niceness(std::process::id());
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    // Where it may not it runs all the same.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let powers = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may = u64::from_str_radix(powers, 16).unwrap() & (1 << CAP_SYS_NICE) != 0;
    let expected = if may { own.min(urgency::NICENESS) } else { own };
    assert_eq!(niceness(daemon.pid()), expected);
    assert_eq!(niceness(daemon.keeper().unwrap()), expected);
}

fn sessions(folder: &Stage) -> usize {
    let entries = fs::read_dir(folder.path("state")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[test]
fn it_begins_no_session_while_a_command_cleans_up() {
    let folder = Stage::new("daemon").unwrap();
    let journal = Journal::at(folder.path("state")).unwrap();
    // A command that holds this may take a session without a keeper for one that was left behind.
    let cleaning = journal.lock().unwrap();
    let daemon = folder.daemon().spawn().unwrap();
    until("it is on its way", || daemon.socket().exists());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sessions(&folder), 0);
    drop(cleaning);
    daemon.until_logged("ready at");
    assert_eq!(sessions(&folder), 1);
}

#[test]
fn a_second_daemon_is_refused() {
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    let mut second = folder.daemon().spawn().unwrap();
    assert!(!second.wait().unwrap().success());
    second.until_logged("gpreemptd is running already at");
    // The same journal with another socket is no better.
    let elsewhere = folder.path("other.sock");
    let mut third = folder.daemon().argument("--socket").argument(elsewhere).spawn().unwrap();
    assert!(!third.wait().unwrap().success());
    daemon.connect().expect_ok(&Request::Ping).unwrap();
}

#[test]
fn a_socket_that_was_removed_is_made_again() {
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    let mut old = daemon.connect();
    fs::remove_file(daemon.socket()).unwrap();
    until("somebody answers again", || daemon.try_connect().is_ok());
    old.expect_ok(&Request::Ping).unwrap();
    daemon.until_logged("the socket was removed; it is there again");
}

#[test]
fn a_bad_configuration_on_reload_changes_nothing_and_is_said() {
    let folder = Stage::new("daemon").unwrap();
    let config = folder.path("config.toml");
    let write = |interval: u32| {
        fs::write(&config, format!("[scheduler]\ninterval_ms = {interval}\n")).unwrap();
    };
    write(3);
    let daemon = folder.daemon().start().unwrap();
    assert_eq!(daemon.snapshot().interval_us, 3_000);
    write(20);
    daemon.signal(Signal::HUP);
    daemon.until_logged("stays as it was");
    daemon.until_logged("scheduler.interval_ms: is 20");
    let snapshot = daemon.snapshot();
    assert_eq!(snapshot.interval_us, 3_000);
    assert!(snapshot.problems.iter().any(|problem| problem.contains("interval_ms")));
    write(2);
    daemon.signal(Signal::HUP);
    until("the new one counts", || daemon.snapshot().interval_us == 2_000);
    // Where it listens was said on the command line, so what the file says of it does not matter.
    fs::write(&config, "[daemon]\nsocket = \"/nonexistent/x.sock\"\n").unwrap();
    daemon.signal(Signal::HUP);
    until("the new one counts", || daemon.snapshot().interval_us == 5_000);
    let log = daemon.log();
    assert!(!log.iter().any(|line| line.contains("another socket")), "{log:#?}");
}

#[test]
fn it_does_not_start_with_a_bad_configuration_and_check_says_why() {
    let folder = Stage::new("daemon").unwrap();
    fs::write(folder.path("config.toml"), "[scheduler]\npolicy = \"best\"\n").unwrap();
    let mut daemon = folder.daemon().spawn().unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(2));
    daemon.until_logged("config.toml:2: scheduler.policy");
    let check = |text: &str, more: &[&str]| {
        fs::write(folder.path("config.toml"), text).unwrap();
        let mut command = folder.command("gpreemptd").unwrap();
        command.arg("--check").arg("--config").arg(folder.path("config.toml")).args(more);
        command.env("GPREEMPT_SOCKET", "/tmp/elsewhere.sock");
        command.output().unwrap()
    };
    let rule = "[[rule]]\nexecutable = \"nothing-is-called-so\"\npriority = 3\n";
    let good = check(rule, &[]);
    assert!(good.status.success());
    let said = String::from_utf8_lossy(&good.stdout);
    assert!(said.contains("no mistakes"), "{said}");
    assert!(said.contains("The socket is /tmp/elsewhere.sock;"), "as it would be: {said}");
    let here = folder.path("here.sock").display().to_string();
    let good = check(rule, &["--json", "--socket", "here.sock"]);
    let said = String::from_utf8_lossy(&good.stdout);
    assert!(said.contains(&here), "not where others do not look: {said}");
    let bad = check("[scheduler]\npolicy = \"best\"\n", &["--json"]);
    assert_eq!((bad.status.code(), bad.stdout.len()), (Some(2), 0));
    let said: serde_json::Value = serde_json::from_slice(&bad.stderr).unwrap();
    assert!(said["error"].as_str().unwrap().contains("scheduler.policy"), "{said}");
    assert_eq!(check(rule, &["--interval", "5"]).status.code(), Some(2));
}

#[test]
fn it_writes_its_manual_page() {
    let folder = Stage::new("daemon").unwrap();
    let mut command = folder.command("gpreemptd").unwrap();
    let status = command.arg("man").arg(folder.path("")).status().unwrap();
    assert!(status.success());
    let page = fs::read_to_string(folder.path("gpreemptd.8")).unwrap();
    for part in [".SH SYNOPSIS", "SIGHUP", "emulated"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn a_keeper_that_is_killed_is_replaced() {
    let folder = Stage::new("daemon").unwrap();
    let daemon = folder.daemon().start().unwrap();
    for _ in 0..3 {
        let before = daemon.keeper().unwrap();
        let pid = Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        until("another keeper", || daemon.keeper().unwrap() != before);
    }
    daemon.connect().expect_ok(&Request::Ping).unwrap();
    daemon.until_logged("there is a new one");
}

#[test]
fn after_kill_another_one_starts_at_once() {
    let folder = Stage::new("daemon").unwrap();
    let mut daemon = folder.daemon().start().unwrap();
    for _ in 0..3 {
        daemon.kill().unwrap();
        assert!(matches!(daemon.try_connect(), Err(ClientError::NoDaemon { .. })));
        daemon = folder.daemon().start().unwrap();
        daemon.connect().expect_ok(&Request::Ping).unwrap();
    }
    assert_eq!(sessions(&folder), 1, "nothing of the dead is left");
}

#[test]
fn metrics_are_served_where_they_are_switched_on() {
    let folder = Stage::new("daemon").unwrap();
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    fs::write(folder.path("config.toml"), text).unwrap();
    let _daemon = folder.daemon().start().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("gpreempt"), "{answer}");
}
