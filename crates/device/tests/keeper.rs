//! The keeper with real processes and kill -9, without a GPU.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpreempt_device::change::UndoError;
use gpreempt_device::hold_pages::{HoldPages, HoldSlot, WORD};
use gpreempt_device::journal::{GpuChange, Journal, OwnerJournal, ProcessRecord};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::nvidia::change::NvidiaChange;
use gpreempt_device::process::ProcessKey;
use gpreempt_stage::{WorkFolder, until, until_some};

/// A journal, in a folder that is removed with it.
struct TestJournal {
    folder: WorkFolder,
    journal: Journal,
}

impl TestJournal {
    fn new(name: &str) -> Self {
        let folder = WorkFolder::new(name).unwrap();
        Self { journal: Journal::at(folder.path("journal")).unwrap(), folder }
    }
}

/// A keeper process whose standard input the test holds.
fn spawn(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn keeper_command(session: &OwnerJournal) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"));
    command.arg(session.folder());
    command
}

/// The first line that a keeper prints.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line
}

fn keeper(session: &OwnerJournal) -> Child {
    keeper_with(session, None)
}

fn keeper_with(session: &OwnerJournal, holds: Option<&HoldPages>) -> Child {
    let mut child = spawn(keeper_command(session).args(holds.map(HoldPages::path)));
    assert_eq!(first_line(&mut child), "ready\n");
    child
}

/// A change in a process that has ended: there is nothing to revert in it.
fn record() -> ProcessRecord {
    let process = ProcessKey { pid: u32::MAX, start_ticks: 1 };
    let change = GpuChange::Nvidia(NvidiaChange::Slice {
        client: 1,
        group: 2,
        original_us: 2048,
        set_us: 1,
    });
    ProcessRecord { process, changes: vec![change], until_ns: None }
}

/// Waits for the end of a keeper. Returns whether it ended well.
fn ends(child: &mut Child) -> bool {
    until_some("the keeper ends", || child.try_wait().unwrap()).success()
}

