//! Memory of clients, and processes that are moved to the host and back.

use std::path::Path;
use std::time::{Duration, Instant};

use gpreempt_core::id::DeviceId;
use gpreempt_core::time::Duration as Time;
use gpreempt_stage::{Emulator, Process, until, until_some};
use gpreempt_wire::emulator::checkpoints::Checkpoints;
use gpreempt_wire::emulator::client::{Client, Launch, MIX, MixedWord, Queue};
use gpreempt_wire::emulator::{CheckpointInfo, CheckpointState, EmuError, Refusal};

const GIB: u64 = 1 << 30;
const DEVICE: DeviceId = DeviceId(0);
const REGION: u32 = 4_096;
/// A device of 24 GiB that moves 20 GiB in a second, so that tests take as long as they must.
const MODEL: &str = r#"
base = "h200"
source = "the built-in h200 with faster copies"
[memory]
bytes = 25769803776
lock_ns = 200000000
checkpoint_ns = 300000000
checkpoint_bytes_per_us = 20000
restore_ns = 300000000
restore_bytes_per_us = 20000
unlock_ns = 200000000
"#;

fn emulator() -> Emulator {
    let stage = gpreempt_stage::Stage::new("emu-memory").unwrap();
    stage.write("model.toml", MODEL).unwrap();
    stage.emulator("--devices 2 --model model.toml").unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, EmuError>) -> Refusal {
    let error = result.unwrap_err();
    let refusal = if let EmuError::Refused(refusal) = &error { Some(*refusal) } else { None };
    refusal.ok_or(error).unwrap()
}

/// A client that computes, and what it should have computed.
struct Job {
    client: Client,
    queue: Queue,
    expected: MixedWord,
}

impl Job {
    fn new(socket: &Path, gib: u64) -> Self {
        let mut client = Client::connect(socket, REGION).unwrap();
        client.allocate(DEVICE, gib * GIB).unwrap();
        let queue = client.open_queue(DEVICE, 16).unwrap();
        Self { client, queue, expected: MixedWord::default() }
    }

    fn launch(&mut self, work_ns: u32) {
        let number = self.expected.next_number();
        self.expected.launch();
        let launch = Launch {
            kernel: MIX,
            groups: REGION / 32,
            waves: 1,
            region: 0,
            region_bytes: REGION,
            number,
            work_ns,
        };
        self.queue.submit(&launch).unwrap();
    }

    /// Launches a kernel and waits until it is fetched.
    fn begin(&mut self, emulator: &Emulator, work_ns: u32) {
        self.launch(work_ns);
        let page = emulator.control().unwrap().page(self.queue.id()).unwrap();
        until("the kernel is on the device", || super::has_work(page.read()));
    }

    /// Waits for everything that was launched, and compares every byte.
    fn check(&mut self) {
        let submitted = self.queue.submitted();
        assert!(self.queue.wait(submitted, Time::from_millis(20_000)).unwrap());
        let region = self.client.read(0, REGION as usize).unwrap();
        assert!(self.expected.fills(&region), "{:?}", &region[..8]);
    }
}

/// Runs in a process of its own: computes and checks until the file STOP exists.
#[test]
#[ignore = "another test starts this as a process"]
fn job_process() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let mut job = Job::new(variable("SOCKET").as_ref(), 8);
    let until = Instant::now() + Duration::from_secs(120);
    while !Path::new(&variable("STOP")).exists() && Instant::now() < until {
        job.launch(500_000);
        job.launch(500_000);
        job.check();
        std::fs::write(variable("ROUND"), job.queue.submitted().to_string()).unwrap();
    }
}

/// Runs in a process of its own: takes the steps until it is killed or one fails.
#[test]
#[ignore = "another test starts this as a process"]
fn caller_process() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let mut calls = Checkpoints::connect(variable("SOCKET").as_ref()).unwrap();
    let pid = variable("PID").parse().unwrap();
    std::fs::write(variable("STEP"), "none").unwrap();
    for step in variable("STEPS").split(' ') {
        match step {
            "lock" => calls.lock(pid, Some(Time::from_millis(5_000))),
            "checkpoint" => calls.checkpoint(pid),
            "restore" => calls.restore(pid),
            _ => calls.unlock(pid),
        }
        .unwrap();
        std::fs::write(variable("STEP"), step).unwrap();
    }
}

