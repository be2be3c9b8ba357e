//! Every stop is undone, whether the daemon or the keeper dies, hangs or cannot write.

use std::time::{Duration, Instant};

use gpreempt_device::change::GpuChange;
use gpreempt_device::emulated::change::EmulatedChange;
use gpreempt_device::process::ProcessInfo;
use gpreempt_stage::{Daemon, Emulator, Load, Stage, children, is_alive, signal, until};
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::statistics::TaskState;
use rustix::process::Signal;

use super::contention::{
    Contention, ENDLESS, refusal, resume, start_daemon, start_gpu, start_with_load, suspend,
    until_running,
};

/// The journal's records for a process whose queues are all stopped.
fn stops(emulator: &Emulator, pid: u32) -> Vec<GpuChange> {
    let instance = emulator.control().unwrap().instance();
    let stop = |queue| {
        GpuChange::Emulated(EmulatedChange::Stop { socket: emulator.socket(), instance, queue })
    };
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
        // Killed as soon as a second keeper exists, before that one has opened a file.
        until("a second keeper", || {
            children(contention.daemon.pid()).iter().any(|pid| *pid != first)
        });
        std::thread::sleep(Duration::from_micros(u64::from(kill) * 200));
        contention.daemon.kill().unwrap();
        contention.until_low_runs();
        contention.restart_daemon();
    }
    println!("{KILLS} kills in {:?}", begin.elapsed());
    contention.finish();
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
    contention
        .daemon
        .until_logged("the keeper did not answer and was killed; a new keeper was started");
    contention.until_low_waits();
    contention.daemon.kill().unwrap();
    contention.until_low_runs();
    contention.restart_daemon();
    contention.until_low_waits();
    contention.finish();
}

#[test]
fn a_daemon_that_was_stopped_does_not_replace_its_keeper() {
    let contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let keeper = keeper_after_a_stop(&contention);
    // Longer than the limit for a daemon: the keeper undoes everything and ends. The low-priority
    // load may run before that, while the other one is late with its work.
    let restarts = restarts_of_control(&contention);
    contention.daemon.signal(Signal::STOP);
    until("the keeper has undone everything", || !is_alive(keeper));
    assert!(!contention.is_low_stopped());
    contention.daemon.signal(Signal::CONT);
    until("control restarts", || restarts_of_control(&contention) > restarts);
    contention.until_low_waits();
    let log = contention.daemon.log();
    assert!(!log.iter().any(|line| line.contains("did not answer")), "{log:#?}");
}

fn restarts_of_control(contention: &Contention) -> usize {
    contention.daemon.log().iter().filter(|line| line.contains("restarting control")).count()
}

/// Stops the daemon for longer than the limit for a keeper, but shorter than that for a daemon.
/// Returns the keeper, which is the same before and after. A busy machine may stop the daemon for
/// longer than asked; then control restarts, and it is tried again.
fn keeper_after_a_stop(contention: &Contention) -> u32 {
    for _ in 0..10 {
        let keeper = contention.daemon.keeper().unwrap();
        let restarts = restarts_of_control(contention);
        contention.daemon.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(3_500));
        contention.daemon.signal(Signal::CONT);
        std::thread::sleep(Duration::from_millis(500));
        if restarts_of_control(contention) == restarts {
            assert_eq!(
                children(contention.daemon.pid()),
                [keeper],
                "{:#?}",
                contention.daemon.log()
            );
            return keeper;
        }
        contention.until_low_waits();
    }
    panic!("each stop was longer than the limit for a daemon");
}

#[test]
fn a_daemon_that_cannot_start_a_keeper_undoes_everything_and_ends() {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    // A copy of the daemon beside a keeper program that the test replaces.
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
    // From here on no keeper becomes ready.
    write_program(&keeper, "#!/bin/sh\nexec sleep 60\n");
    let first = daemon.keeper().unwrap();
    signal(first, Signal::STOP);
    assert!(!daemon.wait().unwrap().success());
    daemon.until_logged("the keeper did not answer and was killed and no new keeper");
    assert!(!emulator.is_stopped(low.pid()), "{:#?}", daemon.log());
}

/// Replaces a program as a new file: the old one may be running.
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
    assert!(contention.is_low_stopped(), "no process undoes it yet");
    contention.restart_daemon();
    // The daemon controls it again, so the changes of the first session were undone.
    contention.until_low_waits();
    contention.finish();
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
fn a_suspension_that_the_journal_cannot_record_is_refused() {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let mut load = emulator.load_at(4, ENDLESS).unwrap();
    let Some(daemon) = start_on_small_disk(&stage, &emulator) else { return };
    let state = || daemon.task(load.pid()).map(|task| task.state);
    until("the load runs", || state() == Some(TaskState::Running));
    let filler = own_path(&daemon, &stage.state().join("filler"));
    std::fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    let answer = daemon.connect().expect_ok(&suspend(load.pid(), 60_000));
    let sentence = refusal(answer, RefusalCode::Failed);
    assert!(sentence.contains("was not suspended: the journal cannot be written"), "{sentence}");
    assert!(sentence.contains("No space left on device"), "{sentence}");
    let task = daemon.task(load.pid()).unwrap();
    assert_eq!((task.state, task.lease_ms), (TaskState::Running, None), "{task:?}");
    assert!(!emulator.is_stopped(load.pid()));
    // With free space it works, and recorded changes can be undone on a full disk.
    std::fs::remove_file(&filler).unwrap();
    daemon.connect().expect_ok(&suspend(load.pid(), 60_000)).unwrap();
    assert!(emulator.is_stopped(load.pid()), "it is answered when the process is off");
    assert_eq!(state(), Some(TaskState::Suspended));
    std::fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    // A renewal changes nothing on the device, so it needs no space.
    daemon.connect().expect_ok(&suspend(load.pid(), 70_000)).unwrap();
    daemon.connect().expect_ok(&resume(&load)).unwrap();
    until("the load runs again", || {
        !emulator.is_stopped(load.pid()) && state() == Some(TaskState::Running)
    });
    load.finish_exact().unwrap();
}