/// A keeper in whose start a shell script makes something fail.
fn keeper_by_shell(session: &OwnerJournal, script: &str) -> Child {
    Command::new("bash")
        .args(["-c", script, env!("CARGO_BIN_EXE_gpreempt-keeper")])
        .arg(session.folder())
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn no_failure_at_its_start_keeps_the_keeper_from_reverting() {
    let test = TestJournal::new("start");
    let failures = [
        // Hold pages of a dead owner; a file that is something else.
        "exec \"$0\" \"$1\" /proc/4294967295/fd/3",
        "exec \"$0\" \"$1\" /proc/self/fd/2 2>/dev/null",
        // Closed descriptors, and an answer that cannot be written.
        "exec \"$0\" \"$1\" <&- >&- 2>&-",
        "exec \"$0\" \"$1\" >/dev/full",
        "\"$0\" \"$1\" | true; test ${PIPESTATUS[0]} = 0",
        // No threads.
        "ulimit -u 1; exec \"$0\" \"$1\" /proc/4294967295/fd/3",
        // No more descriptors than it needs for the lock and one file.
        "ulimit -n 6; exec \"$0\" \"$1\"",
        // A full disk: nothing can be written.
        "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$1\"",
    ];
    for script in failures {
        let session = test.journal.begin().unwrap();
        session.write(&record()).unwrap();
        let mut keeper = keeper_by_shell(&session, script);
        assert!(ends(&mut keeper), "{script}");
        assert!(!session.folder().exists(), "{script}");
    }
}

#[test]
fn a_keeper_without_hold_pages_reports_it_and_reverts_when_its_owner_is_dead() {
    let test = TestJournal::new("unfit");
    let session = test.journal.begin().unwrap();
    session.write(&record()).unwrap();
    let mut child = spawn(keeper_command(&session).arg("/proc/4294967295/fd/3"));
    let line = first_line(&mut child);
    assert!(line.starts_with("it has no hold pages"), "{line}");
    assert!(child.try_wait().unwrap().is_none(), "its owner lives");
    drop(child.stdin.take());
    assert!(ends(&mut child));
    assert!(!session.folder().exists());
}

#[test]
fn hold_pages_are_inherited_and_outlive_the_owner() {
    let test = TestJournal::new("inherited");
    let session = test.journal.begin().unwrap();
    let pages = HoldPages::new().unwrap();
    let slot = pages.take().unwrap();
    slot.begin(5, monotonic_ns() + 60_000_000_000);
    let pages_fd = std::os::fd::AsFd::as_fd(&*pages).try_clone_to_owned().unwrap();
    let mut child = spawn(keeper_command(&session).arg(HoldPages::INHERITED).stderr(pages_fd));
    assert_eq!(first_line(&mut child), "ready\n");
    let stderr = std::fs::read_link(format!("/proc/{}/fd/2", child.id())).unwrap();
    assert_eq!(stderr, Path::new("/dev/null"), "a message would be written into the pages");
    drop(child.stdin.take());
    wait_for_end(&slot, 5, "the hold ends with its owner");
    assert!(ends(&mut child));
}

#[test]
fn the_keeper_answers_every_heartbeat() {
    let test = TestJournal::new("answers");
    let session = test.journal.begin().unwrap();
    let mut child = spawn(&mut keeper_command(&session));
    let mut answers = child.stdout.take().unwrap();
    let mut ready = [0; 6];
    answers.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    let mut beats = child.stdin.take().unwrap();
    for _ in 0..3 {
        beats.write_all(&[1]).unwrap();
        answers.read_exact(&mut [0]).unwrap();
    }
    // An owner that reads nothing does not block it: it still notices the owner's end.
    for _ in 0..2_000 {
        beats.write_all(&[1; 60]).unwrap();
    }
    drop(beats);
    assert!(ends(&mut child));
}

#[test]
fn a_stopped_keeper_without_an_owner_is_replaced() {
    let test = TestJournal::new("stopped");
    // Begun by a process that is dead.
    let folder = test.folder.path("journal").join("session-4294967295-0");
    std::fs::create_dir(&folder).unwrap();
    let session = OwnerJournal::at(folder);
    session.write(&record()).unwrap();
    let mut child = keeper(&session);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let key = session.keeper().unwrap();
    assert_eq!(key.pid, child.id());
    until("the keeper is stopped", || key.is_stopped());
    let cleaned = gpreempt_device::keeper::clean_up(&test.journal, |_: &ProcessRecord| Ok(()));
    assert_eq!(cleaned.unwrap(), 1);
    assert!(!session.folder().exists());
    assert!(!ends(&mut child), "it was killed");
}

#[test]
fn the_keeper_reverts_all_changes_when_its_owner_is_dead() {
    let test = TestJournal::new("gone");
    let session = test.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    session.write(&record()).unwrap();
    assert!(keeper.try_wait().unwrap().is_none(), "it waits for its owner");
    drop(keeper.stdin.take());
    assert!(ends(&mut keeper));
    assert!(!session.folder().exists());
}

#[test]
fn the_keeper_notices_kill_9_of_its_owner() {
    let test = TestJournal::new("killed");
    let session = test.journal.begin().unwrap();
    session.write(&record()).unwrap();
    // The owner is a shell that holds the keeper's pipe and is killed.
    let script = format!(
        "exec 3> >(exec '{}' '{}' >/dev/null); read -t 30",
        env!("CARGO_BIN_EXE_gpreempt-keeper"),
        session.folder().display()
    );
    let mut owner =
        Command::new("bash").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    let held = || OwnerJournal::at(session.folder().to_owned()).hold().unwrap().is_none();
    until("the keeper locks the journal", held);
    owner.kill().unwrap();
    owner.wait().unwrap();
    until("the journal is reverted and removed", || !session.folder().exists());
}

#[test]
fn a_change_whose_lease_expires_is_reverted_while_the_owner_lives() {
    let test = TestJournal::new("lease");
    let session = test.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    let until_ns = Some(monotonic_ns() + 50_000_000);
    session.write(&ProcessRecord { until_ns, ..record() }).unwrap();
    until("the change is reverted", || session.entries().unwrap().is_empty());
    assert!(keeper.try_wait().unwrap().is_none(), "it still waits for its owner");
    drop(keeper.stdin.take());
    assert!(ends(&mut keeper));
}

#[test]
fn the_next_program_reverts_what_a_dead_owner_and_keeper_left() {
    let test = TestJournal::new("both");
    let session = test.journal.begin().unwrap();
    let mut first = keeper(&session);
    session.write(&record()).unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    let (says, undone) = std::sync::mpsc::channel();
    let cleaned =
        gpreempt_device::keeper::clean_up(&test.journal, move |record: &ProcessRecord| {
            says.send(record.clone()).map_err(|_| UndoError::Silent(record.process))
        });
    assert_eq!(cleaned.unwrap(), 1);
    assert_eq!(undone.iter().collect::<Vec<_>>(), [record()]);
    assert!(!session.folder().exists());
}

fn wait_for_end(slot: &HoldSlot, number: u32, why: &str) {
    until(why, || slot.load(WORD) == number && !slot.is_held());
}

#[test]
fn the_keeper_ends_the_holds_of_an_owner_that_is_stalled_or_dead() {
    let test = TestJournal::new("holds");
    let session = test.journal.begin().unwrap();
    let pages = HoldPages::new().unwrap();
    let mut child = keeper_with(&session, Some(&pages));
    let slot = pages.take().unwrap();
    slot.begin(7, monotonic_ns());
    wait_for_end(&slot, 7, "the hold ends without a heartbeat");
    // A heartbeat from the future.
    slot.begin(8, monotonic_ns() + 60_000_000_000);
    std::thread::sleep(Duration::from_millis(300));
    assert!(slot.is_held(), "its heartbeat is recent");
    drop(child.stdin.take());
    wait_for_end(&slot, 8, "the hold ends with its owner");
    assert!(ends(&mut child));
}

#[test]
fn signals_do_not_end_the_keeper() {
    let test = TestJournal::new("signals");
    let session = test.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    session.write(&record()).unwrap();
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
fn the_keeper_reverts_all_changes_of_an_owner_without_heartbeats() {
    let test = TestJournal::new("silent");
    let session = test.journal.begin().unwrap();
    let mut keeper = keeper(&session);
    session.write(&record()).unwrap();
    // The pipe stays open: the owner is stopped, not dead.
    let mut pipe = keeper.stdin.take().unwrap();
    pipe.write_all(&[1]).unwrap();
    assert!(ends(&mut keeper), "it ends after {:?}", gpreempt_device::keeper::SILENCE_MAX);
    assert!(!session.folder().exists());
}

#[test]
fn one_journal_that_cannot_be_reverted_does_not_delay_the_others() {
    let test = TestJournal::new("stubborn");
    let stubborn = test.journal.begin().unwrap();
    stubborn.write(&record()).unwrap();
    let odd = test.journal.begin().unwrap();
    std::fs::write(odd.folder().join("1-1.json"), "{\"of\":\"the future\"}").unwrap();
    let easy = test.journal.begin().unwrap();
    let other = ProcessRecord { process: ProcessKey { pid: u32::MAX, start_ticks: 2 }, ..record() };
    easy.write(&other).unwrap();
    let cleaned = gpreempt_device::keeper::clean_up(&test.journal, |record: &ProcessRecord| {
        if record.process.start_ticks == 1 {
            Err(UndoError::Silent(record.process))
        } else {
            Ok(())
        }
    });
    assert!(cleaned.is_err(), "the failure is reported");
    assert!(stubborn.folder().exists() && odd.folder().exists() && !easy.folder().exists());
}