/// A job in a process of its own.
struct JobProcess {
    process: Process,
    folder: std::path::PathBuf,
}

impl JobProcess {
    fn start(emulator: &Emulator) -> Self {
        let folder = emulator.stage().root().to_owned();
        let (round, stop) = (folder.join("round"), folder.join("stop"));
        let _ = std::fs::remove_file(&round);
        let process = emulator
            .stage()
            .start_test(
                "memory::job_process",
                &[("SOCKET", &emulator.socket()), ("ROUND", &round), ("STOP", &stop)],
            )
            .unwrap();
        let job = Self { process, folder };
        until("the job computes", || job.round() > 0);
        job
    }

    fn round(&self) -> u64 {
        let text = std::fs::read_to_string(self.folder.join("round"));
        text.ok().and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Waits until it has computed more, asks it to end, and asserts that all was exact.
    fn finish(&mut self) {
        let before = self.round();
        until("the job continues", || self.round() > before + 4);
        std::fs::write(self.folder.join("stop"), "").unwrap();
        let ended = self.process.wait(Duration::from_secs(30)).unwrap();
        assert!(ended.status.success(), "{}{}", ended.out, ended.err);
        std::fs::remove_file(self.folder.join("stop")).unwrap();
    }
}

/// Takes a process back to running, from whatever state the driver says.
fn recover(emulator: &Emulator, pid: u32) -> Vec<CheckpointState> {
    let mut calls = Checkpoints::connect(&emulator.socket()).unwrap();
    let mut seen = Vec::new();
    let mut running_since = Instant::now();
    until("the process runs and continues to", || {
        let state = calls.state(pid).unwrap().state;
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        let result = match state {
            CheckpointState::Locked => calls.unlock(pid),
            CheckpointState::Checkpointed => calls.restore(pid),
            CheckpointState::Running | CheckpointState::Failed => Ok(()),
        };
        // A step that the killed caller began is under way, or has ended since the state was read.
        let is_late =
            |refusal| matches!(refusal, Refusal::Busy | Refusal::IsRunning | Refusal::IsLocked);
        assert!(result.is_ok() || is_late(refusal(result)));
        if state != CheckpointState::Running {
            running_since = Instant::now();
        }
        // Longer than a lock takes: during that the state is the one before.
        running_since.elapsed() > Duration::from_millis(400)
    });
    seen
}

#[test]
fn allocations_are_counted_and_refused_when_they_do_not_fit() {
    let emulator = emulator();
    let mut control = emulator.control().unwrap();
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let first = client.allocate(DEVICE, 20 * GIB).unwrap();
    let mut other = Client::connect(&emulator.socket(), 64).unwrap();
    assert_eq!(refusal(other.allocate(DEVICE, 5 * GIB)), Refusal::NoMemory);
    assert_eq!(refusal(other.allocate(DEVICE, u64::MAX)), Refusal::NoMemory);
    assert_eq!(refusal(other.allocate(DEVICE, 0)), Refusal::BadNumber);
    assert_eq!(refusal(other.allocate(DeviceId(2), 1)), Refusal::NoSuchDevice);
    assert_eq!(refusal(other.free(first)), Refusal::NoSuchAllocation);
    other.allocate(DEVICE, 4 * GIB).unwrap();
    other.allocate(DeviceId(1), 3 * GIB).unwrap();
    let usage = control.memory().unwrap();
    let devices: Vec<_> = usage.devices.iter().map(|d| (d.bytes / GIB, d.used / GIB)).collect();
    assert_eq!(devices, [(24, 24), (24, 3)]);
    let own = std::process::id();
    let processes: Vec<_> =
        usage.processes.iter().map(|p| (p.pid, p.device.0, p.device_bytes / GIB)).collect();
    assert_eq!(processes, [(own, 0, 24), (own, 1, 3)]);
    client.free(first).unwrap();
    drop(other);
    until("all of it is free", || control.memory().unwrap().processes.is_empty());
    assert_eq!(client.allocate(DEVICE, 24 * GIB).unwrap(), first + 3);
}

#[test]
fn calls_of_a_process_wait_while_it_is_out_and_its_queues_refuse_changes() {
    let emulator = emulator();
    let (own, socket) = (std::process::id(), emulator.socket());
    let mut job = Job::new(&socket, 8);
    let mut calls = Checkpoints::connect(&socket).unwrap();
    let info = |device, host, state| CheckpointInfo {
        pid: own,
        state,
        device_bytes: device * GIB,
        host_bytes: host * GIB,
    };
    assert_eq!(calls.state(own).unwrap(), info(8, 0, CheckpointState::Running));
    job.begin(&emulator, 300_000_000);
    let before = Instant::now();
    calls.lock(own, Some(Time::from_millis(5_000))).unwrap();
    assert!(before.elapsed() > Duration::from_millis(450), "it waits for the kernel");
    assert_eq!(refusal(calls.lock(own, None)), Refusal::IsLocked);
    assert_eq!(refusal(calls.restore(own)), Refusal::IsLocked);
    calls.checkpoint(own).unwrap();
    assert_eq!(calls.state(own).unwrap(), info(0, 8, CheckpointState::Checkpointed));
    assert_eq!(refusal(calls.unlock(own)), Refusal::IsCheckpointed);
    assert_eq!(refusal(calls.state(1)), Refusal::NoSuchProcess);

    // Everything that the program does now waits: kernels in the ring, calls, new connections.
    job.launch(100_000);
    let mut control = emulator.control().unwrap();
    let queue = job.queue.id();
    assert_eq!(refusal(control.stop(queue)), Refusal::IsCheckpointed);
    assert_eq!(refusal(control.park(queue)), Refusal::IsCheckpointed);
    assert_eq!(refusal(control.permit_hold(queue)), Refusal::IsCheckpointed);
    assert_eq!(
        refusal(control.set_slice(queue, Some(Time::from_millis(1)))),
        Refusal::IsCheckpointed
    );
    control.resume(queue).unwrap();
    control.unpark(queue).unwrap();
    std::thread::scope(|scope| {
        let checks = scope.spawn(|| job.check());
        let joins = scope.spawn(|| Client::connect(&socket, 64).unwrap().task());
        std::thread::sleep(Duration::from_millis(200));
        assert!(!checks.is_finished() && !joins.is_finished());
        assert_eq!(control.usage(queue).unwrap().completed, 1);
        calls.restore(own).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!checks.is_finished());
        calls.unlock(own).unwrap();
        checks.join().unwrap();
        joins.join().unwrap();
    });
    assert_eq!(calls.state(own).unwrap(), info(8, 0, CheckpointState::Running));
}

