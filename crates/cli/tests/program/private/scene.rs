//! An emulated GPU with loads, and commands of the program under test beside them.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use gpreempt_emu::control::{Control, Options as ControlOptions};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::role::Role;
use gpreempt_wire::state::{Snapshot, TaskSnapshot};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::Folder;
use crate::amd::{Player, until};

/// An emulated GPU and two loads without end. Nothing schedules them yet.
pub(crate) struct Scene {
    pub(crate) low: Player,
    pub(crate) high: Player,
    _emulator: Player,
    pub(crate) folder: Folder,
}

impl Scene {
    pub(crate) fn new(name: &str) -> Self {
        let folder = Folder::new(&format!("private-{name}"));
        let emulator = Player::start("gpu", &folder.0);
        let gpu = folder.0.join("gpu");
        until("an emulator", || Control::connect(&gpu, ControlOptions::default()).is_ok());
        let (low, high) = (Player::start("load", &gpu), Player::start("load", &gpu));
        let scene = Self { low, high, _emulator: emulator, folder };
        for load in [&scene.low, &scene.high] {
            until("a load", || !scene.queues(load).is_empty());
        }
        scene
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.folder.command(arguments);
        command.env("GPREEMPT_EMULATED", self.folder.0.join("gpu"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(crate) fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn complaint(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
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

    pub(crate) fn is_stopped(&self, load: &Player) -> bool {
        self.queues(load).into_iter().any(|is_stopped| is_stopped)
    }

    pub(crate) fn queues(&self, load: &Player) -> Vec<bool> {
        let gpu = self.folder.0.join("gpu");
        let mut control = Control::connect(&gpu, ControlOptions::default()).unwrap();
        let listing = control.list().unwrap();
        let own: Vec<_> = listing.tasks.iter().filter(|task| task.pid == load.id()).collect();
        let is_own = |task| own.iter().any(|own| own.task == task);
        let queues = listing.queues.iter().filter(|queue| is_own(queue.task));
        queues.map(|queue| queue.is_stopped).collect()
    }

    /// What the service that answers now knows.
    pub(crate) fn tasks(&self) -> Option<Vec<TaskSnapshot>> {
        let options = ClientOptions {
            paths: vec![self.folder.0.join("gpreemptd.sock")],
            ..ClientOptions::new(Role::Command, "test")
        };
        let text = Client::connect(&options).ok()?.snapshot().ok()?;
        Some(Snapshot::from_json(&text).unwrap().tasks)
    }

    /// What it knows of a load.
    pub(crate) fn task(&self, load: &Player) -> Option<TaskSnapshot> {
        self.tasks()?.into_iter().find(|task| task.pid == load.id())
    }

    pub(crate) fn priority(&self, load: &Player) -> Option<u8> {
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
        assert!(!self.folder.0.join("gpreemptd.sock").exists());
    }

    fn left(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.folder.0.join("state")) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "lock").collect()
    }

    /// Both loads end and prove that every kernel ran exactly once.
    pub(crate) fn finish(self) {
        self.low.finish();
        self.high.finish();
    }

    /// A daemon: this program in that role. Its keeper is the program under test.
    pub(crate) fn daemon(&self) -> Command {
        let folder = &self.folder.0;
        let bin = folder.join("bin");
        let program = bin.join("daemon");
        if !program.exists() {
            std::fs::create_dir(&bin).unwrap();
            let own = std::env::current_exe().unwrap();
            if std::fs::hard_link(&own, &program).is_err() {
                std::fs::copy(&own, &program).unwrap();
            }
            let script =
                format!("#!/bin/sh\nexec {} keeper \"$@\"\n", env!("CARGO_BIN_EXE_gpreempt"));
            executable(&bin.join("gpreempt-keeper"), &script);
            self.folder.file("config.toml", "[daemon]\nlog = \"warn\"\n");
        }
        Player::command(&program, "daemon", folder)
    }

    pub(crate) fn start_daemon(&self) -> Player {
        let daemon = Player::spawn(&mut self.daemon());
        until("a daemon", || self.task(&self.low).is_some() && self.task(&self.high).is_some());
        daemon
    }
}

fn executable(path: &PathBuf, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
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
