//! A folder, the programs that run in it with a clean environment, and assertions about
//! `gpreempt` there.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::daemon::DaemonSpec;
use crate::emulator::{Emulator, EmulatorKind, EmulatorSpec};
use crate::error::StageError;
use crate::folder::WorkFolder;
use crate::process::Process;
use crate::programs::program;

/// A temporary folder in which programs of this repository run. Cheap to clone; the folder is
/// removed with the last clone, so after every process that was started in it.
#[derive(Clone, Debug)]
pub struct Stage(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folder: WorkFolder,
    /// Where the programs are, if the caller has built them itself.
    programs: Option<PathBuf>,
    /// How many processes were started: their files are numbered.
    started: AtomicU64,
}

impl Stage {
    /// A stage with a new folder, for the programs that [`program`] finds.
    pub fn new(label: &str) -> Result<Self, StageError> {
        Ok(Self::with(WorkFolder::new(label)?, None))
    }

    /// A stage in `folder`, for the programs in another folder.
    #[must_use]
    pub fn with_programs(folder: WorkFolder, programs: &Path) -> Self {
        Self::with(folder, Some(programs.to_owned()))
    }

    fn with(folder: WorkFolder, programs: Option<PathBuf>) -> Self {
        Self(Arc::new(Shared { folder, programs, started: AtomicU64::new(0) }))
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        self.0.folder.root()
    }

    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.folder.path(name)
    }

    /// The names of everything in the folder, sorted; without what processes printed.
    pub fn names(&self) -> Result<Vec<String>, StageError> {
        let mut names = self.0.folder.names()?;
        names.retain(|name| name != "printed");
        Ok(names)
    }

    /// Writes a file of the folder. Returns its path.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<PathBuf, StageError> {
        let path = self.path(name);
        fs::write(&path, text).map_err(StageError::file(&path))?;
        Ok(path)
    }

    /// Where the daemon of this stage listens, or a private session in its place.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("gpreemptd.sock")
    }

    /// Where the journal is.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Where the daemon's configuration is.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.path("config.toml")
    }

    /// Where a program of this repository is.
    pub fn program(&self, name: &str) -> Result<PathBuf, StageError> {
        match &self.0.programs {
            Some(folder) => Ok(folder.join(name)),
            None => program(name),
        }
    }

    /// A program of this repository as a command, in this folder, with a clean environment.
    pub fn command(&self, name: &str) -> Result<Command, StageError> {
        let mut command = Command::new(self.program(name)?);
        self.clean(&mut command);
        Ok(command)
    }

    /// Gives a command this folder and a clean environment: no `GPREEMPT_*` variable of the caller,
    /// nothing of systemd, and the socket and state folder of this stage.
    pub fn clean(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let is_ours = name.to_str().is_some_and(|name| name.starts_with("GPREEMPT_"));
            if is_ours || name == "NOTIFY_SOCKET" || name == "JOURNAL_STREAM" {
                command.env_remove(name);
            }
        }
        command.env("GPREEMPT_STATE", self.state()).env("GPREEMPT_SOCKET", self.socket());
        command.current_dir(self.root());
    }

    /// Starts a process. `name` says in messages what it is.
    pub fn start(&self, name: &str, command: Command) -> Result<Process, StageError> {
        // ORDERING: only that numbers differ matters.
        let number = self.0.started.fetch_add(1, Ordering::Relaxed);
        Process::start(self, name, command, &format!("{}-{number}", name.replace(' ', "-")))
    }

    /// Starts one ignored test of the running test program as a process.
    pub fn start_test(
        &self,
        test: &str,
        env: &[(&str, &dyn AsRef<OsStr>)],
    ) -> Result<Process, StageError> {
        let own = std::env::current_exe().map_err(StageError::file(test))?;
        let mut command = Command::new(own);
        command
            .args(["--exact", "--ignored", "--quiet", test])
            .envs(env.iter().map(|(name, value)| (name, value.as_ref())));
        self.start(test, command)
    }

    /// Starts an emulated GPU at `gpu` in the folder. `arguments` are those of `gpreempt-emu`.
    pub fn emulator(&self, arguments: &str) -> Result<Emulator, StageError> {
        Emulator::start(self, self.emulator_spec(EmulatorKind::Gpu, "gpu", arguments))
    }

    /// Starts an emulated AMD driver in the folder `kfd` of the folder.
    pub fn kfd(&self, arguments: &str) -> Result<Emulator, StageError> {
        Emulator::start(self, self.emulator_spec(EmulatorKind::Kfd, "kfd", arguments))
    }

    /// An emulator as data: what it is, what it is called in the folder, its other arguments.
    #[must_use]
    pub fn emulator_spec(&self, kind: EmulatorKind, name: &str, arguments: &str) -> EmulatorSpec {
        EmulatorSpec { kind, place: self.path(name), arguments: arguments.to_owned() }
    }

    /// A daemon of this stage, to be configured and started.
    #[must_use]
    pub fn daemon(&self) -> DaemonSpec {
        DaemonSpec::new(self)
    }
}

/// `gpreempt` in a test: what it printed, and how it ended. What a test does not expect is a panic.
#[expect(clippy::expect_used, reason = "a test whose program does not run has failed")]
impl Stage {
    /// Writes a file of the folder. Returns its name, for a command that runs there.
    #[track_caller]
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        self.write(name, text).expect("a file that can be written");
        name.to_owned()
    }

    /// `gpreempt` with those arguments.
    #[must_use]
    #[track_caller]
    pub fn gpreempt(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("gpreempt").expect("the program gpreempt");
        command.args(arguments);
        command
    }

    /// Runs `gpreempt` to its end.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.gpreempt(arguments).output().expect("a program that can be started")
    }

    /// What `gpreempt` prints when it succeeds.
    #[track_caller]
    pub fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What `gpreempt` prints when it succeeds, as JSON.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(arguments)).expect("JSON")
    }

    /// The exit code and the one line that `gpreempt` prints when it fails.
    #[must_use]
    #[track_caller]
    pub fn failure(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed something");
        (output.status.code().expect("an exit code"), text.trim_end().to_owned())
    }
}
