//! The folder of the loop, the emulators and the commands in it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use gpreempt_stage::{EmulatorKind, EmulatorSpec, Stage, StageError, WorkFolder};

use super::gpus::Kind;

/// Short turns, so that there is often a queue that is stopped, and a share for low priorities, so
/// that every load comes to its end.
const CONFIG: &str = "\
[daemon]
log = \"info\"

[scheduler]
interval_ms = 2

[scheduler.aging]
share_percent = 20
period_ms = 500
";

/// What may be in the folder after everything has ended in good order.
const REST: &[&str] = &["config.toml", "printed", "state", "gpreemptd.sock.lock"];
/// The same in the state folder: locks that a process may wait for, and what users asked for
/// processes that still live.
const REST_OF_STATE: &[&str] =
    &["lock", "gpreemptd.lock", "gpreemptd.owner", "gpreemptd.owner.new", "orders.json"];

/// Which process schedules, and owns what is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Daemon,
    /// `gpreempt attach` with the daemon's service in its own process, while no daemon runs.
    Private,
}

#[derive(Debug)]
pub(super) struct LoopSetup {
    pub(super) stage: Stage,
    pub(super) mode: Mode,
    pub(super) emulators: Vec<EmulatorSpec>,
}

impl LoopSetup {
    pub(super) fn new(programs: &Path, mode: Mode, kinds: &[Kind]) -> Result<Self, StageError> {
        let stage = Stage::with_programs(WorkFolder::new("kill-loop")?, programs);
        stage.write("config.toml", CONFIG)?;
        let emulators = kinds.iter().map(|Kind { machine, model }| {
            let arguments = format!("--machine {machine} --model {model} --compute-units 1");
            stage.emulator_spec(EmulatorKind::Gpu, &format!("{machine}.gpu"), &arguments)
        });
        Ok(Self { emulators: emulators.collect(), stage, mode })
    }

    /// The command-line program. Where no daemon is meant to run it knows the emulated GPUs, so
    /// that it can schedule them itself.
    pub(super) fn gpreempt(&self) -> Result<Command, StageError> {
        let mut command = self.stage.command("gpreempt")?;
        if self.mode == Mode::Private {
            let mut sockets = OsString::new();
            for emulator in &self.emulators {
                if !sockets.is_empty() {
                    sockets.push(":");
                }
                sockets.push(emulator.socket());
            }
            command.env("GPREEMPT_EMULATED", sockets);
        }
        Ok(command)
    }

    /// Files that should not be there after everything has ended in good order.
    pub(super) fn leftovers(&self) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        for (folder, expected) in [
            (self.stage.root().to_owned(), REST),
            (self.stage.path("printed"), &[]),
            (self.stage.state(), REST_OF_STATE),
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
