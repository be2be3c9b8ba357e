//! Evictions on a real emulator with real processes, and kill -9 of owner, evictor and keeper.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpreempt_core::id::DeviceId;
use gpreempt_core::time::Duration as Time;
use gpreempt_device::controller::Waker;
use gpreempt_device::eviction::{
    EvictDevice, EvictJob, EvictTarget, Evictor, EvictorReport, NotRestored, Step, left_evictions,
};
use gpreempt_device::journal::{Journal, OwnerJournal};
use gpreempt_device::process::ProcessInfo;
use gpreempt_device::undo_log::UndoLog;
use gpreempt_stage::{Emulator, Process, Stage, until};
use gpreempt_wire::emulator::CheckpointState as WireState;
use gpreempt_wire::emulator::checkpoints::Checkpoints;
use gpreempt_wire::emulator::client::{Client, Launch, MIX, MixedWord};

const GIB: u64 = 1 << 30;
const DEVICE: DeviceId = DeviceId(0);
const REGION: u32 = 4_096;
/// Each call takes 20 to 40 ms, so that it can be hit and hundreds of them do not take long.
const MODEL: &str = r#"
base = "h200"
source = "the built-in h200 with fast copies"
[memory]
bytes = 25769803776
lock_ns = 20000000
checkpoint_ns = 30000000
checkpoint_bytes_per_us = 500000
restore_ns = 30000000
restore_bytes_per_us = 500000
unlock_ns = 20000000
"#;

fn emulator() -> Emulator {
    let stage = Stage::new("evictions").unwrap();
    stage.write("model.toml", MODEL).unwrap();
    stage.emulator("--devices 2 --model model.toml").unwrap()
}

fn variable(name: &str) -> PathBuf {
    std::env::var_os(name).unwrap().into()
}

/// Runs in a process of its own: computes and compares every byte until the file STOP exists.
#[test]
#[ignore = "another test starts this as a process"]
fn job_process() {
    let mut client = Client::connect(&variable("SOCKET"), REGION).unwrap();
    client.allocate(DEVICE, 4 * GIB).unwrap();
    let mut queue = client.open_queue(DEVICE, 16).unwrap();
    let mut expected = MixedWord::default();
    let until = Instant::now() + Duration::from_secs(900);
    while !variable("STOP").exists() && Instant::now() < until {
        let number = expected.next_number();
        expected.launch();
        let (groups, region_bytes, work_ns) = (REGION / 32, REGION, 500_000);
        let launch =
            Launch { kernel: MIX, groups, waves: 1, region: 0, region_bytes, number, work_ns };
        queue.submit(&launch).unwrap();
        assert!(queue.wait(queue.submitted(), Time::from_millis(60_000)).unwrap());
        assert!(expected.fills(&client.read(0, REGION as usize).unwrap()));
        std::fs::write(variable("ROUND"), queue.submitted().to_string()).unwrap();
    }
}

/// Runs in a process of its own, as a daemon does: evicts a tree and restores it, until it is
/// killed or something is undone.
#[test]
#[ignore = "another test starts this as a process"]
fn owner_process() {
    let session = OwnerJournal::at(variable("JOURNAL"));
    let undo_log = UndoLog::new(session);
    let program = Some(env!("CARGO_BIN_EXE_gpreempt-evictor").into());
    let mut evictor = Evictor::new(undo_log, Waker::new().unwrap(), program);
    let pids = std::env::var("PIDS").unwrap();
    let device = device(&variable("SOCKET"));
    let target = |pid: &str| target(pid.parse().unwrap(), &device);
    let processes = pids.split(' ').map(target).collect();
    evictor.evict(EvictJob { id: 1, processes, lock_timeout: Duration::from_secs(5) });
    let (step, until) = (variable("STEP"), Instant::now() + Duration::from_secs(60));
    while Instant::now() < until {
        match evictor.poll() {
            None => std::thread::sleep(Duration::from_millis(1)),
            Some(EvictorReport::Step { step: now, .. }) => {
                std::fs::write(&step, format!("{now:?}")).unwrap();
            }
            Some(EvictorReport::Evicted { bytes, .. }) => {
                assert_eq!(bytes, 8 * GIB);
                evictor.restore(1);
            }
            Some(EvictorReport::Restored { .. } | EvictorReport::EvictFailed { .. }) => return,
            Some(EvictorReport::RestoreFailed { .. }) => evictor.restore(1),
            Some(report @ EvictorReport::Gone { .. }) => panic!("{report:?}"),
        }
    }
    panic!("it takes too long");
}

fn device(socket: &Path) -> EvictDevice {
    let instance = Checkpoints::connect(socket).unwrap().instance();
    EvictDevice::Emulated { socket: socket.to_owned(), instance }
}

fn target(pid: u32, device: &EvictDevice) -> EvictTarget {
    EvictTarget { key: ProcessInfo::read(pid).unwrap().key, device: device.clone() }
}

/// A job in a process of its own.
struct Job {
    process: Process,
    round: PathBuf,
    stop: PathBuf,
}

