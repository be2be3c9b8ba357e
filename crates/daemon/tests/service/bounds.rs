//! What a user controls is bounded: its queues, and the time that its processes take to be read.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpreempt_core::id::DeviceId;
use gpreempt_stage::{Emulator, LIMIT, Process, Stage, until};
use gpreempt_wire::emulator::client::Client as EmulatorClient;
use gpreempt_wire::queue::{QueueIds, QueueStop, StopDepth};
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::TaskState;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::contention::{process, start_daemon, start_gpu, suspend};

/// Set in a process that opens queues: how many, and the socket of the emulator.
const OPEN_QUEUES: &str = "GPREEMPT_TEST_OPEN_QUEUES";
/// The unprivileged user of every Linux system.
const UNPRIVILEGED: u32 = 65_534;

#[test]
#[ignore = "a process of the tests below"]
fn opens_queues() {
    let Ok(what) = std::env::var(OPEN_QUEUES) else { return };
    let (count, socket) = what.split_once(' ').unwrap();
    let mut client = EmulatorClient::connect(Path::new(socket), 4096).unwrap();
    let count: usize = count.parse().unwrap();
    let queues: Vec<_> = (0..count).map(|_| client.open_queue(DeviceId(0), 64).unwrap()).collect();
    println!("ready: {} queues", queues.len());
    std::thread::sleep(Duration::from_secs(3_600));
}

/// The command of a process with that many queues.
fn opener(program: &Path, emulator: &Emulator, queues: usize) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", "bounds::opens_queues", "--ignored", "--nocapture"]);
    command.env(OPEN_QUEUES, format!("{queues} {}", emulator.socket().display()));
    command
}

fn start(stage: &Stage, command: Command) -> Process {
    let mut process = stage.start("a process with queues", command).unwrap();
    let ready = |out: &str| out.contains("ready: ").then_some(());
    process.wait_for_output("that it has its queues", LIMIT, ready).unwrap();
    process
}

/// A copy of this program that every user can execute.
fn public_copy(stage: &Stage) -> PathBuf {
    let copy = stage.path("opener");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    copy
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn queues_above_the_limit_of_a_user_are_left_alone_until_there_is_room() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can be two users");
        return;
    }
    let stage = Stage::new("queue-limit").unwrap();
    let config = "[scheduler]\ndefault_priority = 3\n[daemon]\nqueues_per_user = 3\n";
    stage.write("config.toml", config).unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    open_to_all(stage.root(), 0o755);
    open_to_all(&emulator.socket(), 0o666);
    let program = public_copy(&stage);
    if Command::new(&program).arg("--list").uid(UNPRIVILEGED).output().is_err() {
        println!("SKIPPED: another user cannot run what is in the temporary stage");
        return;
    }
    let daemon = start_daemon(&stage, &emulator);
    let start_as = |uid: u32, queues: usize| {
        let mut command = opener(&program, &emulator, queues);
        command.uid(uid).gid(uid);
        start(&stage, command)
    };
    let known = |of: &Process| daemon.task(of.pid()).map_or(0, |task| task.queues.len());
    let why = |of: &Process| daemon.task(of.pid()).map(|task| task.why).unwrap_or_default();
    let has_problem = || {
        let problems = daemon.snapshot().problems;
        problems.iter().any(|problem| problem.contains("uid 65534 has more than 3 GPU queues"))
    };
    let first = start_as(UNPRIVILEGED, 2);
    until("the first process is scheduled", || known(&first) == 2);
    assert!(!has_problem());
    let second = start_as(UNPRIVILEGED, 4);
    let left = "3 of its queues are not scheduled: uid 65534 has more than 3";
    until("three queues are left alone", || why(&second).contains(left));
    assert!(known(&second) == 1 && has_problem());
    let of_root = start_as(0, 5);
    until("root has no limit", || known(&of_root) == 5);

    drop(first);
    until("there is room for two more", || known(&second) == 3);
    assert!(why(&second).contains("1 of its queues are not scheduled"));
    daemon.connect().expect_ok(&suspend(second.pid(), 60_000)).unwrap();
    let task = daemon.task(second.pid()).unwrap();
    assert_eq!((task.queues.len(), task.state), (4, TaskState::Suspended), "all of them");
    drop(second);
    until("the problem is solved", || !has_problem());
}

/// Opens 19,000 files, and becomes the program that follows.
const OPEN_FILES: &str = "for i in $(seq 19000); do exec {file}</dev/null; done; exec \"$@\"";

#[test]
fn the_open_files_of_a_process_cost_the_loop_nothing() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, ..limit };
    if limit.maximum.is_some_and(|most| most < 19_100)
        || setrlimit(Resource::Nofile, wanted).is_err()
    {
        println!("SKIPPED: a process may not have 19,000 open files here");
        return;
    }
    let stage = Stage::new("many-files").unwrap();
    stage.write("config.toml", "[scheduler]\ndefault_priority = 3\n").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    let daemon = start_daemon(&stage, &emulator);
    let own = opener(&std::env::current_exe().unwrap(), &emulator, 64);
    let mut command = Command::new("bash");
    command.args(["-c", OPEN_FILES, "bash"]).arg(own.get_program()).args(own.get_args());
    command.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let many = start(&stage, command);
    let pid = many.pid();
    assert!(std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() > 19_000);
    until("its queues are known", || daemon.queues(pid).is_ok_and(|queues| queues.len() == 64));
    let queues: Vec<u64> = daemon.queues(pid).unwrap().iter().map(|queue| queue.id).collect();
    let stop = QueueStop {
        queues: QueueIds::new(&queues).unwrap(),
        grace_us: 0,
        lease_ms: std::num::NonZeroU32::new(60_000).unwrap(),
        depth: StopDepth::Any,
    };
    let mut client = daemon.connect();
    for _ in 0..5 {
        client.expect_ok(&suspend(pid, 60_000)).unwrap();
        client.expect_ok(&Request::Resume { process: process(pid) }).unwrap();
        client.expect_ok(&Request::SuspendQueues(stop.clone())).unwrap();
    }
    // Processor time of the loop's thread: listing the files in one turn takes several times this.
    let turn_us = daemon.snapshot().daemon.turn_cpu_us_max;
    assert!(turn_us < 15_000, "one turn of the loop took {turn_us} us");
}
