//! An emulated GPU, or an emulated AMD driver over one, and loads on it, each as a process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::emulator::{QueueInfo, TaskInfo};
use rustix::process::Signal;
use serde_json::Value;

use crate::error::{LIMIT, StageError};
use crate::process::{Ended, Process};
use crate::stage::Stage;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulatorKind {
    /// A GPU that is controlled at its own socket.
    Gpu,
    /// AMD's KFD over such a GPU.
    Kfd,
}

impl EmulatorKind {
    /// The option that names its place to `gpreempt-emu` and to loads.
    const fn option(self) -> &'static str {
        match self {
            Self::Gpu => "--socket",
            Self::Kfd => "--kfd",
        }
    }

    /// The option that names its place to `gpreemptd`.
    const fn daemon_option(self) -> &'static str {
        match self {
            Self::Gpu => "--emulated",
            Self::Kfd => "--emulated-kfd",
        }
    }
}

/// An emulator as data: enough to start it, loads on it and a daemon for it.
#[derive(Clone, Debug)]
pub struct EmulatorSpec {
    pub kind: EmulatorKind,
    /// Its socket, or the folder of its KFD.
    pub place: PathBuf,
    /// The other arguments of `gpreempt-emu`.
    pub arguments: String,
}

impl EmulatorSpec {
    /// Where it can be controlled.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        match self.kind {
            EmulatorKind::Gpu => self.place.clone(),
            EmulatorKind::Kfd => self.place.join("gpu"),
        }
    }

    /// The command that emulates.
    pub fn command(&self, stage: &Stage) -> Result<Command, StageError> {
        let mut command = stage.command("gpreempt-emu")?;
        command.arg(self.kind.option()).arg(&self.place);
        command.args(self.arguments.split_ascii_whitespace());
        Ok(command)
    }

    /// Adds the arguments of a load on it to a command of `gpreempt-load`. `load` begins with the
    /// kind of the load.
    pub fn add_load(&self, command: &mut Command, load: &str) {
        let mut words = load.split_ascii_whitespace();
        command.args(words.next()).arg("--json").arg(self.kind.option());
        command.arg(&self.place).args(words);
    }

    /// Adds the option that has `gpreemptd` control it.
    pub fn add_to_daemon(&self, command: &mut Command) {
        command.arg(self.kind.daemon_option()).arg(&self.place);
    }
}

/// A running emulator. It is killed when this is dropped.
#[derive(Debug)]
pub struct Emulator {
    process: Process,
    spec: EmulatorSpec,
}

impl Emulator {
    /// Starts an emulator and waits until it listens.
    pub fn start(stage: &Stage, spec: EmulatorSpec) -> Result<Self, StageError> {
        let process = Self::spawn(stage, &spec)?;
        Ok(Self { process, spec })
    }

    fn spawn(stage: &Stage, spec: &EmulatorSpec) -> Result<Process, StageError> {
        let mut process = stage.start("the emulator", spec.command(stage)?)?;
        let find = |out: &str| out.starts_with("gpreempt-emu: ").then_some(());
        process.wait_for_output("what it emulates", LIMIT, find)?;
        Ok(process)
    }

    /// Kills it, and starts another one like it in the same place.
    pub fn replace(&mut self) -> Result<(), StageError> {
        self.process.kill_and_wait()?;
        self.process = Self::spawn(self.process.stage(), &self.spec)?;
        Ok(())
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The stage that it belongs to.
    #[must_use]
    pub const fn stage(&self) -> &Stage {
        self.process.stage()
    }

    /// What it is, and where.
    #[must_use]
    pub const fn spec(&self) -> &EmulatorSpec {
        &self.spec
    }

    /// Its socket, or the folder of its KFD.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.spec.place
    }