#[test]
fn a_stop_that_fails_later_is_reported_in_the_answer() {
    let (load, daemon, emulator, stage) = start_with_load(4);
    let state = || daemon.task(load.pid()).map(|task| task.state);
    // A folder in the place of this process's file makes writing it fail.
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let sessions = std::fs::read_dir(stage.state()).unwrap();
    let mut sessions = sessions.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let session = sessions.next().unwrap();
    let place = session.join(format!("{}-{}.new", key.pid, key.start_ticks));
    std::fs::create_dir(&place).unwrap();
    let answer = daemon.connect().expect_ok(&suspend(load.pid(), 60_000));
    let sentence = refusal(answer, RefusalCode::Failed);
    assert!(sentence.contains("the journal cannot be written"), "{sentence}");
    assert_eq!(daemon.task(load.pid()).unwrap().lease_ms, None);
    assert!(!emulator.is_stopped(load.pid()));
    std::fs::remove_dir(&place).unwrap();
    daemon.connect().expect_ok(&suspend(load.pid(), 60_000)).unwrap();
    assert!(emulator.is_stopped(load.pid()));
    assert_eq!(state(), Some(TaskState::Suspended));
}

#[test]
fn a_suspension_that_the_device_does_not_carry_out_is_refused() {
    let (mut load, daemon, mut emulator, _stage) = start_with_load(4);
    let state = || daemon.task(load.pid()).map(|task| task.state);
    emulator.process().signal(Signal::STOP);
    // A lease that is shorter than the time until the failure is known.
    let answer = daemon.connect().expect_ok(&suspend(load.pid(), 100));
    emulator.process().signal(Signal::CONT);
    let sentence = refusal(answer, RefusalCode::Failed);
    assert!(sentence.contains("was not suspended"), "{sentence}");
    until("the load runs again", || {
        !emulator.is_stopped(load.pid()) && state() == Some(TaskState::Running)
    });
    load.finish_exact().unwrap();
}

/// A load that another program has stopped.
fn start_stopped_load() -> (Load, Daemon, Emulator, Stage) {
    let stage = Stage::new("daemon").unwrap();
    // Without debug lines for each client, which would exceed the rate of the log.
    stage.write("config.toml", "[daemon]\nlog = \"info\"\n").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let load = emulator.load_at(4, ENDLESS).unwrap();
    let daemon = start_daemon(&stage, &emulator);
    until_running(&daemon, &load);
    emulator.stop_all(load.pid()).unwrap();
    assert!(emulator.is_stopped(load.pid()));
    (load, daemon, emulator, stage)
}

#[test]
fn a_process_that_its_gpu_has_stopped_is_shown_and_can_be_resumed() {
    let (mut load, daemon, emulator, _stage) = start_stopped_load();
    until("it is shown as stopped", || {
        daemon.task(load.pid()).is_some_and(|task| task.state == TaskState::Stopped)
    });
    let task = daemon.task(load.pid()).unwrap();
    assert!(task.why.contains("its GPU reports it as stopped"), "{task:?}");
    daemon.connect().expect_ok(&resume(&load)).unwrap();
    assert!(!emulator.is_stopped(load.pid()), "it is answered when the process runs");
    daemon.until_logged("was stopped although gpreemptd had not stopped it");
    until("it is shown as running", || {
        daemon.task(load.pid()).is_some_and(|task| task.state == TaskState::Running)
    });
    let answer = daemon.connect().expect_ok(&resume(&load));
    let sentence = refusal(answer, RefusalCode::NotControlled);
    assert!(sentence.ends_with("is not suspended"), "{sentence}");
    load.finish_exact().unwrap();
}

#[test]
fn resuming_a_preempted_process_leaves_it_preempted() {
    let mut contention = Contention::on_gpu("cwsr");
    contention.until_low_waits();
    let answer = contention.daemon.connect().expect_ok(&resume(&contention.low));
    let sentence = refusal(answer, RefusalCode::NotControlled);
    assert!(sentence.ends_with("is not suspended"), "{sentence}");
    assert!(contention.is_low_stopped());
    // Longer than the interval in which the devices are read.
    std::thread::sleep(Duration::from_millis(2_500));
    let task = contention.daemon.task(contention.low.pid()).unwrap();
    assert_ne!(task.state, TaskState::Stopped, "{task:?}");
    contention.finish();
}

#[test]
fn resume_undoes_what_a_dead_session_left_in_a_process() {
    let (mut load, daemon, emulator, stage) = start_stopped_load();
    // As if a session of a dead owner had stopped it, with a keeper that hangs.
    let dead = stage.state().join("session-4294967295-0");
    std::fs::create_dir(&dead).unwrap();
    let session = gpreempt_device::journal::OwnerJournal::at(dead.clone());
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let acts = stops(&emulator, load.pid());
    let entry =
        gpreempt_device::journal::ProcessRecord { process: key, changes: acts, until_ns: None };
    session.write(&entry).unwrap();
    let _keeper = gpreempt_device::journal::OwnerJournal::at(dead).hold().unwrap().unwrap();
    daemon.connect().expect_ok(&resume(&load)).unwrap();
    assert!(!emulator.is_stopped(load.pid()));
    assert_eq!(session.entries().unwrap(), []);
    load.finish_exact().unwrap();
}
