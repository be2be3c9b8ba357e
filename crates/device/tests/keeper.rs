//! The keeper with real processes and kill -9, without a GPU.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpreempt_device::act::UndoError;
use gpreempt_device::hold_pages::{HoldPages, HoldSlot, WORD};
use gpreempt_device::journal::{Act, Entry, Journal, Session};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::nvidia::act::NvidiaAct;
use gpreempt_device::process::ProcessKey;

struct Place {
    root: PathBuf,
    journal: Journal,
}

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("gpreempt-keeper-{}-{name}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&root);
        Self { journal: Journal::at(root.clone()).unwrap(), root }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

fn keeper(session: &Session) -> Child {
    keeper_with(session, None)
}

fn keeper_with(session: &Session, holds: Option<&HoldPages>) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"))
        .arg(session.folder())
        .args(holds.map(HoldPages::path))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

/// A change in a process that is gone: nothing is left to undo in it.
fn entry() -> Entry {
    let process = ProcessKey { pid: u32::MAX, start_ticks: 1 };
    let act = Act::Nvidia(NvidiaAct::Slice { client: 1, group: 2, original_us: 2048, set_us: 1 });
    Entry { process, acts: vec![act], until_ns: None }
}

fn ends(child: &mut Child) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    false
}

/// A keeper in whose start something goes wrong, as the shell does it.
fn keeper_by_shell(session: &Session, script: &str) -> Child {
    Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_gpreempt-keeper")])
        .arg(session.folder())
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn nothing_that_fails_at_its_start_keeps_it_from_undoing() {
    let place = Place::new("start");
    let failures = [
        // The owner whose hold pages these were is dead; a file that is something else.
        "exec \"$0\" \"$1\" /proc/4294967295/fd/3",
        "exec \"$0\" \"$1\" /proc/self/fd/2 2>/dev/null",
        // Closed descriptors, and an answer that cannot be written.
        "exec \"$0\" \"$1\" <&- >&- 2>&-",
        "exec \"$0\" \"$1\" >/dev/full",
        "\"$0\" \"$1\" | true; test ${PIPESTATUS[0]} = 0",
        // No thread for the holds nor for the undo.
        "ulimit -u 1; exec \"$0\" \"$1\" /proc/4294967295/fd/3",
        // No more descriptors than it needs for the lock and one file.
        "ulimit -n 6; exec \"$0\" \"$1\"",
        // A full disk: nothing can be written.
        "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$1\"",
    ];
    for script in failures {
        let session = place.journal.begin().unwrap();
        session.write(&entry()).unwrap();
        let mut keeper = keeper_by_shell(&session, script);
        assert!(ends(&mut keeper), "{script}");
        assert!(!session.folder().exists(), "{script}");
    }
}

#[test]
fn a_keeper_without_hold_pages_says_so_and_undoes_when_its_owner_is_gone() {
    let place = Place::new("unfit");
    let session = place.journal.begin().unwrap();
    session.write(&entry()).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"))
        .arg(session.folder())
        .arg("/proc/4294967295/fd/3")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("it has no hold pages"), "{line}");
    assert!(child.try_wait().unwrap().is_none(), "its owner lives");
    drop(child.stdin.take());
    assert!(ends(&mut child));
    assert!(!session.folder().exists());
}

#[test]
fn hold_pages_are_inherited_and_outlive_the_owner() {
    let place = Place::new("inherited");
    let session = place.journal.begin().unwrap();
    let pages = HoldPages::new().unwrap();
    let slot = pages.take().unwrap();
    slot.begin(5, monotonic_ns() + 60_000_000_000);
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"))
        .arg(session.folder())
        .arg(HoldPages::INHERITED)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::os::fd::AsFd::as_fd(&*pages).try_clone_to_owned().unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let stderr = std::fs::read_link(format!("/proc/{}/fd/2", child.id())).unwrap();
    assert_eq!(stderr, Path::new("/dev/null"), "a message would be written into the pages");
    drop(child.stdin.take());
    assert!(is_ended(&slot, 5));
    assert!(ends(&mut child));
}

#[test]
fn it_answers_every_beat() {
    let place = Place::new("answers");
    let session = place.journal.begin().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"))
        .arg(session.folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    answers.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    let mut beats = child.stdin.take().unwrap();
    for _ in 0..3 {
        beats.write_all(&[1]).unwrap();
        answers.read_exact(&mut [0]).unwrap();
    }
    // An owner that reads nothing does not block it: it still notices that the owner is gone.
    for _ in 0..2_000 {
        beats.write_all(&[1; 60]).unwrap();
    }
    drop(beats);
    assert!(ends(&mut child));
}

#[test]
fn a_stopped_keeper_without_an_owner_is_replaced() {
    let place = Place::new("stopped");
    // Begun by a process that is dead.
    let folder = place.root.join("session-4294967295-0");
    std::fs::create_dir(&folder).unwrap();
    let session = Session::at(folder);
    session.write(&entry()).unwrap();
    let mut child = keeper(&session);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let key = session.keeper().unwrap();
    assert_eq!(key.pid, child.id());
    let deadline = Instant::now() + Duration::from_secs(10);
    while !key.is_stopped() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let cleaned = gpreempt_device::keeper::clean_up(&place.journal, |_: &Entry| Ok(()));
    assert_eq!(cleaned.unwrap(), 1);
    assert!(!session.folder().exists());
    assert!(!ends(&mut child), "it was killed");
}

#[test]
fn it_undoes_everything_when_its_owner_is_gone() {
    let place = Place::new("gone");
    let session = place.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    session.write(&entry()).unwrap();
    assert!(keeper.try_wait().unwrap().is_none(), "it waits for its owner");
    drop(keeper.stdin.take());
    assert!(ends(&mut keeper));
    assert!(!session.folder().exists());
}

#[test]
fn kill_9_of_the_owner_is_noticed() {
    let place = Place::new("killed");
    let session = place.journal.begin().unwrap();
    session.write(&entry()).unwrap();
    // The owner is a shell that holds the keeper's pipe and is killed.
    let script = format!(
        "exec 3> >(exec '{}' '{}' >/dev/null); read -t 30",
        env!("CARGO_BIN_EXE_gpreempt-keeper"),
        session.folder().display()
    );
    let mut owner =
        Command::new("bash").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    let held = || Session::at(session.folder().to_owned()).hold().unwrap().is_none();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !held() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(held(), "the keeper holds the session");
    owner.kill().unwrap();
    owner.wait().unwrap();
    while session.folder().exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!session.folder().exists(), "the session is undone and gone");
}