    /// Where it can be controlled.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.spec.socket()
    }

    /// A connection that controls it.
    pub fn control(&self) -> Result<Control, StageError> {
        self.control_with(Options::default())
    }

    /// The same with options.
    pub fn control_with(&self, options: Options) -> Result<Control, StageError> {
        Ok(Control::connect(&self.socket(), options)?)
    }

    /// The queues of a process, with what the emulator knows of the process.
    pub fn queues(&self, pid: u32) -> Result<Vec<(TaskInfo, QueueInfo)>, StageError> {
        let listing = self.control()?.list()?;
        let task_of = |queue: &QueueInfo| {
            listing.tasks.iter().find(|task| task.pid == pid && task.task == queue.task)
        };
        let queues = listing.queues.iter();
        Ok(queues.filter_map(|queue| task_of(queue).map(|task| (*task, *queue))).collect())
    }

    /// Whether any queue of a process is stopped.
    #[must_use]
    #[track_caller]
    #[expect(clippy::expect_used, reason = "a test whose emulator is gone has failed")]
    pub fn is_stopped(&self, pid: u32) -> bool {
        let queues = self.queues(pid).expect("an emulator that answers");
        queues.iter().any(|(_, queue)| queue.is_stopped)
    }

    /// Stops every queue of a process, as a program would that knows no daemon.
    pub fn stop_all(&self, pid: u32) -> Result<(), StageError> {
        let mut control = self.control()?;
        for (_, queue) in self.queues(pid)? {
            control.stop(queue.queue)?;
        }
        Ok(())
    }

    /// Asserts that it runs and answers.
    #[track_caller]
    #[expect(clippy::expect_used, reason = "a test whose emulator is gone has failed")]
    pub fn assert_alive(&mut self) {
        let ended = self.process.end().expect("the state of a process");
        assert!(ended.is_none(), "the emulator ended: {ended:?}");
        self.control().and_then(|mut control| Ok(control.list()?)).expect("a list of queues");
    }

    /// Starts a load and waits until it is ready. `arguments` begin with the kind of the load.
    pub fn load(&self, arguments: &str) -> Result<Load, StageError> {
        self.load_with(arguments, &[])
    }

    /// The same for a load whose environment asks for a priority.
    pub fn load_at(&self, priority: u8, arguments: &str) -> Result<Load, StageError> {
        self.load_with(arguments, &[("GPREEMPT_PRIORITY", &priority.to_string())])
    }

    fn load_with(&self, arguments: &str, variables: &[(&str, &str)]) -> Result<Load, StageError> {
        let mut load = self.spawn_load(arguments, variables)?;
        load.wait_until_ready()?;
        Ok(load)
    }

    /// Starts a load without waiting for anything.
    pub fn spawn_load(
        &self,
        arguments: &str,
        variables: &[(&str, &str)],
    ) -> Result<Load, StageError> {
        let stage = self.process.stage();
        let mut command = stage.command("gpreempt-load")?;
        self.spec.add_load(&mut command, arguments);
        command.envs(variables.iter().copied());
        Ok(Load::new(stage.start("the load", command)?))
    }
}

/// A running load. It is killed when this is dropped.
#[derive(Debug)]
pub struct Load {
    process: Process,
}

impl Load {
    pub(crate) const fn new(process: Process) -> Self {
        Self { process }
    }

    pub(crate) fn wait_until_ready(&mut self) -> Result<(), StageError> {
        // The first line, once it is whole: `{"line":"ready","pid":…}`.
        let first = |out: &str| out.split_once('\n').map(|(line, _)| line.to_owned());
        let line = self.process.wait_for_output("that it is ready", LIMIT, first)?;
        let ready: Value = serde_json::from_str(&line)?;
        if ready["line"] == "ready" && ready["pid"] == self.pid() {
            return Ok(());
        }
        let what = format!("the load says that it is ready; it said {line}");
        Err(StageError::Late { what, limit: Duration::ZERO, said: String::new() })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Asks it to end, with SIGTERM.
    pub fn ask_to_end(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Sends it SIGKILL and waits for its end.
    pub fn kill(&mut self) -> Result<(), StageError> {
        self.process.kill_and_wait()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool, StageError> {
        Ok(self.process.end()?.is_some())
    }

    /// Asks it to end and waits: the last line that it printed, and how it ended.
    pub fn finish(&mut self) -> Result<(Value, Ended), StageError> {
        self.ask_to_end();
        self.wait()
    }

    /// Asks it to end and waits. Returns how many kernels, or requests, it ran.
    pub fn finish_exact(&mut self) -> Result<u64, StageError> {
        self.ask_to_end();
        self.wait_exact()
    }

    /// Waits for its end: the last line that it printed, and how it ended.
    pub fn wait(&mut self) -> Result<(Value, Ended), StageError> {
        let ended = self.process.wait(LIMIT)?;
        let line = ended.out.lines().last().unwrap_or("null");
        Ok((serde_json::from_str(line)?, ended))
    }

    /// Waits for its end. Returns how many kernels, or requests, it ran.
    pub fn wait_exact(&mut self) -> Result<u64, StageError> {
        let (line, ended) = self.wait()?;
        let is_exact = line["line"] == "final" && line["exactness"]["result"] == "pass";
        let count = line["total"].as_u64().or_else(|| line["n"].as_u64());
        match count {
            Some(count) if is_exact && ended.status.success() => Ok(count),
            _ => Err(StageError::NotExact {
                pid: self.pid(),
                status: ended.status,
                line: line.to_string(),
                said: ended.err,
            }),
        }
    }
}
