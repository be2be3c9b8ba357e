//! The daemon as a process, with its configuration, socket, state and keeper.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::queue::QueueRecord;
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};
use rustix::process::Signal;

use crate::emulator::EmulatorSpec;
use crate::error::StageError;
use crate::error::{LIMIT, wait_for};
use crate::process::{Ended, Process, children, is_alive, read};
use crate::stage::Stage;

/// What a daemon is configured with where the stage has no configuration yet.
const CONFIG: &str = "[daemon]\nlog = \"debug\"\n";

/// A daemon as data: which devices it controls and how it is started.
#[derive(Clone, Debug)]
pub struct DaemonSpec {
    stage: Stage,
    emulators: Vec<EmulatorSpec>,
    arguments: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    /// The program, if it is not the one of the stage.
    program: Option<PathBuf>,
    /// A command that runs the program which follows it.
    prefix: Vec<String>,
}

impl DaemonSpec {
    pub(crate) fn new(stage: &Stage) -> Self {
        Self {
            stage: stage.clone(),
            emulators: Vec::new(),
            arguments: Vec::new(),
            variables: Vec::new(),
            program: None,
            prefix: Vec::new(),
        }
    }

    /// Has it control an emulator, which need not run yet.
    #[must_use]
    pub fn emulator(mut self, emulator: &EmulatorSpec) -> Self {
        self.emulators.push(emulator.clone());
        self
    }

    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Has it run as that file, such as a copy beside another keeper.
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Has it started by another command, which runs the program that follows its own words:
    /// `["sh", "-c", "SCRIPT; exec \"$0\" \"$@\""]`, if need be after `unshare --mount`.
    #[must_use]
    pub fn prefix(mut self, words: &[&str]) -> Self {
        self.prefix = words.iter().map(ToString::to_string).collect();
        self
    }

    /// How many files it may have open.
    #[must_use]
    pub fn files_max(self, files: u32) -> Self {
        self.prefix(&["sh", "-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")])
    }

    /// The command that runs it. It needs the stage's configuration to exist.
    pub fn command(&self) -> Result<Command, StageError> {
        let stage = &self.stage;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => stage.program("gpreemptd")?,
        };
        let mut command = match self.prefix.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        stage.clean(&mut command);
        command.args(["--foreground", "--no-nvidia", "--no-amd"]);
        command.arg("--socket").arg(stage.socket()).arg("--state").arg(stage.state());
        command.arg("--config").arg(stage.config());
        for emulator in &self.emulators {
            emulator.add_to_daemon(&mut command);
        }
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        command.args(&self.arguments).envs(variables);
        Ok(command)
    }

    /// Starts it without waiting for anything. A stage without a configuration gets one that logs
    /// everything.
    pub fn spawn(&self) -> Result<Daemon, StageError> {
        if !self.stage.config().exists() {
            self.stage.write("config.toml", CONFIG)?;
        }
        let process = self.stage.start("the daemon", self.command()?)?;
        Ok(Daemon { process })
    }

    /// Starts it and waits until it has logged that it is ready.
    pub fn start(&self) -> Result<Daemon, StageError> {
        let mut daemon = self.spawn()?;
        let process = &mut daemon.process;
        let err = process.err_file().to_owned();
        wait_for(
            "the daemon is ready",
            LIMIT,
            || read(&err),
            || {
                let ended = process.end()?;
                match (read(&err).contains("ready at"), ended) {
                    (true, _) => Ok(Some(())),
                    (false, None) => Ok(None),
                    (false, Some(Ended { status, err, .. })) => {
                        Err(StageError::Ended { name: "the daemon".to_owned(), status, said: err })
                    }
                }
            },
        )?;
        Ok(daemon)
    }
}

/// A running daemon. It is killed when this is dropped, and its keeper awaited.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
}

impl Daemon {
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.process.stage().socket()
    }

    /// How a client finds it.
    #[must_use]
    pub fn options(&self) -> ClientOptions {
        ClientOptions {
            paths: vec![self.socket()],
            timeout: LIMIT,
            ..ClientOptions::new(Role::Command, "stage")
        }
    }

    pub fn try_connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.options())
    }

    /// What it knows.
    pub fn try_snapshot(&self) -> Result<Snapshot, StageError> {
        Ok(Snapshot::from_json(&self.try_connect()?.snapshot()?)?)
    }

    /// The queues of a process that it schedules.
    pub fn queues(&self, pid: u32) -> Result<Vec<QueueRecord>, StageError> {
        let queues = self.try_connect()?.queues()?;
        Ok(queues.into_iter().filter(|queue| queue.pid == pid).collect())
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sends it SIGKILL and waits for its end. Its keeper lives on.
    pub fn kill(&mut self) -> Result<(), StageError> {
        self.process.kill_and_wait()
    }

    pub fn wait(&mut self) -> Result<ExitStatus, StageError> {
        Ok(self.process.wait(LIMIT)?.status)
    }

    /// The lines that it has logged.
    #[must_use]
    pub fn log(&self) -> Vec<String> {
        self.process.err().lines().map(str::to_owned).collect()
    }

    /// Waits until it has logged a line that contains a text.
    pub fn wait_until_logged(&self, text: &str) -> Result<(), StageError> {
        let is_there = || self.log().iter().any(|line| line.contains(text)).then_some(());
        let what = format!("the daemon logs {text:?}");
        wait_for(&what, LIMIT, || self.process.err(), || Ok(is_there()))
    }

    /// Its children that run: the keeper, and while one replaces another, both.
    #[must_use]
    pub fn children(&self) -> Vec<u32> {
        children(self.pid())
    }

    /// The keeper: the process that undoes everything when the daemon is gone.
    pub fn keeper(&self) -> Result<u32, StageError> {
        let said = || self.process.err();
        wait_for("a keeper", LIMIT, said, || Ok(children(self.pid()).first().copied()))
    }
}

/// For tests: whatever the daemon does not answer is a panic.
#[expect(clippy::expect_used, reason = "a test whose daemon does not answer has failed")]
impl Daemon {
    #[must_use]
    #[track_caller]
    pub fn connect(&self) -> Client {
        self.try_connect().expect("a daemon that answers")
    }

    /// What it knows.
    #[must_use]
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        self.try_snapshot().expect("a daemon that answers")
    }

    /// What it knows of a process, if it knows it.
    #[must_use]
    #[track_caller]
    pub fn task(&self, pid: u32) -> Option<TaskSnapshot> {
        self.snapshot().tasks.into_iter().find(|task| task.pid == pid)
    }

    /// Waits until it has logged a line that contains a text.
    #[track_caller]
    pub fn until_logged(&self, text: &str) {
        self.wait_until_logged(text).expect("a line of the log");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let keepers = children(self.pid());
        let _ = self.process.kill();
        let _ = self.process.wait(LIMIT);
        // They need the stage's folder until they are done.
        let gone = || Ok(keepers.iter().all(|keeper| !is_alive(*keeper)).then_some(()));
        let _ = wait_for("keepers end", LIMIT, String::new, gone);
        if std::thread::panicking() {
            let said = self.process.err();
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("the daemon logged:\n{said}"),
            );
        }
    }
}
