//! The programs that a measurement starts.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where they are; none if they are not there.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// The command line.
    pub gpreempt: Option<PathBuf>,
    /// The loads.
    pub load: Option<PathBuf>,
    /// The daemon.
    pub daemon: Option<PathBuf>,
    /// The emulated GPU.
    pub emulator: Option<PathBuf>,
    /// NVIDIA's MPS.
    pub mps: Option<PathBuf>,
    /// Python.
    pub python: Option<PathBuf>,
    /// What keeps others from outliving the runner; without it nobody does.
    pub leash: Option<PathBuf>,
}

/// What becomes of a program whose runner dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leash {
    /// It is killed.
    Kill,
    /// It is asked to end, because it has something to undo.
    Ask,
    /// It quits as an MPS server does, with all that it started.
    Mps,
}

impl Programs {
    /// Ours beside the program that runs, or where the system finds programs; theirs there.
    pub(crate) fn find() -> Self {
        let own = std::env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let ours = |name: &str| first(beside.iter().chain(&places), name);
        let theirs = |name: &str| first(places.iter(), name);
        Self {
            gpreempt: ours("gpreempt"),
            load: ours("gpreempt-load"),
            daemon: ours("gpreemptd"),
            emulator: ours("gpreempt-emu"),
            mps: theirs("nvidia-cuda-mps-control"),
            python: theirs("python3"),
            leash: ours("gpreempt-load"),
        }
    }

    /// The same command for a program that must not outlive us. The kernel looks at the thread
    /// that starts it, so that has to stay as long as the runner does.
    pub(crate) fn leashed(&self, leash: Leash, command: Command) -> Command {
        let Some(program) = &self.leash else { return command };
        let mut leashed = Command::new(program);
        leashed.args(["leash", "--parent", &std::process::id().to_string()]);
        leashed.args(match leash {
            Leash::Kill => &["--end", "kill"],
            Leash::Ask => &["--end", "ask"],
            Leash::Mps => &["--end", "mps"],
        });
        leashed.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leashed.env(name, value),
                None => leashed.env_remove(name),
            };
        }
        leashed
    }
}

fn first<'a>(folders: impl Iterator<Item = &'a PathBuf>, name: &str) -> Option<PathBuf> {
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// A program that was looked for before anything started.
pub(crate) fn there<'p>(program: &'p Option<PathBuf>, name: &str) -> Result<&'p Path, String> {
    program.as_deref().ok_or_else(|| format!("{name} was not found"))
}