impl Job {
    fn start(emulator: &Emulator, name: &str) -> Self {
        let round = emulator.stage().path(format!("round-{name}"));
        let stop = emulator.stage().path("stop");
        let process = emulator
            .stage()
            .start_test(
                "job_process",
                &[("SOCKET", &emulator.socket()), ("ROUND", &round), ("STOP", &stop)],
            )
            .unwrap();
        let job = Self { process, round, stop };
        until("the job computes", || job.round() > 0);
        job
    }

    fn round(&self) -> u64 {
        let text = std::fs::read_to_string(&self.round);
        text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn assert_continues(&self, context: &str) {
        let before = self.round();
        until(context, || self.round() > before + 3);
    }

    /// Asserts that all it computed was exact.
    fn finish(&mut self) {
        std::fs::write(&self.stop, "").unwrap();
        let ended = self.process.wait(Duration::from_secs(60)).unwrap();
        assert!(ended.status.success(), "{}{}", ended.out, ended.err);
    }
}

/// A keeper whose owner is dead, as another program starts it for what was left.
fn orphan_keeper(folder: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"));
    command.arg(folder).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// Which processes are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victims {
    Owner,
    Evictor,
    Keeper,
    OwnerAndKeeper,
    OwnerAndEvictor,
    All,
}

const VICTIMS: [Victims; 6] = [
    Victims::Owner,
    Victims::Evictor,
    Victims::Keeper,
    Victims::OwnerAndKeeper,
    Victims::OwnerAndEvictor,
    Victims::All,
];
const STEPS: [Step; 5] =
    [Step::Locking, Step::Evicting, Step::Evicted, Step::Restoring, Step::Unlocking];

/// The evictor programs that a process has started.
fn evictors_of(pid: u32) -> Vec<u32> {
    let is_evictor = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("gpreempt-evict")
    };
    gpreempt_stage::all_children(pid).into_iter().filter(is_evictor).collect()
}

fn kill(pid: u32) {
    gpreempt_stage::signal(pid, rustix::process::Signal::KILL);
}

#[test]
fn every_job_runs_again_whatever_is_killed_in_any_step() {
    let rounds: usize = std::env::var("GPREEMPT_KILLS").map_or(1, |text| text.parse().unwrap());
    let emulator = emulator();
    let mut jobs = [Job::start(&emulator, "a"), Job::start(&emulator, "b")];
    let pids = jobs.each_ref().map(|job| job.process.pid());
    let journal = Journal::at(emulator.stage().path("journal")).unwrap();
    let mut calls = Checkpoints::connect(&emulator.socket()).unwrap();
    let mut missed = 0;
    for round in 0..rounds {
        for (at, (victims, step)) in
            VICTIMS.iter().flat_map(|who| STEPS.map(|step| (*who, step))).enumerate()
        {
            let context = format!("{victims:?} killed in {step:?}, round {round}");
            // 0 to 36 ms into the step.
            let delay = Duration::from_millis(u64::try_from((at * 7 + round * 11) % 37).unwrap());
            missed += u32::from(!kill_round(&emulator, &journal, pids, (victims, step), delay));
            for (pid, job) in pids.iter().zip(&jobs) {
                assert_eq!(calls.state(*pid).unwrap().state, WireState::Running, "{context}");
                job.assert_continues(&context);
            }
            assert_nothing_left(journal.root(), &context);
        }
    }
    println!("{} rounds, {missed} steps were over before the kill", rounds * 30);
    jobs.iter_mut().for_each(Job::finish);
}

/// Asserts that there is no journal. An evictor that is killed after its last call leaves the files
/// of its locks, without the name of a call.
fn assert_nothing_left(root: &Path, context: &str) {
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        // The latter is that of a GPU, and removed after the next restore there.
        let is_lock = name.starts_with("evict-") || name.starts_with("restore-");
        assert!(is_lock, "{context}: {name}");
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), "", "{context}: {name}");
    }
}

/// Evicts and restores both processes with an owner, and kills some of its programs in a step.
/// Returns whether that step was reached.
fn kill_round(
    emulator: &Emulator,
    journal: &Journal,
    pids: [u32; 2],
    (victims, step): (Victims, Step),
    delay: Duration,
) -> bool {
    let session = journal.begin().unwrap();
    let folder = session.folder().to_owned();
    let reached = emulator.stage().path("step");
    let _ = std::fs::remove_file(&reached);
    let pids = PathBuf::from(pids.map(|pid| pid.to_string()).join(" "));
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"));
    keeper.arg(&folder).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut keeper = keeper.spawn().unwrap();
    let mut owner = emulator
        .stage()
        .start_test(
            "owner_process",
            &[
                ("SOCKET", &emulator.socket()),
                ("PIDS", &pids),
                ("JOURNAL", &folder),
                ("STEP", &reached),
            ],
        )
        .unwrap();
    let wanted = format!("{step:?}");
    let mut is_reached = false;
    until("the owner reaches the step or ends", || {
        is_reached = std::fs::read_to_string(&reached).is_ok_and(|text| text == wanted);
        is_reached || !gpreempt_stage::is_alive(owner.pid())
    });
    std::thread::sleep(delay);
    if matches!(victims, Victims::Evictor | Victims::OwnerAndEvictor | Victims::All) {
        evictors_of(owner.pid()).into_iter().for_each(kill);
    }
    let kills_keeper = matches!(victims, Victims::Keeper | Victims::OwnerAndKeeper | Victims::All);
    if kills_keeper {
        keeper.kill().unwrap();
    }
    if !matches!(victims, Victims::Evictor | Victims::Keeper) {
        // It may have ended by itself.
        let _ = owner.kill_and_wait();
    }
    let _ = owner.wait(Duration::from_secs(60)).unwrap();
    // The keeper's pipe is the owner's in a daemon.
    drop(keeper.stdin.take());
    if kills_keeper {
        keeper.wait().unwrap();
        keeper = orphan_keeper(&folder);
        // It is killed too while it restores.
        std::thread::sleep(delay);
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        if folder.exists() {
            keeper = orphan_keeper(&folder);
        }
    }
    until("the keeper has undone everything", || keeper.try_wait().unwrap().is_some());
    is_reached
}

