//! Every stop is undone, whichever of daemon and keeper dies, hangs or cannot write.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_device::process::ProcessInfo;
use gpreempt_wire::client::ClientError;
use gpreempt_wire::process::Process;
use gpreempt_wire::refusal::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::TaskState;
use rustix::process::{Pid, Signal, kill_process};

use super::daemon::{Daemon, Folder, until};
use super::scene::{Emulator, Load};

/// An emulator with two loads, the higher priority preempting the lower one, and a daemon.
struct Contention {
    low: Load,
    high: Load,
    daemon: Daemon,
    emulator: Emulator,
    folder: Folder,
}

impl Contention {
    fn new() -> Self {
        let folder = Folder::new();
        let emulator = Emulator::start(&folder, "cwsr");
        let low = emulator.load(&[("GPREEMPT_PRIORITY", "2")]);
        let high = emulator.load(&[("GPREEMPT_PRIORITY", "7")]);
        let daemon = start(&folder);
        Self { low, high, daemon, emulator, folder }
    }

    fn until_low_is_preempted(&self) {
        until("the low-priority load is preempted", || {
            self.daemon.task(self.low.pid()).is_some_and(|task| task.state == TaskState::Preempted)
                && self.emulator.is_stopped(self.low.pid())
        });
    }

    fn until_low_runs(&self) {
        until("the low-priority load runs", || !self.emulator.is_stopped(self.low.pid()));
    }
}

fn start(folder: &Folder) -> Daemon {
    Daemon::start(folder, &["--emulated", folder.path("gpu").to_str().unwrap()])
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// How often the daemon is killed while its second keeper starts.
const KILLS: u32 = 25;

#[test]
fn a_daemon_that_dies_while_its_second_keeper_starts_leaves_no_process_stopped() {
    let mut scene = Contention::new();
    let begin = Instant::now();
    for kill in 0..KILLS {
        scene.until_low_is_preempted();
        let first = scene.daemon.keeper();
        send(first, Signal::KILL);
        // Killed as soon as there is a second one, which has not opened anything yet.
        until("a second keeper", || scene.daemon.children().iter().any(|pid| *pid != first));
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 200));
        scene.daemon.kill();
        scene.until_low_runs();
        scene.daemon = start(&scene.folder);
    }
    println!("{KILLS} kills in {:?}", begin.elapsed());
    scene.high.finish();
    scene.low.finish();
}

#[test]
fn a_keeper_that_hangs_is_replaced() {
    let mut scene = Contention::new();
    scene.until_low_is_preempted();
    let hung = scene.daemon.keeper();
    send(hung, Signal::STOP);
    until("a second keeper", || {
        let keepers = scene.daemon.children();
        !keepers.is_empty() && !keepers.contains(&hung)
    });
    scene.daemon.until_logged("the keeper did not answer and was killed; there is a new one");
    scene.until_low_is_preempted();
    scene.daemon.kill();
    scene.until_low_runs();
    scene.daemon = start(&scene.folder);
    scene.until_low_is_preempted();
    scene.high.finish();
    scene.low.finish();
}

#[test]
fn a_daemon_that_was_stopped_blames_no_keeper() {
    let scene = Contention::new();
    scene.until_low_is_preempted();
    let keeper = scene.daemon.keeper();
    // Longer than a keeper may be silent, shorter than a daemon may be.
    scene.daemon.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(3_500));
    scene.daemon.signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(scene.daemon.children(), [keeper], "{:#?}", scene.daemon.log());
    // Longer than a daemon may be: the keeper undoes everything, and a new session begins.
    scene.daemon.signal(Signal::STOP);
    scene.until_low_runs();
    scene.daemon.signal(Signal::CONT);
    scene.daemon.until_logged("a new session");
    scene.until_low_is_preempted();
    let log = scene.daemon.log();
    assert!(!log.iter().any(|line| line.contains("did not answer")), "{log:#?}");
}

