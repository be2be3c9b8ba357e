//! What is measured: an emulated GPU or KFD, a daemon, loads, and programs in a terminal. All of
//! them end with the setup.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use gpreempt_stage::{
    Daemon, Emulator, EmulatorKind, Ended, LIMIT, Load, Stage, StageError, WorkFolder, wait_for,
};
use gpreempt_wire::statistics::Snapshot;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

/// Between the starts of two loads: the emulator refuses clients when too many come at once.
const PACE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Setup {
    // Dropped in this order.
    loads: Vec<Load>,
    pub(super) daemon: Daemon,
    pub(super) emulator: Emulator,
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

    /// A program of the project without input and output.
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

    /// Asks all processes to end. Returns a sentence for each that did not end well: a load
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

#[derive(Debug)]
pub(super) struct Terminal {
    child: Child,
}

impl Terminal {
    /// Starts a program in a terminal of 80 columns and 24 lines.
    pub(super) fn open(mut command: Command) -> anyhow::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).context("there is no terminal")?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        tcsetwinsize(&ours, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
        command.env("TERM", "xterm").stdin(Stdio::from(theirs.try_clone()?));
        command.stdout(Stdio::from(theirs)).stderr(Stdio::inherit());
        let child = command.spawn().context("cannot start the program in a terminal")?;
        // Without a reader the program would block when it draws. The thread ends with its input.
        let mut ours = File::from(ours);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while ours.read(&mut bytes).is_ok_and(|length| length > 0) {}
        });
        Ok(Self { child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