#[test]
fn an_endless_kernel_cannot_be_locked_and_continues() {
    let emulator = emulator();
    let own = std::process::id();
    let mut job = Job::new(&emulator.socket(), 8);
    let mut calls = Checkpoints::connect(&emulator.socket()).unwrap();
    job.begin(&emulator, 1_500_000_000);
    assert_eq!(refusal(calls.lock(own, Some(Time::from_millis(100)))), Refusal::NotReady);
    assert_eq!(calls.state(own).unwrap().state, CheckpointState::Running);
    job.check();
    calls.lock(own, None).unwrap();
    calls.unlock(own).unwrap();
    job.launch(100_000);
    job.check();
}

#[test]
fn loads_with_memory_stay_exact_while_they_take_turns() {
    let emulator = emulator();
    let load = |kind: &str| emulator.load(&format!("{kind} --seconds 600 --memory 16GiB"));
    let mut first = load("be --kernel-us 3000").unwrap();
    let refused = emulator.spawn_load("be --memory 16GiB", &[]).unwrap().wait().unwrap().1;
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.err.contains("the device has too little free memory"), "{}", refused.err);
    let mut calls = Checkpoints::connect(&emulator.socket()).unwrap();
    let mut out = |pid| {
        calls.lock(pid, Some(Time::from_millis(5_000))).unwrap();
        calls.checkpoint(pid).unwrap();
    };
    out(first.pid());
    let mut second = load("lc --kernels 2 --gap-us 0 --every-us 5000").unwrap();
    out(second.pid());
    for load in [&mut first, &mut second] {
        calls.restore(load.pid()).unwrap();
        calls.unlock(load.pid()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let (last, ended) = load.finish().unwrap();
        assert!(ended.status.success(), "{}", ended.err);
        assert_eq!(
            (&last["memory"]["contents"], &last["memory"]["bytes"]),
            (&"pass".into(), &(16 * GIB).into())
        );
    }
}

