//! `gpreempt top` in a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use gpreempt_core::priority::Priority;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::TaskState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::Stage;
use super::fake_daemon::{Answer, FakeDaemon};
use super::with_daemon::snapshot;

/// The escape sequence that restores the screen.
const LEAVE: &str = "\u{1b}[?1049l";
const SHOW_CURSOR: &str = "\u{1b}[?25h";
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A pseudo terminal with `top` in it.
struct Screen {
    ours: File,
    theirs: OwnedFd,
    program: Child,
    seen: String,
}

impl Screen {
    fn open(folder: &Stage, columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let program = folder
            .gpreempt(&["top", "--every", "100ms"])
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { ours: ours.into(), theirs, program, seen: String::new() }
    }

    /// Reads until that is there. The limit is far more than any test needs.
    fn wait_for(&mut self, wanted: &str) {
        let begin = Instant::now();
        while !self.seen.contains(wanted) {
            assert!(begin.elapsed() < WAIT_MAX, "no {wanted:?}");
            let mut polled = [PollFd::new(&self.ours, PollFlags::IN)];
            if poll(&mut polled, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })) == Ok(1) {
                let mut bytes = [0; 4096];
                let length = self.ours.read(&mut bytes).unwrap();
                self.seen.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
        }
    }

    fn press(&mut self, keys: &str) {
        self.seen.clear();
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.theirs).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Waits for the end: the exit code, and the errors after the terminal was restored.
    fn end(mut self) -> (Option<i32>, String) {
        self.wait_for(LEAVE);
        self.wait_for(SHOW_CURSOR);
        let status = self.program.wait().unwrap();
        assert!(!self.is_raw(), "the terminal is not raw any more");
        let mut errors = String::new();
        self.program.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), errors)
    }
}

fn answer(request: &Request) -> Answer {
    match request {
        Request::Snapshot => Answer::Snapshot(Box::new(snapshot(TaskState::Running))),
        _ => Answer::Ok,
    }
}

#[test]
fn keys_reach_the_daemon_and_the_terminal_is_restored() {
    let folder = Stage::new("top-keys").unwrap();
    let daemon = FakeDaemon::start(folder.root(), answer);
    let mut screen = Screen::open(&folder, 80, 24);
    screen.wait_for("quit");
    assert!(screen.is_raw());
    screen.press("+snsyrq");
    assert_eq!(screen.end(), (Some(0), String::new()));
    let process = Process::new(4242, 777).unwrap();
    let change = SchedAttrChange { priority: Priority::new(4), ..SchedAttrChange::default() };
    let lease_ms = std::num::NonZeroU32::new(10_000).unwrap();
    let mut asked = daemon.heard();
    asked.retain(|request| *request != Request::Snapshot);
    assert_eq!(
        asked,
        [
            Request::Set { process, change },
            Request::Suspend { process, lease_ms },
            Request::Resume { process },
        ]
    );
}

#[test]
fn top_restores_the_terminal_after_ctrl_c_after_a_signal_and_when_the_daemon_dies() {
    let folder = Stage::new("top-end").unwrap();
    let daemon = FakeDaemon::start(folder.root(), answer);
    let mut screen = Screen::open(&folder, 40, 10);
    screen.wait_for("suspend");
    screen.press("\u{3}");
    assert_eq!(screen.end(), (Some(0), String::new()));
    let mut screen = Screen::open(&folder, 40, 10);
    screen.wait_for("suspend");
    let pid = Pid::from_raw(i32::try_from(screen.program.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(screen.end(), (Some(0), String::new()));
    let mut screen = Screen::open(&folder, 40, 10);
    screen.wait_for("suspend");
    drop(daemon);
    let (code, errors) = screen.end();
    assert_eq!(code, Some(1));
    assert!(errors.starts_with("gpreempt: gpreemptd closed the connection"), "{errors}");
}

#[test]
fn top_ends_when_its_terminal_is_closed() {
    let folder = Stage::new("top-closed").unwrap();
    let _daemon = FakeDaemon::start(folder.root(), answer);
    let mut screen = Screen::open(&folder, 40, 10);
    screen.wait_for("suspend");
    let Screen { ours, theirs, mut program, .. } = screen;
    drop((ours, theirs));
    let begin = Instant::now();
    while program.try_wait().unwrap().is_none() {
        if begin.elapsed() > WAIT_MAX {
            program.kill().unwrap();
            panic!("top runs on without a terminal");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_terminal_may_have_one_cell() {
    let folder = Stage::new("top-tiny").unwrap();
    let _daemon = FakeDaemon::start(folder.root(), answer);
    let mut screen = Screen::open(&folder, 1, 1);
    screen.wait_for("g");
    // It may grow and shrink while it runs.
    for (columns, rows) in [(100, 50), (2, 1), (30, 3)] {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen.ours, size).unwrap();
        std::thread::sleep(Duration::from_millis(150));
    }
    screen.press("q");
    assert_eq!(screen.end(), (Some(0), String::new()));
}