#[test]
fn a_daemon_without_a_living_keeper_undoes_everything_and_ends() {
    let folder = Folder::new();
    let emulator = Emulator::start(&folder, "cwsr");
    // A copy of the daemon beside a keeper that is exchanged while it runs.
    let program = folder.path("gpreemptd");
    std::fs::copy(env!("CARGO_BIN_EXE_gpreemptd"), &program).unwrap();
    let script = "#!/bin/sh\nexec \"$(dirname \"$0\")/gpreemptd\" keeper \"$@\"\n";
    let keeper = folder.path("gpreempt-keeper");
    write_program(&keeper, script);
    let low = emulator.load(&[("GPREEMPT_PRIORITY", "2")]);
    let _high = emulator.load(&[("GPREEMPT_PRIORITY", "7")]);
    let socket = folder.path("gpu");
    let mut daemon =
        Daemon::start_program(&program, &folder, &["--emulated", socket.to_str().unwrap()]);
    until("the low-priority load is preempted", || emulator.is_stopped(low.pid()));
    // From here on no keeper gets ready.
    write_program(&keeper, "#!/bin/sh\nexec sleep 60\n");
    let first = daemon.keeper();
    send(first, Signal::STOP);
    assert!(!daemon.wait().success());
    daemon.until_logged("the keeper did not answer and was killed and there is no new one");
    assert!(!emulator.is_stopped(low.pid()), "{:#?}", daemon.log());
}

/// Writes a program whole, as a file of its own: the one before may be running.
fn write_program(path: &std::path::Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::rename(fresh, path).unwrap();
}

#[test]
fn a_hung_keeper_of_a_dead_daemon_keeps_no_process_stopped() {
    let mut scene = Contention::new();
    scene.until_low_is_preempted();
    send(scene.daemon.keeper(), Signal::STOP);
    scene.daemon.kill();
    assert!(scene.emulator.is_stopped(scene.low.pid()), "no process undoes it yet");
    scene.daemon = start(&scene.folder);
    // The daemon controls it again, so what the first session did was undone.
    scene.until_low_is_preempted();
    scene.high.finish();
    scene.until_low_runs();
    scene.low.finish();
}

fn suspend(load: &Load, lease_ms: u32) -> Request {
    let process = Process::new(load.pid(), 0).unwrap();
    Request::Suspend { process, lease_ms: NonZeroU32::new(lease_ms).unwrap() }
}

/// The sentence of a refusal with that code.
fn refusal(answer: Result<(), ClientError>, code: RefusalCode) -> String {
    match answer {
        Err(ClientError::Refused(refusal)) if refusal.code == code => {
            refusal.sentence.as_str().to_owned()
        }
        other => panic!("{other:?} is not a refusal with {code:?}"),
    }
}

#[test]
fn a_suspension_that_cannot_be_written_down_is_refused_and_not_shown() {
    let folder = Folder::new();
    let emulator = Emulator::start(&folder, "cwsr");
    let mut load = emulator.load(&[("GPREEMPT_PRIORITY", "4")]);
    let socket = folder.path("gpu");
    let emulated = ["--emulated", socket.to_str().unwrap()];
    let Some(daemon) = Daemon::start_on_small_disk(&folder, &emulated) else { return };
    let state = || daemon.task(load.pid()).map(|task| task.state);
    until("the load runs", || state() == Some(TaskState::Running));
    let filler = daemon.own_path(&folder.path("state/filler"));
    std::fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    let answer = daemon.connect().expect_ok(&suspend(&load, 60_000));
    let sentence = refusal(answer, RefusalCode::Failed);
    assert!(sentence.contains("was not suspended: the journal cannot be written"), "{sentence}");
    assert!(sentence.contains("No space left on device"), "{sentence}");
    let task = daemon.task(load.pid()).unwrap();
    assert_eq!((task.state, task.lease_ms), (TaskState::Running, None), "{task:?}");
    assert!(!emulator.is_stopped(load.pid()));
    // With space again it works, and what was written can be undone on a full disk.
    std::fs::remove_file(&filler).unwrap();
    daemon.connect().expect_ok(&suspend(&load, 60_000)).unwrap();
    assert!(emulator.is_stopped(load.pid()), "it is answered when the process is off");
    assert_eq!(state(), Some(TaskState::Suspended));
    std::fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    // A renewal changes nothing on the device, so it needs no space.
    daemon.connect().expect_ok(&suspend(&load, 70_000)).unwrap();
    let process = Process::new(load.pid(), 0).unwrap();
    daemon.connect().expect_ok(&Request::Resume { process }).unwrap();
    until("the load runs again", || {
        !emulator.is_stopped(load.pid()) && state() == Some(TaskState::Running)
    });
    load.finish();
}

