//! Evictions: GPU memory that moves to the host and back, and room for processes that claim it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_core::id::DeviceId;
use gpreempt_core::time::Duration as Time;
use gpreempt_stage::{Daemon, Emulator, Process, Stage, until};
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::emulator::client::{Client as Program, Launch, MIX, MixedWord};
use gpreempt_wire::process::{Process as Registered, SchedAttrChange};
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::{EvictScope, Request, Role};
use gpreempt_wire::statistics::{TaskSnapshot, TaskState};
use rustix::process::Signal;

use super::contention::{process, start_daemon, suspend};

/// Sizes are in these units: the host has to have room for what is evicted.
const UNIT: u64 = 128 << 20;
const REGION: u32 = 1_024;
/// A device of 24 units that moves 40 of them in a second, so that the tests are fast.
const MODEL: &str = r#"
base = "h200"
source = "the built-in h200 with faster copies"
[memory]
bytes = 3221225472
lock_ns = 20000000
checkpoint_ns = 100000000
checkpoint_bytes_per_us = 5000
restore_ns = 100000000
restore_bytes_per_us = 5000
unlock_ns = 20000000
"#;
/// Longer than any move here.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs in a process of its own: computes, and checks every byte, until the file STOP exists.
#[test]
#[ignore = "another test starts this as a process"]
fn job_process() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let bytes = variable("UNITS").parse::<u64>().unwrap() * UNIT;
    if let Ok(socket) = std::env::var("DAEMON") {
        let mut options = ClientOptions::new(Role::Agent, "job");
        options.paths = vec![socket.into()];
        let mut daemon = Client::connect(&options).unwrap();
        let process = Registered::SENDER;
        let change = SchedAttrChange { evictable: Some(true), ..super::contention::priority(2) };
        daemon.expect_ok(&Request::Register { process, change }).unwrap();
        let room = Request::MakeRoom { process, bytes, device: None };
        daemon.expect_ok_within(&room, Duration::from_secs(120)).unwrap();
    }
    let mut program = Program::connect(variable("SOCKET").as_ref(), REGION).unwrap();
    program.allocate(DeviceId(0), bytes).unwrap();
    let mut queue = program.open_queue(DeviceId(0), 16).unwrap();
    let mut expected = MixedWord::default();
    let until = Instant::now() + Duration::from_secs(300);
    while !Path::new(&variable("STOP")).exists() && Instant::now() < until {
        let number = expected.next_number();
        expected.launch();
        let (kernel, groups, waves, region) = (MIX, REGION / 32, 1, 0);
        let (region_bytes, work_ns) = (REGION, 300_000);
        let launch = Launch { kernel, groups, waves, region, region_bytes, number, work_ns };
        queue.submit(&launch).unwrap();
        let submitted = queue.submitted();
        assert!(queue.wait(submitted, Time::from_millis(60_000)).unwrap());
        let region = program.read(0, REGION as usize).unwrap();
        assert!(expected.fills(&region), "{:?}", &region[..8]);
        std::fs::write(variable("ROUND"), submitted.to_string()).unwrap();
    }
}

/// A job in a process of its own.
struct Job {
    process: Process,
    round: PathBuf,
    stop: PathBuf,
}

impl Job {
    /// A job of that priority and size.
    fn start(emulator: &Emulator, name: &str, priority: &str, units: u64, evictable: &str) -> Self {
        let variables: [(&str, &dyn AsRef<OsStr>); 2] =
            [("GPREEMPT_PRIORITY", &priority), ("GPREEMPT_EVICTABLE", &evictable)];
        let job = Self::start_with(emulator, name, units, &variables);
        until("the job computes", || job.round() > 0);
        job
    }

