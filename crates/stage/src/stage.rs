//! A folder, the programs that run in it, and their clean environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    ///
    /// # Errors
    /// If the folder cannot be made.
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

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.0.folder.root()
    }

    /// A file or folder in it.
    #[must_use]
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.folder.path(name)
    }

    /// The names of everything in the folder, sorted; without what processes printed.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>, StageError> {
        let mut names = self.0.folder.names()?;
        names.retain(|name| name != "printed");
        Ok(names)
    }

    /// Writes a file of the folder. Returns its path.
    ///
    /// # Errors
    /// If it cannot be written.
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
    ///
    /// # Errors
    /// If it is not there and cannot be built.
    pub fn program(&self, name: &str) -> Result<PathBuf, StageError> {
        match &self.0.programs {
            Some(folder) => Ok(folder.join(name)),
            None => program(name),
        }
    }

    /// A program of this repository as a command, in this folder, with a clean environment.
    ///
    /// # Errors
    /// If the program is not there and cannot be built.
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
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&self, name: &str, command: Command) -> Result<Process, StageError> {
        // ORDERING: only that numbers differ matters.
        let number = self.0.started.fetch_add(1, Ordering::Relaxed);
        Process::start(self, name, command, &format!("{}-{number}", name.replace(' ', "-")))
    }

    /// Starts an emulated GPU at `gpu` in the folder. `arguments` are those of `gpreempt-emu`.
    ///
    /// # Errors
    /// If it does not listen in time.
    pub fn emulator(&self, arguments: &str) -> Result<Emulator, StageError> {
        Emulator::start(self, self.emulator_spec(EmulatorKind::Gpu, "gpu", arguments))
    }

    /// Starts an emulated AMD driver in the folder `kfd` of the folder.
    ///
    /// # Errors
    /// If it does not listen in time.
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
