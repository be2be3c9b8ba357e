//! Every stop is undone, whichever of daemon and keeper dies, hangs or cannot write.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_device::act::Act;
use gpreempt_device::emulated::act::EmulatedAct;
use gpreempt_device::process::ProcessInfo;
use gpreempt_stage::{Daemon, Emulator, Load, Stage, children, signal, until};
use gpreempt_wire::client::ClientError;
use gpreempt_wire::process::Process;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::TaskState;
use rustix::process::Signal;

use super::contention::{Contention, ENDLESS, start_daemon, start_gpu};

/// What a session's journal says if it has stopped every queue of a process.
fn stops(emulator: &Emulator, pid: u32) -> Vec<Act> {
    let instance = emulator.control().unwrap().instance();
    let stop =
        |queue| Act::Emulated(EmulatedAct::Stop { socket: emulator.socket(), instance, queue });
    emulator.queues(pid).unwrap().iter().map(|(_, info)| stop(info.queue.0)).collect()
}

/// How often the daemon is killed while its second keeper starts.
const KILLS: u32 = 25;

#[test]
fn a_daemon_that_dies_while_its_second_keeper_starts_leaves_no_process_stopped() {
    let mut contention = Contention::on_gpu("cwsr");
    let begin = Instant::now();
    for kill in 0..KILLS {
        contention.until_low_waits();
        let first = contention.daemon.keeper().unwrap();
        signal(first, Signal::KILL);
        // Killed as soon as there is a second one, which has not opened anything yet.
        until("a second keeper", || {
            children(contention.daemon.pid()).iter().any(|pid| *pid != first)
        });
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 200));
        contention.daemon.kill().unwrap();
        contention.until_low_runs();
        contention.restart_daemon();
    }
    println!("{KILLS} kills in {:?}", begin.elapsed());
    contention.high.finish_exact().unwrap();
    contention.low.finish_exact().unwrap();
}

#[test]
fn a_keeper_that_hangs_is_replaced() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let hung = contention.daemon.keeper().unwrap();
    signal(hung, Signal::STOP);
    until("a second keeper", || {
        let keepers = children(contention.daemon.pid());
        !keepers.is_empty() && !keepers.contains(&hung)
    });
    contention.daemon.until_logged("the keeper did not answer and was killed; there is a new one");
    contention.until_low_waits();
    contention.daemon.kill().unwrap();
    contention.until_low_runs();
    contention.restart_daemon();
    contention.until_low_waits();
    contention.high.finish_exact().unwrap();
    contention.low.finish_exact().unwrap();
}

#[test]
fn a_daemon_that_was_stopped_blames_no_keeper() {
    let contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let keeper = contention.daemon.keeper().unwrap();
    // Longer than a keeper may be silent, shorter than a daemon may be.
    contention.daemon.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(3_500));
    contention.daemon.signal(Signal::CONT);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(children(contention.daemon.pid()), [keeper], "{:#?}", contention.daemon.log());
    // Longer than a daemon may be: the keeper undoes everything, and a new session begins.
    contention.daemon.signal(Signal::STOP);
    contention.until_low_runs();
    contention.daemon.signal(Signal::CONT);
    contention.daemon.until_logged("a new session");
    contention.until_low_waits();
    let log = contention.daemon.log();
    assert!(!log.iter().any(|line| line.contains("did not answer")), "{log:#?}");
}

