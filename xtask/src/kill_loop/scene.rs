//! The folder in which everything happens.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use super::actor::Actor;

/// Short turns, so that there is often somebody stopped, and a part for everybody, so that every
/// load comes to its end.
const CONFIG: &str = "\
[daemon]
log = \"info\"

[scheduler]
interval_ms = 2

[scheduler.aging]
share_percent = 20
period_ms = 500
";

/// What a daemon may leave in its folder when it has ended in good order: locks that somebody may
/// wait for, and what people asked for processes that still live.
const LOCKS: &[&str] = &["lock", "gpreemptd.lock", "orders.json"];

/// Where everything is. It is removed with this.
#[derive(Debug)]
pub(super) struct Scene {
    folder: PathBuf,
    programs: PathBuf,
    count: Cell<u64>,
}

impl Scene {
    /// A new folder, for programs that are in another.
    pub(super) fn new(programs: &Path) -> anyhow::Result<Self> {
        let name = format!("gpreempt-kill-loop-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::create_dir(folder.join("said"))?;
        fs::write(folder.join("config.toml"), CONFIG)?;
        Ok(Self { folder, programs: programs.to_owned(), count: Cell::new(0) })
    }

    /// The folder, which every process here has in its environment.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the daemon listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("gpreemptd.sock")
    }

    /// Where the journal is.
    pub(super) fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.join("config.toml")
    }

    /// Where an emulated GPU listens.
    pub(super) fn gpu(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.gpu"))
    }

    /// A program, by name.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// One of the programs, in this scene.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.program(program));
        for (name, _) in std::env::vars_os() {
            let is_ours = name.to_str().is_some_and(|name| name.starts_with("GPREEMPT_"));
            if is_ours || name == "NOTIFY_SOCKET" || name == "JOURNAL_STREAM" {
                command.env_remove(name);
            }
        }
        command.env("GPREEMPT_STATE", self.state()).env("GPREEMPT_SOCKET", self.socket());
        command.current_dir(&self.folder);
        command
    }

    /// Starts a process.
    pub(super) fn start(&self, name: &str, command: Command) -> anyhow::Result<Actor> {
        self.count.set(self.count.get() + 1);
        let files = self.folder.join("said").join(format!("{name}-{}", self.count.get()));
        Actor::start(command, &files)
    }

    /// Files that should not be there after everything has ended in good order.
    pub(super) fn leftovers(&self) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for (folder, expected) in [
            (self.folder.clone(), &["config.toml", "said", "state", "gpreemptd.sock.lock"][..]),
            (self.folder.join("said"), &[]),
            (self.state(), LOCKS),
        ] {
            for entry in fs::read_dir(&folder)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if !expected.contains(&name.as_str()) {
                    found.push(folder.join(name).display().to_string());
                }
            }
        }
        Ok(found)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