    fn start_with(
        emulator: &Emulator,
        name: &str,
        units: u64,
        variables: &[(&str, &dyn AsRef<OsStr>)],
    ) -> Self {
        let stage = emulator.stage();
        let (round, stop) =
            (stage.path(format!("{name}-round")), stage.path(format!("{name}-stop")));
        let (socket, units) = (emulator.socket(), units.to_string());
        let own: [(&str, &dyn AsRef<OsStr>); 4] =
            [("SOCKET", &socket), ("ROUND", &round), ("STOP", &stop), ("UNITS", &units)];
        let variables = [&own[..], variables].concat();
        let process = stage.start_test("memory::job_process", &variables).unwrap();
        Self { process, round, stop }
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn round(&self) -> u64 {
        let text = std::fs::read_to_string(&self.round);
        text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn until_continues(&self) {
        let before = self.round();
        until("the job continues", || self.round() > before + 2);
    }

    /// Waits until it has computed more, asks it to end, and asserts that all was exact.
    fn finish(mut self) {
        self.until_continues();
        std::fs::write(&self.stop, "").unwrap();
        let ended = self.process.wait(LIMIT).unwrap();
        assert!(ended.status.success(), "{}{}", ended.out, ended.err);
    }
}

/// A GPU of 24 units of memory, and a daemon.
struct Scene {
    daemon: Daemon,
    emulator: Emulator,
    stage: Stage,
}

impl Scene {
    fn new() -> Self {
        Self::with("")
    }

    /// With more lines of the configuration.
    fn with(config: &str) -> Self {
        let stage = Stage::new("daemon-memory").unwrap();
        let config = format!("{config}\n[daemon]\nlog = \"debug\"\n");
        stage.write("config.toml", &config).unwrap();
        stage.write("model.toml", MODEL).unwrap();
        let emulator = stage.emulator("--model model.toml").unwrap();
        let daemon = start_daemon(&stage, &emulator);
        Self { daemon, emulator, stage }
    }

    /// A job that the daemon has found, with its memory.
    fn job(&self, name: &str, priority: &str, units: u64, evictable: &str) -> Job {
        let job = Job::start(&self.emulator, name, priority, units, evictable);
        until("the daemon knows its memory", || {
            let task = self.task(&job);
            task.gpu_memory_kib.unwrap_or(0) >= units * UNIT / 1_024 && !task.gpus.is_empty()
        });
        job
    }

    fn task(&self, job: &Job) -> TaskSnapshot {
        self.daemon.task(job.pid()).unwrap_or_default()
    }

    fn state(&self, job: &Job) -> TaskState {
        self.task(job).state
    }

    fn ask(&self, request: &Request) -> Result<(), ClientError> {
        self.daemon.connect().expect_ok_within(request, LIMIT)
    }

    fn refused(&self, request: &Request, code: RefusalCode) -> String {
        let error = self.ask(request).unwrap_err();
        let ClientError::Refused(refusal) = error else { panic!("{error}") };
        assert_eq!(refusal.code, code, "{refusal}");
        refusal.to_string()
    }

    /// A process that uses no GPU yet, of that priority.
    fn claimant(&self, level: u8) -> Process {
        let mut command = Command::new("sleep");
        command.arg("300");
        let claimant = self.stage.start("claimant", command).unwrap();
        let change = super::contention::priority(level);
        self.ask(&Request::Register { process: process(claimant.pid()), change }).unwrap();
        claimant
    }

    fn used(&self) -> u64 {
        self.emulator.control().unwrap().memory().unwrap().devices[0].used / UNIT
    }

    fn until_running(&self, job: &Job) {
        until("it is scheduled again", || {
            matches!(self.state(job), TaskState::Running | TaskState::Idle)
        });
    }
}

fn evict(pid: u32, lease_ms: u32) -> Request {
    Request::Evict { process: process(pid), lease_ms, scope: EvictScope::Process }
}

fn restore(pid: u32) -> Request {
    Request::Restore { process: process(pid) }
}

fn room(claimant: &Process, units: u64) -> Request {
    let bytes = units * UNIT;
    Request::MakeRoom { process: process(claimant.pid()), bytes, device: None }
}

#[test]
fn a_process_is_evicted_and_restored_and_its_contents_are_exact() {
    let scene = Scene::new();
    let job = scene.job("job", "2", 16, "0");
    scene.ask(&evict(job.pid(), 0)).unwrap();
    let task = scene.task(&job);
    assert_eq!(
        (task.state, task.host_memory_kib),
        (TaskState::Evicted, Some(16 * UNIT / 1_024)),
        "{task:?}"
    );
    assert_eq!((task.evictions, scene.used()), (1, 0));
    let round = job.round();
    let sentence = scene.refused(&evict(job.pid(), 0), RefusalCode::CannotEvict);
    assert!(sentence.contains("is evicted already (by root)"), "{sentence}");
    assert!(job.round() <= round + 1, "it waits for its memory");
    scene.ask(&restore(job.pid())).unwrap();
    assert_eq!(scene.used(), 16);
    scene.until_running(&job);
    let sentence = scene.refused(&restore(job.pid()), RefusalCode::NotEvicted);
    assert!(sentence.ends_with("is not evicted"), "{sentence}");
    job.finish();
}

#[test]
fn a_lease_ends_and_a_suspended_process_is_suspended_again() {
    let scene = Scene::new();
    let job = scene.job("job", "2", 4, "0");
    scene.ask(&suspend(job.pid(), 600_000)).unwrap();
    assert!(scene.emulator.is_stopped(job.pid()));
    scene.ask(&evict(job.pid(), 1_000)).unwrap();
    assert!(scene.task(&job).evict_lease_ms.is_some_and(|left| left <= 1_000));
    until("its lease has ended", || scene.state(&job) == TaskState::Suspended);
    until("it is stopped", || scene.emulator.is_stopped(job.pid()));
    scene.ask(&Request::Resume { process: process(job.pid()) }).unwrap();
    job.finish();
}

#[test]
fn room_is_made_for_a_claim_and_returned_when_it_ends() {
    let scene = Scene::new();
    let low = scene.job("low", "2", 12, "1");
    let lower = scene.job("lower", "1", 8, "1");
    let mut claimant = scene.claimant(7);
    scene.ask(&room(&claimant, 10)).unwrap();
    assert_eq!(scene.state(&lower), TaskState::Evicted, "the lowest priority first");
    assert_ne!(scene.state(&low), TaskState::Evicted);
    let claims = scene.daemon.snapshot().claims;
    assert!(claims[0].is_granted && claims[0].evicts == [lower.pid()], "{claims:?}");
    let why = scene.task(&lower).evicted_why.unwrap();
    assert!(why.starts_with("to make room for sleep"), "{why}");
    let sentence = scene.refused(&restore(lower.pid()), RefusalCode::Busy);
    assert!(sentence.contains("it returns when that is over"), "{sentence}");
    claimant.kill_and_wait().unwrap();
    scene.until_running(&lower);
    lower.finish();
    low.finish();
}

#[test]
fn a_claim_that_cannot_be_met_evicts_nothing_and_says_what_is_short() {
    let scene = Scene::new();
    let low = scene.job("low", "2", 10, "1");
    let fixed = scene.job("fixed", "2", 8, "0");
    let claimant = scene.claimant(7);
    let sentence = scene.refused(&room(&claimant, 20), RefusalCode::NoRoom);
    assert!(
        sentence.contains("lacks 512 MiB: 2560 MiB are needed and 768 MiB are free"),
        "{sentence}"
    );
    assert!(sentence.contains("nothing was evicted"), "{sentence}");
    let sentence = scene.refused(&room(&claimant, 25), RefusalCode::NoRoom);
    assert!(
        sentence.contains("3200 MiB do not fit into the GPU, which has 3072 MiB"),
        "{sentence}"
    );
    let equal = scene.claimant(2);
    scene.refused(&room(&equal, 10), RefusalCode::NoRoom);
    for job in [&low, &fixed] {
        assert_eq!(scene.task(job).evictions, 0);
    }
    // A user may make a process evictable later.
    let change = SchedAttrChange { evictable: Some(true), ..SchedAttrChange::default() };
    scene.ask(&Request::Set { process: process(fixed.pid()), change }).unwrap();
    scene.ask(&room(&claimant, 20)).unwrap();
    assert_eq!(scene.used(), 0);
    // A claim of nothing ends it.
    scene.ask(&room(&claimant, 0)).unwrap();
    low.finish();
    fixed.finish();
}

#[test]
fn evicted_memory_waits_for_room_and_returns() {
    let scene = Scene::new();
    let job = scene.job("job", "2", 16, "0");
    scene.ask(&evict(job.pid(), 500)).unwrap();
    let other = scene.job("other", "2", 12, "0");
    until("it waits for room", || scene.task(&job).restore_waits.is_some());
    let waits = scene.task(&job).restore_waits.unwrap();
    assert!(waits.contains("2048 MiB are needed and 1536 MiB are free"), "{waits}");
    other.finish();
    scene.until_running(&job);
    job.finish();
}

#[test]
fn a_stopped_daemon_restores_what_it_evicted() {
    let mut scene = Scene::new();
    let job = scene.job("job", "2", 8, "0");
    scene.ask(&evict(job.pid(), 0)).unwrap();
    scene.daemon.signal(Signal::TERM);
    assert!(scene.daemon.wait().unwrap().success(), "{:?}", scene.daemon.log());
    assert_eq!(scene.used(), 8);
    job.finish();
}

#[test]
fn what_a_killed_daemon_evicted_returns_at_every_step() {
    let mut scene = Scene::new();
    let job = scene.job("job", "2", 8, "0");
    for delay_ms in [0, 60, 150, 300, 600] {
        let mut client = scene.daemon.connect();
        let request = evict(job.pid(), 0);
        let asking = std::thread::spawn(move || client.expect_ok_within(&request, LIMIT));
        std::thread::sleep(Duration::from_millis(delay_ms));
        scene.daemon.kill().unwrap();
        let _ = asking.join().unwrap();
        scene.daemon = start_daemon(&scene.stage, &scene.emulator);
        job.until_continues();
        until("it has its memory", || scene.used() == 8);
        until("it is known", || {
            let task = scene.task(&job);
            matches!(task.state, TaskState::Running | TaskState::Idle) && !task.gpus.is_empty()
        });
    }
    job.finish();
}

#[test]
fn a_restarted_daemon_adopts_what_waits_for_room() {
    let mut scene = Scene::new();
    let job = scene.job("job", "2", 16, "0");
    scene.ask(&evict(job.pid(), 0)).unwrap();
    let other = scene.job("other", "2", 12, "0");
    scene.daemon.kill().unwrap();
    scene.daemon = start_daemon(&scene.stage, &scene.emulator);
    until("the new daemon has adopted it", || scene.state(&job) == TaskState::Evicted);
    other.finish();
    scene.until_running(&job);
    job.finish();
}

/// The shortest turns that can be configured make this a slow test.
#[test]
fn jobs_that_do_not_fit_together_take_turns_which_a_claim_interrupts() {
    let scene = Scene::with("[scheduler]\nswap_turn_s = 30");
    let first = scene.job("first", "2", 16, "1");
    let socket = scene.stage.socket();
    let second = Job::start_with(&scene.emulator, "second", 16, &[("DAEMON", &socket)]);
    until("the other has its turn", || second.round() > 0);
    let task = scene.task(&first);
    let why = task.evicted_why.as_deref();
    assert_eq!((task.state, why), (TaskState::Evicted, Some("while others have their turn")));
    until("the daemon knows its memory", || {
        let task = scene.task(&second);
        task.gpu_memory_kib.unwrap_or(0) >= 16 * UNIT / 1_024 && !task.gpus.is_empty()
    });
    let claimant = scene.claimant(7);
    scene.ask(&room(&claimant, 20)).unwrap();
    assert_eq!(scene.state(&second), TaskState::Evicted);
    assert_eq!(scene.used(), 0);
    scene.ask(&room(&claimant, 0)).unwrap();
    let (rounds, both) = ([first.round(), second.round()], [&first, &second]);
    until("one of them has its turn", || {
        both.iter().zip(rounds).any(|(job, before)| job.round() > before + 2)
    });
    assert_eq!(scene.used(), 16);
}
