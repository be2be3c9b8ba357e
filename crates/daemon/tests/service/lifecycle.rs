//! Start, reload and end of a daemon, and its systemd unit.

use std::collections::VecDeque;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gpreempt_device::journal::Journal;
use gpreempt_device::process;
use gpreempt_stage::{LIMIT, Stage, until};
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::request::Request;
use gpreempt_wire::socket_path::root_path;
use rustix::process::{Pid, Signal, kill_process};

use super::contention::start;

#[test]
fn the_daemon_starts_although_old_changes_cannot_be_undone() {
    let stage = Stage::new("daemon").unwrap();
    let left = stage.path("state").join("session-1-0");
    fs::create_dir_all(&left).unwrap();
    // A change of a later version.
    let odd = left.join("1-1.json");
    let text = r#"{"process":{"pid":1,"start_ticks":1},"acts":[{"kind":"new"}]}"#;
    fs::write(&odd, text).unwrap();
    let mut daemon = stage.daemon().start().unwrap();
    daemon.until_logged("cannot be restored yet");
    // Its keeper tries again until the record is gone.
    fs::remove_file(&odd).unwrap();
    until("its keeper is done", || !left.exists());
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_signal_stops_the_daemon_and_restores_all_settings() {
    for signal in [Signal::TERM, Signal::INT] {
        let stage = Stage::new("daemon").unwrap();
        let mut daemon = stage.daemon().start().unwrap();
        let mut follow = daemon.connect().follow(&Request::Follow).unwrap();
        daemon.signal(signal);
        assert!(daemon.wait().unwrap().success(), "{:?}", daemon.log());
        assert!(!daemon.socket().exists());
        let state = ["state/gpreemptd.lock", "state/gpreemptd.owner"];
        for file in ["gpreemptd.sock.lock", "gpreemptd.sock.root"].into_iter().chain(state) {
            assert!(!stage.path(file).exists(), "{file} is left");
        }
        assert!(follow.next().is_none_or(|event| event.is_err()), "followers are disconnected");
        until("the keeper ends as well", || sessions(&stage) == 0);
        daemon.until_logged("all GPU settings restored");
    }
}

#[test]
fn root_has_a_socket_that_no_other_user_can_connect_to() {
    let (daemon, _stage) = start();
    let path = root_path(&daemon.socket());
    if !rustix::process::geteuid().is_root() {
        assert!(!path.exists());
        return;
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let options = ClientOptions { paths: vec![path.clone()], ..daemon.options() };
    Client::connect(&options).unwrap().expect_ok(&Request::Ping).unwrap();
    // A socket that was removed is made again.
    fs::remove_file(&path).unwrap();
    until("root has a socket again", || {
        Client::connect(&options).is_ok_and(|mut client| client.expect_ok(&Request::Ping).is_ok())
    });
}

/// The capability to raise the CPU priority.
const CAP_SYS_NICE: u32 = 23;

#[test]
fn daemon_and_keeper_have_a_raised_cpu_priority() {
    let niceness = |pid: u32| -> i32 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
        fields.collect::<Vec<_>>()[16].parse().unwrap()
    };
    let own = niceness(std::process::id());
    let (daemon, _stage) = start();
    // Without the capability the daemon runs with normal priority.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may = u64::from_str_radix(capabilities, 16).unwrap() & (1 << CAP_SYS_NICE) != 0;
    let expected = if may { own.min(process::NICENESS) } else { own };
    assert_eq!(niceness(daemon.pid()), expected);
    assert_eq!(niceness(daemon.keeper().unwrap()), expected);
}

fn sessions(stage: &Stage) -> usize {
    let entries = fs::read_dir(stage.path("state")).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().is_dir()).count()
}

#[test]
fn the_daemon_begins_no_session_while_a_command_cleans_up() {
    let stage = Stage::new("daemon").unwrap();
    let journal = Journal::at(stage.path("state")).unwrap();
    // A command with this lock may remove a session that has no keeper yet.
    let cleaning = journal.lock().unwrap();
    let daemon = stage.daemon().spawn().unwrap();
    until("it starts", || daemon.socket().exists());
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sessions(&stage), 0);
    drop(cleaning);
    daemon.until_logged("ready at");
    assert_eq!(sessions(&stage), 1);
}

#[test]
fn a_second_daemon_is_refused() {
    let (daemon, stage) = start();
    let mut second = stage.daemon().spawn().unwrap();
    assert!(!second.wait().unwrap().success());
    second.until_logged("gpreemptd is running already at");
    // The same journal with another socket is refused as well.
    let elsewhere = stage.path("other.sock");
    let mut third = stage.daemon().argument("--socket").argument(elsewhere).spawn().unwrap();
    assert!(!third.wait().unwrap().success());
    daemon.connect().expect_ok(&Request::Ping).unwrap();
}

