//! The loop dies in the middle of its work, and the keeper undoes it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use gpreempt_device::journal::{Journal, Session};
use gpreempt_stage::{Emulator, until};

use crate::station::{Station, emulator, journal, queue_of};

const SOCKET: &str = "GPREEMPT_TEST_SOCKET";
const JOURNAL: &str = "GPREEMPT_TEST_JOURNAL";
const PIDS: &str = "GPREEMPT_TEST_PIDS";

/// A process that runs the loop. It ends with the test.
struct Owner(Child);

impl Owner {
    fn start(emulator: &Emulator, low: u32, high: u32) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--quiet", "kill::the_loop_that_is_killed"])
            .env(SOCKET, emulator.socket())
            .env(JOURNAL, journal(emulator))
            .env(PIDS, format!("{low} {high}"))
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    fn kill(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the loop ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A keeper that lives as long as its pipe, or as what it has to undo.
fn start_keeper(session: &Session) -> Child {
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"))
        .arg(session.folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    keeper
}

#[test]
#[ignore = "it goes on until it is killed, by the test that starts it"]
fn the_loop_that_is_killed() {
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let journal = Journal::at(std::env::var_os(JOURNAL).unwrap().into()).unwrap();
    let session = journal.begin().unwrap();
    let mut keeper = start_keeper(&session);
    let mut station = Station::new(&socket, session);
    let pids = std::env::var(PIDS).unwrap();
    let (low, high) = pids.split_once(' ').unwrap();
    station.adopt(low.parse().unwrap(), 2);
    station.adopt(high.parse().unwrap(), 12);
    station.run_until("the keeper ends first", |_| keeper.try_wait().unwrap().is_some());
    keeper.wait().unwrap();
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn what_a_killed_loop_did_is_undone_by_its_keeper() {
    for machine in
        ["--model mi300x --machine cwsr --compute-units 1", "--machine tsg --compute-units 1"]
    {
        let emulator = emulator(machine);
        let mut high = emulator.load("be --kernel-us 3000 --depth 8 --seconds 600").unwrap();
        let mut low = emulator.load("be --kernel-us 150000 --depth 4 --seconds 600").unwrap();
        let mut control = emulator.control().unwrap();
        let queue = queue_of(&mut control, low.pid());
        let mut state = || {
            let usage = control.usage(queue.queue).unwrap();
            (usage.is_stopped, usage.slice)
        };
        let original = (false, queue.slice);
        // Twice, because what the first one left must not be in the way of the next.
        for _ in 0..2 {
            assert_eq!(state(), original);
            let mut owner = Owner::start(&emulator, low.pid(), high.pid());
            until("it is stopped, or slowed", || state() != original);
            owner.kill();
            until("the keeper has undone it", || state() == original);
            until("the session is over", || is_empty(&journal(&emulator)));
        }
        let completed = |control: &mut gpreempt_wire::emulator::control::Control| {
            control.usage(queue.queue).unwrap().completed
        };
        let mut control = emulator.control().unwrap();
        let before = completed(&mut control);
        until("it goes on", || completed(&mut control) > before);
        for load in [&mut low, &mut high] {
            load.ask_to_end();
            assert!(load.wait_exact().unwrap() > 0);
        }
    }
}