#[test]
fn a_stop_that_fails_after_the_request_was_accepted_is_told_in_the_answer() {
    let folder = Folder::new();
    let emulator = Emulator::start(&folder, "cwsr");
    let load = emulator.load(&[("GPREEMPT_PRIORITY", "4")]);
    let daemon = start(&folder);
    let state = || daemon.task(load.pid()).map(|task| task.state);
    until("the load runs", || state() == Some(TaskState::Running));
    // Nothing can be written of this very process: its file's place is taken.
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let sessions = std::fs::read_dir(folder.path("state")).unwrap();
    let mut sessions = sessions.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let session = sessions.next().unwrap();
    let place = session.join(format!("{}-{}.new", key.pid, key.start_ticks));
    std::fs::create_dir(&place).unwrap();
    let answer = daemon.connect().expect_ok(&suspend(&load, 60_000));
    let sentence = refusal(answer, RefusalCode::Failed);
    assert!(sentence.contains("the journal cannot be written"), "{sentence}");
    assert_eq!(daemon.task(load.pid()).unwrap().lease_ms, None);
    assert!(!emulator.is_stopped(load.pid()));
    std::fs::remove_dir(&place).unwrap();
    daemon.connect().expect_ok(&suspend(&load, 60_000)).unwrap();
    assert!(emulator.is_stopped(load.pid()));
    assert_eq!(state(), Some(TaskState::Suspended));
}

/// One load without contention, under a daemon, and stopped by another program.
fn stray() -> (Load, Daemon, Emulator, Folder) {
    let folder = Folder::new();
    // Without a line for each client, of which there are too many for everything to be logged.
    std::fs::write(folder.path("config.toml"), "[daemon]\nlog = \"info\"\n").unwrap();
    let emulator = Emulator::start(&folder, "cwsr");
    let load = emulator.load(&[("GPREEMPT_PRIORITY", "4")]);
    let daemon = start(&folder);
    until("the load runs", || {
        daemon.task(load.pid()).is_some_and(|task| task.state == TaskState::Running)
    });
    emulator.stop_all(load.pid());
    assert!(emulator.is_stopped(load.pid()));
    (load, daemon, emulator, folder)
}

#[test]
fn a_process_that_its_gpu_has_stopped_is_shown_as_stopped_and_can_be_resumed() {
    let (mut load, daemon, emulator, _folder) = stray();
    until("it is shown as stopped", || {
        daemon.task(load.pid()).is_some_and(|task| task.state == TaskState::Stopped)
    });
    let task = daemon.task(load.pid()).unwrap();
    assert!(task.why.contains("its GPU has it stopped"), "{task:?}");
    let process = Process::new(load.pid(), 0).unwrap();
    daemon.connect().expect_ok(&Request::Resume { process }).unwrap();
    assert!(!emulator.is_stopped(load.pid()), "it is answered when the process runs");
    daemon.until_logged("was stopped although gpreemptd had not stopped it");
    until("it is shown as running", || {
        daemon.task(load.pid()).is_some_and(|task| task.state == TaskState::Running)
    });
    let answer = daemon.connect().expect_ok(&Request::Resume { process });
    let sentence = refusal(answer, RefusalCode::NotControlled);
    assert!(sentence.ends_with("is not suspended"), "{sentence}");
    load.finish();
}

#[test]
fn resuming_a_preempted_process_leaves_it_preempted() {
    let mut scene = Contention::new();
    scene.until_low_is_preempted();
    let process = Process::new(scene.low.pid(), 0).unwrap();
    let answer = scene.daemon.connect().expect_ok(&Request::Resume { process });
    let sentence = refusal(answer, RefusalCode::NotControlled);
    assert!(sentence.ends_with("is not suspended"), "{sentence}");
    assert!(scene.emulator.is_stopped(scene.low.pid()));
    // For longer than the devices are left unasked.
    std::thread::sleep(Duration::from_millis(2_500));
    let task = scene.daemon.task(scene.low.pid()).unwrap();
    assert_ne!(task.state, TaskState::Stopped, "{task:?}");
    scene.high.finish();
    scene.until_low_runs();
    scene.low.finish();
}

#[test]
fn what_a_dead_session_left_in_a_process_is_undone_by_resume() {
    let (mut load, daemon, emulator, folder) = stray();
    // As if a session of a dead owner had stopped it, whose keeper runs and does nothing.
    let dead = folder.path("state/session-4294967295-0");
    std::fs::create_dir(&dead).unwrap();
    let session = gpreempt_device::journal::Session::at(dead.clone());
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let acts = emulator.stops(load.pid());
    let entry = gpreempt_device::journal::Entry { process: key, acts, until_ns: None };
    session.write(&entry).unwrap();
    let _keeper = gpreempt_device::journal::Session::at(dead).hold().unwrap().unwrap();
    let process = Process::new(load.pid(), 0).unwrap();
    daemon.connect().expect_ok(&Request::Resume { process }).unwrap();
    assert!(!emulator.is_stopped(load.pid()));
    assert_eq!(session.entries().unwrap(), []);
    load.finish();
}