#[test]
fn a_removed_socket_file_is_created_again() {
    let (daemon, _stage) = start();
    let mut old = daemon.connect();
    fs::remove_file(daemon.socket()).unwrap();
    until("the daemon answers again", || daemon.try_connect().is_ok());
    old.expect_ok(&Request::Ping).unwrap();
    daemon.until_logged("the socket file was removed; listening again");
}

#[test]
fn a_reload_with_an_invalid_configuration_changes_nothing_and_is_reported() {
    let stage = Stage::new("daemon").unwrap();
    let config = stage.path("config.toml");
    let write = |interval: u32| {
        fs::write(&config, format!("[scheduler]\ninterval_ms = {interval}\n")).unwrap();
    };
    write(3);
    let daemon = stage.daemon().start().unwrap();
    assert_eq!(daemon.snapshot().interval_us, 3_000);
    write(20);
    daemon.signal(Signal::HUP);
    daemon.until_logged("configuration not reloaded");
    daemon.until_logged("scheduler.interval_ms: is 20");
    let snapshot = daemon.snapshot();
    assert_eq!(snapshot.interval_us, 3_000);
    assert!(snapshot.problems.iter().any(|problem| problem.contains("interval_ms")));
    write(2);
    daemon.signal(Signal::HUP);
    until("the new configuration is used", || daemon.snapshot().interval_us == 2_000);
    // The command line sets the socket, so the one in the file is not used.
    fs::write(&config, "[daemon]\nsocket = \"/nonexistent/x.sock\"\n").unwrap();
    daemon.signal(Signal::HUP);
    until("the new configuration is used", || daemon.snapshot().interval_us == 5_000);
    let log = daemon.log();
    assert!(!log.iter().any(|line| line.contains("the new socket path")), "{log:#?}");
}

#[test]
fn the_daemon_does_not_start_with_an_invalid_configuration_and_check_reports_it() {
    let stage = Stage::new("daemon").unwrap();
    fs::write(stage.path("config.toml"), "[scheduler]\npolicy = \"best\"\n").unwrap();
    let mut daemon = stage.daemon().spawn().unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(2));
    daemon.until_logged("config.toml:2: scheduler.policy");
    let check = |text: &str, more: &[&str]| {
        fs::write(stage.path("config.toml"), text).unwrap();
        let mut command = stage.command("gpreemptd").unwrap();
        command.arg("--check").arg("--config").arg(stage.path("config.toml")).args(more);
        command.env("GPREEMPT_SOCKET", "/tmp/elsewhere.sock");
        command.output().unwrap()
    };
    let rule = "[[rule]]\nexecutable = \"nothing-is-called-so\"\npriority = 3\n";
    let good = check(rule, &[]);
    assert!(good.status.success());
    let said = String::from_utf8_lossy(&good.stdout);
    assert!(said.contains("no mistakes"), "{said}");
    assert!(said.contains("The socket is /tmp/elsewhere.sock;"), "{said}");
    let here = stage.path("here.sock").display().to_string();
    let good = check(rule, &["--json", "--socket", "here.sock"]);
    let said = String::from_utf8_lossy(&good.stdout);
    assert!(said.contains(&here), "{said}");
    let bad = check("[scheduler]\npolicy = \"best\"\n", &["--json"]);
    assert_eq!((bad.status.code(), bad.stdout.len()), (Some(2), 0));
    let said: serde_json::Value = serde_json::from_slice(&bad.stderr).unwrap();
    assert!(said["error"].as_str().unwrap().contains("scheduler.policy"), "{said}");
    assert_eq!(check(rule, &["--interval", "5"]).status.code(), Some(2));
}

#[test]
fn check_lists_the_processes_that_the_daemon_would_adopt() {
    let stage = Stage::new("check-lists").unwrap();
    let emulator = stage.emulator("--compute-units 1").unwrap();
    let load = emulator.load("be --kernel-us 4000 --seconds 600").unwrap();
    let check = |socket: &Path| {
        let mut command = stage.command("gpreemptd").unwrap();
        command.args(["--check", "--json", "--no-nvidia", "--no-amd", "--emulated"]).arg(socket);
        let said: serde_json::Value =
            serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        said
    };
    let said = check(&emulator.socket());
    let processes = said["processes"].as_array().unwrap();
    let found = processes.iter().find(|process| process["pid"] == load.pid()).unwrap();
    assert_eq!(found["name"], "gpreempt-load", "{said}");
    assert_eq!(said["warnings"], serde_json::json!([]));
    let absent = check(&stage.path("absent"));
    let warning = absent["warnings"][0].as_str().unwrap();
    assert!(warning.contains("the processes on the emulated GPU at"), "{warning}");
}

