//! An emulated GPU, or an emulated AMD driver over one, as a process.

use std::path::{Path, PathBuf};
use std::process::Command;

use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::emulator::{QueueInfo, TaskInfo};

use crate::error::StageError;
use crate::load::Load;
use crate::process::Process;
use crate::stage::Stage;
use crate::wait::LIMIT;

/// What is emulated.
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
    /// What is emulated.
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
    ///
    /// # Errors
    /// If the program is not there and cannot be built.
    pub fn command(&self, stage: &Stage) -> Result<Command, StageError> {
        let mut command = stage.command("gpreempt-emu")?;
        command.arg(self.kind.option()).arg(&self.place);
        command.args(self.arguments.split_ascii_whitespace());
        Ok(command)
    }

    /// Adds the arguments of a load on it to a command: `load KIND …`, as `gpreempt-emu` takes
    /// them. `load` begins with the kind of the load.
    pub fn add_load(&self, command: &mut Command, load: &str) {
        let mut words = load.split_ascii_whitespace();
        command.arg("load").args(words.next()).arg("--json").arg(self.kind.option());
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
    ///
    /// # Errors
    /// If it does not listen in time.
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
    ///
    /// # Errors
    /// If it had ended already, or if the other one does not listen in time.
    pub fn replace(&mut self) -> Result<(), StageError> {
        self.process.kill_and_wait()?;
        self.process = Self::spawn(self.process.stage(), &self.spec)?;
        Ok(())
    }

    /// Its pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The process.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
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
    ///
    /// # Errors
    /// If it does not answer.
    pub fn control(&self) -> Result<Control, StageError> {
        self.control_with(Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn control_with(&self, options: Options) -> Result<Control, StageError> {
        Ok(Control::connect(&self.socket(), options)?)
    }

    /// The queues of a process, with what the emulator knows of the process.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn queues(&self, pid: u32) -> Result<Vec<(TaskInfo, QueueInfo)>, StageError> {
        let listing = self.control()?.list()?;
        let task_of = |queue: &QueueInfo| {
            listing.tasks.iter().find(|task| task.pid == pid && task.task == queue.task)
        };
        let queues = listing.queues.iter();
        Ok(queues.filter_map(|queue| task_of(queue).map(|task| (*task, *queue))).collect())
    }

    /// Whether any queue of a process is stopped.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    #[track_caller]
    #[expect(clippy::expect_used, reason = "a test whose emulator is gone has failed")]
    pub fn is_stopped(&self, pid: u32) -> bool {
        let queues = self.queues(pid).expect("an emulator that answers");
        queues.iter().any(|(_, queue)| queue.is_stopped)
    }

    /// Stops every queue of a process, as a program would that knows no daemon.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn stop_all(&self, pid: u32) -> Result<(), StageError> {
        let mut control = self.control()?;
        for (_, queue) in self.queues(pid)? {
            control.stop(queue.queue)?;
        }
        Ok(())
    }

    /// Asserts that it runs and answers.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    #[expect(clippy::expect_used, reason = "a test whose emulator is gone has failed")]
    pub fn assert_alive(&mut self) {
        let ended = self.process.end().expect("the state of a process");
        assert!(ended.is_none(), "the emulator ended: {ended:?}");
        self.control().and_then(|mut control| Ok(control.list()?)).expect("a list of queues");
    }

    /// Starts a load and waits until it is ready. `arguments` begin with the kind of the load.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub fn load(&self, arguments: &str) -> Result<Load, StageError> {
        self.load_with(arguments, &[])
    }

    /// The same for a load whose environment asks for a priority.
    ///
    /// # Errors
    /// If it is not ready in time.
    pub fn load_at(&self, priority: u8, arguments: &str) -> Result<Load, StageError> {
        self.load_with(arguments, &[("GPREEMPT_PRIORITY", &priority.to_string())])
    }

    fn load_with(&self, arguments: &str, variables: &[(&str, &str)]) -> Result<Load, StageError> {
        let mut load = self.spawn_load(arguments, variables)?;
        load.wait_until_ready()?;
        Ok(load)
    }

    /// Starts a load without waiting for anything.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn_load(
        &self,
        arguments: &str,
        variables: &[(&str, &str)],
    ) -> Result<Load, StageError> {
        let stage = self.process.stage();
        let mut command = stage.command("gpreempt-emu")?;
        self.spec.add_load(&mut command, arguments);
        command.envs(variables.iter().copied());
        Ok(Load::new(stage.start("the load", command)?))
    }
}