#[test]
fn a_restore_waits_for_room() {
    let emulator = emulator();
    let mut job = JobProcess::start(&emulator);
    let pid = job.process.pid();
    let mut calls = Checkpoints::connect(&emulator.socket()).unwrap();
    calls.lock(pid, None).unwrap();
    calls.checkpoint(pid).unwrap();
    let mut filler = Client::connect(&emulator.socket(), 64).unwrap();
    let allocation = filler.allocate(DEVICE, 17 * GIB).unwrap();
    assert_eq!(refusal(calls.restore(pid)), Refusal::NoMemory);
    assert_eq!(calls.state(pid).unwrap().state, CheckpointState::Checkpointed);
    filler.free(allocation).unwrap();
    calls.restore(pid).unwrap();
    calls.unlock(pid).unwrap();
    job.finish();
}

/// The steps before the one in which something is killed, and that step.
const KILLED_IN: [&str; 4] =
    ["lock", "lock checkpoint", "lock checkpoint restore", "lock checkpoint restore unlock"];

fn caller(emulator: &Emulator, pid: u32, steps: &str) -> Process {
    let step = emulator.stage().path("step");
    let _ = std::fs::remove_file(&step);
    let (socket, pid) = (emulator.socket(), pid.to_string());
    let caller = emulator
        .stage()
        .start_test(
            "memory::caller_process",
            &[("SOCKET", &socket), ("PID", &pid), ("STEPS", &steps), ("STEP", &step)],
        )
        .unwrap();
    // It is in the last step once the one before has ended.
    let before = steps.split(' ').rev().nth(1).unwrap_or("none");
    until("the step before", || std::fs::read_to_string(&step).is_ok_and(|done| done == before));
    std::thread::sleep(Duration::from_millis(5));
    caller
}

#[test]
fn a_killed_caller_leaves_a_state_from_which_the_process_runs_exactly() {
    let emulator = emulator();
    for steps in KILLED_IN {
        let mut job = JobProcess::start(&emulator);
        let pid = job.process.pid();
        caller(&emulator, pid, steps).kill_and_wait().unwrap();
        let seen = recover(&emulator, pid);
        // A checkpoint that was begun completes.
        let is_out = steps.ends_with("checkpoint");
        assert!(!is_out || seen.contains(&CheckpointState::Checkpointed), "{steps}: {seen:?}");
        job.finish();
    }
}

#[test]
fn a_killed_target_frees_everything_and_fails_the_call() {
    let mut emulator = emulator();
    for steps in &KILLED_IN[1..3] {
        let mut job = JobProcess::start(&emulator);
        let mut caller = caller(&emulator, job.process.pid(), steps);
        job.process.kill_and_wait().unwrap();
        let mut control = emulator.control().unwrap();
        until_some("all of it is free", || {
            (control.memory().unwrap().devices[0].used == 0).then_some(())
        });
        let ended = caller.wait(Duration::from_secs(5)).unwrap();
        let said = format!("{}{}", ended.out, ended.err);
        assert!(!ended.status.success() && said.contains("ProcessGone"), "{steps}: {said}");
    }
    emulator.assert_alive();
}
