//! The examples of this crate, with `gpreemptd` and the emulated GPU as processes.

use std::path::PathBuf;
use std::process::{Command, Output};

use gpreempt_stage::{Daemon, Emulator, Load, Stage, until};

const EXAMPLES: [&str; 4] = ["follow_events", "hints", "suspend_low", "yield_to_others"];

/// An example, which cargo builds with the tests of this crate.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.exists(), "run `cargo build -p gpreempt-wire --examples` first");
    path
}

struct Machine {
    load: Load,
    daemon: Daemon,
    emulator: Emulator,
    stage: Stage,
}

impl Machine {
    fn start() -> Self {
        let stage = Stage::new("wire-examples").unwrap();
        let emulator = stage.emulator("--machine cwsr").unwrap();
        let daemon = stage.daemon().emulator(emulator.spec()).start().unwrap();
        let load = emulator.load_at(2, "be --kernel-us 3000 --seconds 3600").unwrap();
        let machine = Self { load, daemon, emulator, stage };
        until("the load is scheduled", || machine.queues().iter().any(|queue| queue.is_on));
        machine
    }

    fn queues(&self) -> Vec<gpreempt_wire::queue::QueueRecord> {
        self.daemon.queues(self.load.pid()).unwrap()
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(example(name));
        self.stage.clean(&mut command);
        command
    }
}

/// Runs an example that must succeed; its output.
fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let problem = String::from_utf8_lossy(&stderr);
    assert!(status.success() && problem.is_empty(), "{status}: {problem}");
    String::from_utf8(stdout).unwrap()
}

#[test]
fn every_example_is_run_here() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
    let mut names: Vec<String> = files.map(|file| file.display().to_string()).collect();
    names.sort();
    assert_eq!(names, EXAMPLES.map(|name| format!("{name}.rs")));
}

#[test]
fn children_inherit_the_priority_that_a_process_gave_itself() {
    let machine = Machine::start();
    let load = machine.stage.program("gpreempt-load").unwrap();
    let mut yields = machine.command("yield_to_others");
    yields.arg("5").arg(load).args(["be", "--kernel-us", "1000", "--seconds", "3600"]);
    yields.arg("--socket").arg(machine.emulator.socket());
    let mut child = yields.stdout(std::process::Stdio::null()).spawn().unwrap();
    until("it has priority 5", || {
        let queues = machine.daemon.queues(child.id()).unwrap();
        queues.iter().any(|queue| queue.priority.level() == 5)
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn without_a_daemon_the_command_runs_all_the_same() {
    let stage = Stage::new("wire-examples").unwrap();
    let mut yields = Command::new(example("yield_to_others"));
    stage.clean(&mut yields);
    let Output { status, stdout, stderr } = yields.args(["2", "echo", "ran"]).output().unwrap();
    let problem = String::from_utf8_lossy(&stderr);
    assert!(status.success() && stdout == b"ran\n", "{status}: {problem}");
    assert!(problem.starts_with("runs without a priority: gpreemptd is not running"), "{problem}");
}

#[test]
fn queues_are_suspended_until_the_example_ends() {
    let machine = Machine::start();
    let mut child = machine.command("suspend_low").args(["7", "600000"]).spawn().unwrap();
    until("it is suspended", || machine.queues().iter().all(|queue| queue.is_suspended));
    child.kill().unwrap();
    child.wait().unwrap();
    until("it runs again", || {
        machine.queues().iter().all(|queue| !queue.is_suspended && queue.is_on)
    });
    let output = succeed(machine.command("suspend_low").args(["7", "50"]));
    let pid = format!(" {} ", machine.load.pid());
    assert!(output.contains(&pid) && output.ends_with("1 queues are suspended\n"), "{output}");
}

#[test]
fn hints_and_events_arrive() {
    let machine = Machine::start();
    let mut follow = machine.command("follow_events");
    let follow = follow.arg("2").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let output = succeed(machine.command("hints").arg("2000"));
    assert!(output.starts_with("8000 hints in "), "{output}");
    machine.command("suspend_low").args(["7", "50"]).output().unwrap();
    let Output { status, stdout, .. } = follow.wait_with_output().unwrap();
    let output = String::from_utf8(stdout).unwrap();
    assert!(status.success() && output.contains(" Preempt"), "{output}");
    assert!(output.ends_with("0 events were dropped, because this program read too slowly\n"));
}
