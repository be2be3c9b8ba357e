//! What is measured: an emulated GPU or KFD, a daemon and loads. All of them end with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use gpreempt_stage::{
    Daemon, Emulator, EmulatorKind, Ended, LIMIT, Load, Stage, StageError, WorkFolder, wait_for,
};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::role::Role;
use gpreempt_wire::state::Snapshot;
use rustix::process::Signal;
use serde_json::Value;

/// Between the starts of two loads: the emulator refuses clients when too many come at once.
const PACE: Duration = Duration::from_millis(10);

/// The processes that are measured, and those that keep them busy.
#[derive(Debug)]
pub(super) struct Setup {
    // Dropped in this order.
    loads: Vec<Load>,
    daemon: Daemon,
    emulator: Emulator,
    stage: Stage,
}

impl Setup {
    /// Starts an emulator with those arguments, and a daemon that schedules it. `programs` is
    /// where they are.
    pub(super) fn start(
        kind: EmulatorKind,
        programs: &Path,
        name: &str,
        emulator: &str,
    ) -> anyhow::Result<Self> {
        let folder = WorkFolder::in_memory(&format!("numbers-{name}"))?;
        let stage = Stage::with_programs(folder, programs);
        stage.write("config.toml", "[daemon]\nlog = \"warn\"\n")?;
        let emulator = Emulator::start(&stage, stage.emulator_spec(kind, "gpu", emulator))?;
        let daemon = stage.daemon().emulator(emulator.spec()).spawn()?;
        let setup = Self { loads: Vec::new(), daemon, emulator, stage };
        setup.until("the daemon has a device", |snapshot| !snapshot.devices.is_empty())?;
        Ok(setup)
    }

    /// Where the emulator listens, or has its KFD.
    pub(super) fn gpu(&self) -> PathBuf {
        self.emulator.place().to_owned()
    }

    /// Where the daemon listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.stage.socket()
    }

    /// The daemon's process.
    pub(super) fn daemon(&self) -> u32 {
        self.daemon.pid()
    }

    /// The emulator's process.
    pub(super) fn emulator(&self) -> u32 {
        self.emulator.pid()
    }

    /// One of our programs, quiet.
    pub(super) fn command(&self, program: &str) -> anyhow::Result<Command> {
        let mut command = self.stage.command(program)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(command)
    }

    /// Starts that many loads of one kind without end, all with the same priority.
    pub(super) fn loads(&mut self, count: u64, priority: u8, load: &str) -> anyhow::Result<()> {
        for _ in 0..count {
            let load = self.load(priority, &format!("{load} --seconds 86400"))?;
            self.loads.push(load);
            std::thread::sleep(PACE);
        }
        Ok(())
    }

    fn load(&self, priority: u8, load: &str) -> anyhow::Result<Load> {
        let priority = priority.to_string();
        Ok(self.emulator.spawn_load(load, &[("GPREEMPT_PRIORITY", &priority)])?)
    }

    /// Runs a load that ends by itself. Returns the last line that it printed.
    pub(super) fn run_load(&self, priority: u8, load: &str) -> anyhow::Result<Value> {
        let (line, Ended { status, .. }) = self.load(priority, load)?.wait()?;
        if !status.success() {
            bail!("the load `{load}` ended with {status}");
        }
        if line.is_null() {
            bail!("the load `{load}` printed nothing");
        }
        Ok(line)
    }

    /// A connection to the daemon.
    pub(super) fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.socket())
    }

    /// What the daemon knows.
    pub(super) fn snapshot(&self) -> anyhow::Result<Snapshot> {
        Ok(self.daemon.try_snapshot()?)
    }

    /// Waits until that many queues are scheduled.
    pub(super) fn until_queues(&self, wanted: usize) -> anyhow::Result<()> {
        self.until(&format!("{wanted} queues are scheduled"), |snapshot| {
            let scheduled = snapshot.tasks.iter().filter(|task| task.priority.is_some());
            scheduled.map(|task| task.queues.len()).sum::<usize>() >= wanted
        })
    }

    /// Waits until the daemon answers and its snapshot is so.
    fn until(&self, what: &str, is_so: impl Fn(&Snapshot) -> bool) -> anyhow::Result<()> {
        let log = || self.daemon.log().join("\n");
        let look = || {
            let is_so = self.daemon.try_snapshot().is_ok_and(|snapshot| is_so(&snapshot));
            if !is_so {
                // Snapshots cost the daemon time that is to be measured.
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(is_so.then_some(()))
        };
        wait_for(what, LIMIT, log, look)?;
        Ok(())
    }

    /// Ends all processes in good order. Returns a sentence for each that did not end well: a load
    /// whose kernels did not run exactly once says so with its exit code.
    pub(super) fn end(mut self) -> anyhow::Result<Vec<String>> {
        let mut complaints = Vec::new();
        let mut note = |pid: u32, ended: Result<Ended, StageError>| {
            let Ended { status, .. } = ended?;
            if !status.success() {
                complaints.push(format!("process {pid} ended with {status}"));
            }
            Ok::<_, StageError>(())
        };
        for load in &self.loads {
            load.ask_to_end();
        }
        for load in &mut self.loads {
            note(load.pid(), load.process().wait(LIMIT))?;
        }
        // Then the daemon and the emulator, which nothing uses any more.
        for process in [self.daemon.process(), self.emulator.process()] {
            process.signal(Signal::TERM);
            note(process.pid(), process.wait(LIMIT))?;
        }
        Ok(complaints)
    }
}

/// A connection to the daemon at that socket.
pub(super) fn connect(socket: &Path) -> anyhow::Result<Client> {
    let options = ClientOptions {
        paths: vec![socket.to_owned()],
        timeout: LIMIT,
        ..ClientOptions::new(Role::Command, "service-numbers")
    };
    Client::connect(&options).context("the daemon does not answer")
}