#[test]
fn the_daemon_writes_its_manual_page() {
    let stage = Stage::new("daemon").unwrap();
    let mut command = stage.command("gpreemptd").unwrap();
    let status = command.arg("man").arg(stage.path("")).status().unwrap();
    assert!(status.success());
    let page = fs::read_to_string(stage.path("gpreemptd.8")).unwrap();
    for part in [".SH SYNOPSIS", "SIGHUP", "emulated"] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
}

#[test]
fn a_keeper_that_is_killed_is_replaced() {
    let (daemon, _stage) = start();
    for _ in 0..3 {
        let before = daemon.keeper().unwrap();
        let pid = Pid::from_raw(i32::try_from(before).unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
        until("another keeper", || daemon.keeper().unwrap() != before);
    }
    daemon.connect().expect_ok(&Request::Ping).unwrap();
    daemon.until_logged("a new keeper was started");
}

#[test]
fn another_daemon_starts_at_once_after_a_kill() {
    let (mut daemon, stage) = start();
    for _ in 0..3 {
        daemon.kill().unwrap();
        assert!(matches!(daemon.try_connect(), Err(ClientError::NoDaemon { .. })));
        daemon = stage.daemon().start().unwrap();
        daemon.connect().expect_ok(&Request::Ping).unwrap();
    }
    assert_eq!(sessions(&stage), 1, "the sessions of killed daemons are gone");
}

#[test]
fn metrics_are_served_where_they_are_switched_on() {
    let stage = Stage::new("daemon").unwrap();
    // A port that was just free.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n");
    fs::write(stage.path("config.toml"), text).unwrap();
    let daemon = stage.daemon().start().unwrap();
    let ask = |host: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask("localhost");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("gpreempt_sessions 0\n"), "{answer}");
    assert!(ask("node7.example").starts_with("HTTP/1.1 421"), "{answer}");
    // A reload changes the names without another socket, and the loop makes every page anew.
    let _session = daemon.connect();
    let text = format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\nhosts = [\"node7.example\"]\n");
    fs::write(stage.path("config.toml"), text).unwrap();
    daemon.signal(Signal::HUP);
    until("the name is known", || ask("node7.example").starts_with("HTTP/1.1 200"));
    assert!(ask("localhost").contains("gpreempt_sessions 1\n"));
}

const UNIT: &str = include_str!("../../../../deploy/gpreemptd.service");

/// The receiver of the notifications.
struct Manager {
    socket: UnixDatagram,
    /// Notifications except those for the watchdog.
    received: VecDeque<String>,
    watchdog_count: u32,
}

impl Manager {
    fn new(stage: &Stage) -> Self {
        let socket = UnixDatagram::bind(stage.path("notify")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { socket, received: VecDeque::new(), watchdog_count: 0 }
    }

    fn receive(&mut self) {
        let mut buffer = [0; 512];
        let count = self.socket.recv(&mut buffer).expect("a notification");
        let said = String::from_utf8_lossy(&buffer[..count]).into_owned();
        if said == "WATCHDOG=1" {
            self.watchdog_count += 1;
        } else {
            self.received.push_back(said);
        }
    }

    /// The next notification that is not for the watchdog.
    fn next(&mut self) -> String {
        while self.received.is_empty() {
            self.receive();
        }
        self.received.pop_front().unwrap()
    }
}

#[test]
fn systemd_is_notified_of_start_watchdog_reload_and_stop() {
    let stage = Stage::new("daemon").unwrap();
    let mut systemd = Manager::new(&stage);
    // A watchdog that requires a message every 400 ms.
    let notified = stage.daemon().variable("NOTIFY_SOCKET", stage.path("notify"));
    let notified = notified.variable("WATCHDOG_USEC", "400000");
    let mut daemon = notified.start().unwrap();
    assert!(systemd.next().starts_with("READY=1\nSTATUS=schedules"));
    while systemd.watchdog_count < 3 {
        systemd.receive();
    }
    daemon.signal(Signal::HUP);
    assert!(systemd.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(systemd.next().starts_with("READY=1"));
    daemon.signal(Signal::TERM);
    assert_eq!(systemd.next(), "STOPPING=1");
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn systemd_accepts_the_unit() {
    let stage = Stage::new("daemon").unwrap();
    let verify = |text: &str| {
        fs::write(stage.path("gpreemptd.service"), text).unwrap();
        let mut command = Command::new("systemd-analyze");
        // The manual pages are in the package only.
        command.args(["verify", "--man=no"]).arg(stage.path("gpreemptd.service"));
        command.output()
    };
    // The program is in the build folder.
    let unit = UNIT.replace("/usr/bin/gpreemptd", env!("CARGO_BIN_EXE_gpreemptd"));
    assert_ne!(unit, UNIT);
    let output = match verify(&unit) {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: systemd-analyze cannot be run ({error}); install systemd");
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("gpreemptd.service"), "{said}");
    // A wrong unit is reported.
    let wrong = verify(&unit.replace("WatchdogSec=5", "WatchdogSec=soon")).unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("gpreemptd.service"), "{said}");
}