/// The next report that is not a step.
fn next(evictor: &mut Evictor) -> EvictorReport {
    let mut found = None;
    until("there is a report", || {
        found = evictor.poll();
        found.as_ref().is_some_and(|report| !matches!(report, EvictorReport::Step { .. }))
    });
    found.unwrap()
}

#[test]
fn what_waits_for_room_is_adopted_and_the_keeper_ends() {
    let emulator = emulator();
    let (socket, device) = (emulator.socket(), device(&emulator.socket()));
    let mut job = Job::start(&emulator, "room");
    let target = target(job.process.pid(), &device);
    let journal = Journal::at(emulator.stage().path("journal")).unwrap();
    let evictor = |journal: &Journal| {
        let undo_log = UndoLog::new(journal.begin().unwrap());
        let program = Some(env!("CARGO_BIN_EXE_gpreempt-evictor").into());
        (undo_log.folder(), Evictor::new(undo_log, Waker::new().unwrap(), program))
    };
    let (folder, mut first) = evictor(&journal);
    let processes = vec![target.clone()];
    first.evict(EvictJob { id: 1, processes, lock_timeout: Duration::from_secs(5) });
    assert!(matches!(next(&mut first), EvictorReport::Evicted { bytes, .. } if bytes == 4 * GIB));
    // The program has nothing of its owner's but its pipes, and a copy of one.
    let evictor_pid = evictors_of(std::process::id())[0];
    let files = std::fs::read_dir(format!("/proc/{evictor_pid}/fd")).unwrap();
    let files = files.map(|file| std::fs::read_link(file.unwrap().path()).unwrap());
    for file in files.map(|file| file.to_string_lossy().into_owned()) {
        let is_known = file == "/dev/null" || file.starts_with("pipe:");
        assert!(is_known, "{file}");
    }
    let environment = std::fs::read(format!("/proc/{evictor_pid}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let mut variables = environment.split('\0').filter(|variable| !variable.is_empty());
    assert!(variables.all(|variable| variable.starts_with("LD_LIBRARY_PATH=")), "{environment}");
    // Another program takes the room.
    let mut filler = Client::connect(&socket, 64).unwrap();
    let taken = filler.allocate(DEVICE, 21 * GIB).unwrap();
    first.restore(1);
    let why = NotRestored::NoRoom { needed: 4 * GIB, free: 3 * GIB };
    assert_eq!(next(&mut first), EvictorReport::RestoreFailed { id: 1, why });
    drop(first);
    // Its owner has ended; the keeper waits.
    let dead = folder.with_file_name(format!("session-{}-0-1", u32::MAX));
    std::fs::rename(folder, &dead).unwrap();
    let mut keeper = orphan_keeper(&dead);
    until("the keeper has tried", || !evictors_of(keeper.id()).is_empty());
    assert!(OwnerJournal::at(dead.clone()).has_only_evictions());
    let left = left_evictions(&journal).unwrap();
    assert_eq!(left[0].processes(), std::slice::from_ref(&target));
    let (own, mut second) = evictor(&journal);
    until("it is adopted between two tries", || second.adopt(2, &left[0]).is_ok());
    until("the keeper ends", || keeper.try_wait().unwrap().is_some());
    assert!(!dead.exists());
    assert_eq!(OwnerJournal::at(own.clone()).len().unwrap(), 1);
    let mut calls = Checkpoints::connect(&socket).unwrap();
    let pid = job.process.pid();
    assert_eq!(calls.state(pid).unwrap().state, WireState::Checkpointed);
    filler.free(taken).unwrap();
    second.restore(2);
    assert!(matches!(next(&mut second), EvictorReport::Restored { id: 2, .. }));
    assert!(OwnerJournal::at(own).is_empty().unwrap());
    job.assert_continues("it runs again");
    // Killed while it is evicted.
    second.evict(EvictJob { id: 3, processes: vec![target], lock_timeout: Duration::from_secs(5) });
    assert!(matches!(next(&mut second), EvictorReport::Evicted { id: 3, .. }));
    job.process.kill_and_wait().unwrap();
    second.restore(3);
    assert_eq!(next(&mut second), EvictorReport::Gone { id: 3 });
}
