//! Emulated GPUs with loads, and commands for which they are the only GPUs of the machine.

use std::io::Read;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use gpreempt_stage::{Daemon, DaemonSpec, Emulator, Load, Stage, until};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A load that always has kernels of 4 ms in its ring.
pub(crate) const ENDLESS: &str = "be --kernel-us 4000 --depth 4 --report-ms 1000 --seconds 3600";

/// Runs commands for which an emulated GPU is the only one.
pub(crate) trait Commands {
    fn command(&self, arguments: &[&str]) -> Command;

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The output of a command that succeeds.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The exit code and the error of a command that fails.
    fn error(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    }
}

impl Commands for PrivateMachine {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.stage.gpreempt(arguments);
        command.env("GPREEMPT_EMULATED", self.emulator.place());
        command
    }
}

/// The pid of a load, as an argument.
pub(crate) fn pid(load: &Load) -> String {
    load.pid().to_string()
}

/// An emulated GPU with two endless loads that no service schedules.
pub(crate) struct PrivateMachine {
    pub(crate) low: Load,
    pub(crate) high: Load,
    pub(crate) emulator: Emulator,
    pub(crate) stage: Stage,
}

impl PrivateMachine {
    pub(crate) fn new(name: &str) -> Self {
        let stage = Stage::new(&format!("private-{name}")).unwrap();
        // One small device, which a single kernel fills.
        let arguments = "--model mi300x --machine cwsr --compute-units 1";
        let emulator = stage.emulator(arguments).unwrap();
        let (low, high) = (emulator.load(ENDLESS).unwrap(), emulator.load(ENDLESS).unwrap());
        let machine = Self { low, high, emulator, stage };
        for load in [&machine.low, &machine.high] {
            until("a load", || !machine.emulator.queues(load.pid()).unwrap().is_empty());
        }
        machine
    }

    /// An attach that gives one load a high and the other a low priority, once it has done so.
    pub(crate) fn attach(&self, more: &[&str]) -> Session {
        let (low, high) = (format!("{}:2", self.low.pid()), format!("{}:12", self.high.pid()));
        let session = self.start(&[&["attach", &low, &high, "--json"], more].concat());
        self.until_low_waits();
        session
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Session {
        let child = self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Session(child.unwrap())
    }

    pub(crate) fn until_low_waits(&self) {
        until("the low load is off", || self.is_stopped(&self.low) && !self.is_stopped(&self.high));
    }

    pub(crate) fn until_all_run(&self) {
        until("all run", || !self.is_stopped(&self.low) && !self.is_stopped(&self.high));
    }

    pub(crate) fn is_stopped(&self, load: &Load) -> bool {
        self.emulator.is_stopped(load.pid())
    }

    /// The processes that the running service knows.
    pub(crate) fn tasks(&self) -> Option<Vec<TaskSnapshot>> {
        let options = ClientOptions {
            paths: vec![self.stage.socket()],
            ..ClientOptions::new(Role::Command, "test")
        };
        let text = Client::connect(&options).ok()?.snapshot().ok()?;
        Some(Snapshot::from_json(&text).unwrap().tasks)
    }

    /// A load, as the service knows it.
    pub(crate) fn task(&self, load: &Load) -> Option<TaskSnapshot> {
        self.tasks()?.into_iter().find(|task| task.pid == load.pid())
    }

    pub(crate) fn priority(&self, load: &Load) -> Option<u8> {
        self.task(load).and_then(|task| task.priority)
    }

    /// The keeper removes the folder of a session after the command has ended.
    pub(crate) fn until_no_session_is_left(&self) {
        until("no session is left", || {
            !self.left().iter().any(|name| name.starts_with("session-"))
        });
    }

    /// No session, no lock with an owner, no socket.
    pub(crate) fn until_nothing_is_left(&self) {
        until("nothing is left", || self.left().is_empty());
        assert!(!self.stage.socket().exists());
    }

    fn left(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.stage.state()) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lock").collect()
    }

    /// Both loads end and prove that every kernel ran exactly once.
    pub(crate) fn finish(mut self) {
        self.low.finish_exact().unwrap();
        self.high.finish_exact().unwrap();
    }

    /// A daemon that controls the emulated GPU.
    pub(crate) fn daemon(&self) -> DaemonSpec {
        self.stage.daemon().emulator(self.emulator.spec())
    }

    /// Starts it, and waits until it knows both loads.
    pub(crate) fn start_daemon(&self) -> Daemon {
        let daemon = self.daemon().start().unwrap();
        until("a daemon", || self.task(&self.low).is_some() && self.task(&self.high).is_some());
        daemon
    }
}

/// A command that runs.
pub(crate) struct Session(pub(crate) Child);

impl Session {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Ends it, and returns its exit code, its lines of JSON and its errors.
    pub(crate) fn end(mut self, signal: Signal) -> (Option<i32>, Vec<Value>, String) {
        self.signal(signal);
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> (Option<i32>, Vec<Value>, String) {
        let mut out = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let mut errors = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let lines = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (self.0.wait().unwrap().code(), lines, errors)
    }

    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.0.stdout.take().unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