#[test]
fn a_lease_that_runs_out_is_undone_while_the_owner_lives() {
    let place = Place::new("lease");
    let session = place.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    let until_ns = Some(monotonic_ns() + 50_000_000);
    session.write(&Entry { until_ns, ..entry() }).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !session.entries().unwrap().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(session.entries().unwrap().is_empty());
    assert!(keeper.try_wait().unwrap().is_none(), "it goes on waiting for its owner");
    drop(keeper.stdin.take());
    assert!(ends(&mut keeper));
}

#[test]
fn what_both_left_behind_is_undone_by_the_next() {
    let place = Place::new("both");
    let session = place.journal.begin().unwrap();
    let mut first = keeper(&session);
    session.write(&entry()).unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    let (says, undone) = std::sync::mpsc::channel();
    let cleaned = gpreempt_device::keeper::clean_up(&place.journal, move |entry: &Entry| {
        says.send(entry.clone()).map_err(|_| UndoError::Silent(entry.process))
    });
    assert_eq!(cleaned.unwrap(), 1);
    assert_eq!(undone.iter().collect::<Vec<_>>(), [entry()]);
    assert!(!session.folder().exists());
}

fn is_ended(slot: &HoldSlot, number: u32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        if slot.load(WORD) == number && !slot.is_held() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn it_ends_the_holds_of_an_owner_that_stands_still_or_is_gone() {
    let place = Place::new("holds");
    let session = place.journal.begin().unwrap();
    let pages = HoldPages::new().unwrap();
    let mut child = keeper_with(&session, Some(&pages));
    let slot = pages.take().unwrap();
    slot.begin(7, monotonic_ns());
    assert!(is_ended(&slot, 7), "nobody says that it is looked after");
    // As if somebody looked after it for a long time to come.
    slot.begin(8, monotonic_ns() + 60_000_000_000);
    std::thread::sleep(Duration::from_millis(300));
    assert!(slot.is_held(), "somebody looks after it");
    drop(child.stdin.take());
    assert!(is_ended(&slot, 8), "its owner is gone");
    assert!(ends(&mut child));
}

#[test]
fn signals_that_end_others_do_not_end_it() {
    let place = Place::new("signals");
    let session = place.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    session.write(&entry()).unwrap();
    let pid = rustix::process::Pid::from_child(&keeper);
    for signal in
        [rustix::process::Signal::TERM, rustix::process::Signal::HUP, rustix::process::Signal::INT]
    {
        rustix::process::kill_process(pid, signal).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(keeper.try_wait().unwrap().is_none(), "{signal:?} ended it");
    }
    drop(keeper.stdin.take());
    assert!(ends(&mut keeper));
    assert!(!session.folder().exists());
}

#[test]
fn an_owner_that_falls_silent_is_not_waited_for() {
    let place = Place::new("silent");
    let session = place.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    session.write(&entry()).unwrap();
    // The pipe stays open: the owner is stopped, not dead.
    let mut pipe = keeper.stdin.take().unwrap();
    pipe.write_all(&[1]).unwrap();
    assert!(ends(&mut keeper), "it ends after {:?}", gpreempt_device::keeper::SILENCE_MAX);
    assert!(!session.folder().exists());
}

#[test]
fn one_session_that_cannot_be_undone_does_not_keep_the_others() {
    let place = Place::new("stubborn");
    let stubborn = place.journal.begin().unwrap();
    stubborn.write(&entry()).unwrap();
    let odd = place.journal.begin().unwrap();
    std::fs::write(odd.folder().join("1-1.json"), "{\"of\":\"the future\"}").unwrap();
    let easy = place.journal.begin().unwrap();
    let other = Entry { process: ProcessKey { pid: u32::MAX, start_ticks: 2 }, ..entry() };
    easy.write(&other).unwrap();
    let cleaned = gpreempt_device::keeper::clean_up(&place.journal, |entry: &Entry| {
        if entry.process.start_ticks == 1 { Err(UndoError::Silent(entry.process)) } else { Ok(()) }
    });
    assert!(cleaned.is_err(), "somebody hears about it");
    assert!(stubborn.folder().exists() && odd.folder().exists() && !easy.folder().exists());
}