#[test]
fn a_daemon_without_a_living_keeper_undoes_everything_and_ends() {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    // A copy of the daemon beside a keeper that is exchanged while it runs.
    let program = stage.path("gpreemptd");
    std::fs::copy(stage.program("gpreemptd").unwrap(), &program).unwrap();
    let script = "#!/bin/sh\nexec \"$(dirname \"$0\")/gpreemptd\" keeper \"$@\"\n";
    let keeper = stage.path("gpreempt-keeper");
    write_program(&keeper, script);
    let low = emulator.load_at(2, ENDLESS).unwrap();
    let _high = emulator.load_at(7, ENDLESS).unwrap();
    let spec = stage.daemon().emulator(emulator.spec()).program(program);
    let mut daemon = spec.start().unwrap();
    until("the low-priority load is preempted", || emulator.is_stopped(low.pid()));
    // From here on no keeper gets ready.
    write_program(&keeper, "#!/bin/sh\nexec sleep 60\n");
    let first = daemon.keeper().unwrap();
    signal(first, Signal::STOP);
    assert!(!daemon.wait().unwrap().success());
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
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    signal(contention.daemon.keeper().unwrap(), Signal::STOP);
    contention.daemon.kill().unwrap();
    assert!(contention.emulator.is_stopped(contention.low.pid()), "no process undoes it yet");
    contention.restart_daemon();
    // The daemon controls it again, so what the first session did was undone.
    contention.until_low_waits();
    contention.high.finish_exact().unwrap();
    contention.until_low_runs();
    contention.low.finish_exact().unwrap();
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

/// A daemon whose journal is on a disk of 64 KiB of its own. None, and the reason on stdout, if
/// this user may not mount one.
#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
fn start_on_small_disk(stage: &Stage, emulator: &Emulator) -> Option<Daemon> {
    let state = stage.state();
    std::fs::create_dir(&state).unwrap();
    let mount = format!("mount -t tmpfs -o size=64k,mode=755 tmpfs '{}'", state.display());
    let mut trial = std::process::Command::new("unshare");
    if !trial.args(["--mount", "sh", "-c", &mount]).status().is_ok_and(|status| status.success()) {
        println!("SKIPPED: a small disk cannot be mounted; this needs root and unshare(1)");
        return None;
    }
    let script = format!("{mount} && exec \"$0\" \"$@\"");
    let spec = stage.daemon().emulator(emulator.spec());
    Some(spec.prefix(&["unshare", "--mount", "sh", "-c", &script]).start().unwrap())
}

/// A file of the daemon's own view of the file system.
fn own_path(daemon: &Daemon, path: &std::path::Path) -> std::path::PathBuf {
    let path = path.strip_prefix("/").unwrap();
    std::path::Path::new(&format!("/proc/{}/root", daemon.pid())).join(path)
}

#[test]
fn a_suspension_that_cannot_be_written_down_is_refused_and_not_shown() {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let mut load = emulator.load_at(4, ENDLESS).unwrap();
    let Some(daemon) = start_on_small_disk(&stage, &emulator) else { return };
    let state = || daemon.task(load.pid()).map(|task| task.state);
    until("the load runs", || state() == Some(TaskState::Running));
    let filler = own_path(&daemon, &stage.state().join("filler"));
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
    load.finish_exact().unwrap();
}

#[test]
fn a_stop_that_fails_after_the_request_was_accepted_is_told_in_the_answer() {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let load = emulator.load_at(4, ENDLESS).unwrap();
    let daemon = start_daemon(&stage, &emulator);
    let state = || daemon.task(load.pid()).map(|task| task.state);
    until("the load runs", || state() == Some(TaskState::Running));
    // Nothing can be written of this very process: its file's place is taken.
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let sessions = std::fs::read_dir(stage.state()).unwrap();
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

#[test]
fn a_suspension_that_the_device_does_not_carry_out_is_refused() {
    let stage = Stage::new("daemon").unwrap();
    let mut emulator = start_gpu(&stage, "cwsr");
    let mut load = emulator.load_at(4, ENDLESS).unwrap();
    let daemon = start_daemon(&stage, &emulator);
    let state = || daemon.task(load.pid()).map(|task| task.state);
    until("the load runs", || state() == Some(TaskState::Running));
    emulator.process().signal(Signal::STOP);
    // A lease that would be over long before it is known that nothing was stopped.
    let answer = daemon.connect().expect_ok(&suspend(&load, 100));
    emulator.process().signal(Signal::CONT);
    let sentence = refusal(answer, RefusalCode::Failed);
    assert!(sentence.contains("was not suspended"), "{sentence}");
    until("the load runs again", || {
        !emulator.is_stopped(load.pid()) && state() == Some(TaskState::Running)
    });
    load.finish_exact().unwrap();
}

/// One load without contention, under a daemon, and stopped by another program.
fn stray() -> (Load, Daemon, Emulator, Stage) {
    let stage = Stage::new("daemon").unwrap();
    // Without a line for each client, of which there are too many for everything to be logged.
    stage.write("config.toml", "[daemon]\nlog = \"info\"\n").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let load = emulator.load_at(4, ENDLESS).unwrap();
    let daemon = start_daemon(&stage, &emulator);
    until("the load runs", || {
        daemon.task(load.pid()).is_some_and(|task| task.state == TaskState::Running)
    });
    emulator.stop_all(load.pid()).unwrap();
    assert!(emulator.is_stopped(load.pid()));
    (load, daemon, emulator, stage)
}

#[test]
fn a_process_that_its_gpu_has_stopped_is_shown_as_stopped_and_can_be_resumed() {
    let (mut load, daemon, emulator, _stage) = stray();
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
    load.finish_exact().unwrap();
}

#[test]
fn resuming_a_preempted_process_leaves_it_preempted() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let process = Process::new(contention.low.pid(), 0).unwrap();
    let answer = contention.daemon.connect().expect_ok(&Request::Resume { process });
    let sentence = refusal(answer, RefusalCode::NotControlled);
    assert!(sentence.ends_with("is not suspended"), "{sentence}");
    assert!(contention.emulator.is_stopped(contention.low.pid()));
    // For longer than the devices are left unasked.
    std::thread::sleep(Duration::from_millis(2_500));
    let task = contention.daemon.task(contention.low.pid()).unwrap();
    assert_ne!(task.state, TaskState::Stopped, "{task:?}");
    contention.high.finish_exact().unwrap();
    contention.until_low_runs();
    contention.low.finish_exact().unwrap();
}

#[test]
fn what_a_dead_session_left_in_a_process_is_undone_by_resume() {
    let (mut load, daemon, emulator, stage) = stray();
    // As if a session of a dead owner had stopped it, whose keeper runs and does nothing.
    let dead = stage.state().join("session-4294967295-0");
    std::fs::create_dir(&dead).unwrap();
    let session = gpreempt_device::journal::Session::at(dead.clone());
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let acts = stops(&emulator, load.pid());
    let entry = gpreempt_device::journal::Entry { process: key, acts, until_ns: None };
    session.write(&entry).unwrap();
    let _keeper = gpreempt_device::journal::Session::at(dead).hold().unwrap().unwrap();
    let process = Process::new(load.pid(), 0).unwrap();
    daemon.connect().expect_ok(&Request::Resume { process }).unwrap();
    assert!(!emulator.is_stopped(load.pid()));
    assert_eq!(session.entries().unwrap(), []);
    load.finish_exact().unwrap();
}
