//! An emulated GPU or KFD, a daemon and loads, in a folder of their own. All of them end with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::role::Role;
use gpreempt_wire::state::Snapshot;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take. Far more than it does, because machines are busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Between the starts of two loads.
const PACE: Duration = Duration::from_millis(10);

/// What is emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A GPU that is controlled at its own socket.
    Gpu,
    /// AMD's KFD over such a GPU.
    Kfd,
}

impl What {
    /// The options that name it: for the emulator and loads, and for the daemon.
    const fn options(self) -> [&'static str; 2] {
        match self {
            Self::Gpu => ["--socket", "--emulated"],
            Self::Kfd => ["--kfd", "--emulated-kfd"],
        }
    }
}

/// Everybody who takes part.
#[derive(Debug)]
pub(super) struct Scene {
    what: What,
    folder: PathBuf,
    programs: PathBuf,
    /// In the order in which they were started.
    children: Vec<Child>,
    daemon: u32,
    emulator: u32,
}

impl Scene {
    /// Starts an emulator with those arguments, and a daemon that schedules it. `programs` is
    /// where they are.
    pub(super) fn start(programs: &Path, name: &str, emulator: &str) -> anyhow::Result<Self> {
        Self::start_with(What::Gpu, programs, name, emulator)
    }

    /// The same with what is to be emulated.
    pub(super) fn start_with(
        what: What,
        programs: &Path,
        name: &str,
        emulator: &str,
    ) -> anyhow::Result<Self> {
        let folder = place().join(format!("gpreempt-numbers-{name}-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::write(folder.join("config.toml"), "[daemon]\nlog = \"warn\"\n")?;
        let programs = programs.to_owned();
        let children = Vec::new();
        let mut scene = Self { what, folder, programs, children, daemon: 0, emulator: 0 };
        let (gpu, [to_emulate, to_schedule]) = (scene.gpu(), what.options());
        let mut command = scene.command("gpreempt-emu");
        command.arg(to_emulate).arg(&gpu).args(emulator.split_ascii_whitespace());
        scene.emulator = scene.spawn(command)?;
        let shown = if what == What::Kfd { gpu.join("gpu") } else { gpu.clone() };
        scene.until("there is an emulator", || Ok(shown.exists()))?;
        let mut command = scene.command("gpreemptd");
        command.args(["--foreground", "--no-nvidia", "--no-amd", "--socket"]).arg(scene.socket());
        command.arg("--state").arg(scene.folder.join("state"));
        command.arg("--config").arg(scene.folder.join("config.toml"));
        command.arg(to_schedule).arg(&gpu);
        command.stderr(File::create(scene.folder.join("log"))?);
        scene.daemon = scene.spawn(command)?;
        scene.until("there is a daemon", || Ok(!scene.snapshot()?.devices.is_empty()))?;
        Ok(scene)
    }

    /// Where the emulator listens, or has its KFD.
    pub(super) fn gpu(&self) -> PathBuf {
        self.folder.join("gpu")
    }

    /// Where the daemon listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("gpreemptd.sock")
    }

    /// The daemon's process.
    pub(super) const fn daemon(&self) -> u32 {
        self.daemon
    }

    /// The emulator's process.
    pub(super) const fn emulator(&self) -> u32 {
        self.emulator
    }

    /// One of our programs, quiet.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env_remove("NOTIFY_SOCKET").env_remove("JOURNAL_STREAM");
        command.env("GPREEMPT_SOCKET", self.socket());
        command
    }

    /// Starts so many loads of one kind without end, all with the same priority.
    pub(super) fn loads(&mut self, count: u64, priority: u8, load: &str) -> anyhow::Result<()> {
        for _ in 0..count {
            let mut command = self.load(priority, load);
            command.args(["--seconds", "86400"]);
            self.spawn(command)?;
            // The emulator sends strangers away when too many of them come at once.
            std::thread::sleep(PACE);
        }
        Ok(())
    }

    fn load(&self, priority: u8, load: &str) -> Command {
        let mut command = self.command("gpreempt-emu");
        command.arg("load").args(load.split_ascii_whitespace());
        command.arg(self.what.options()[0]).arg(self.gpu()).arg("--json");
        command.env("GPREEMPT_PRIORITY", priority.to_string());
        command
    }

    /// Runs a load that ends by itself. Returns the last thing it said.
    pub(super) fn run_load(&self, priority: u8, load: &str) -> anyhow::Result<Value> {
        let mut command = self.load(priority, load);
        let output = command.stdout(Stdio::piped()).output()?;
        if !output.status.success() {
            bail!("the load `{load}` ended with {}", output.status);
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let last =
            said.lines().last().with_context(|| format!("the load `{load}` said nothing"))?;
        Ok(serde_json::from_str(last)?)
    }

    fn spawn(&mut self, mut command: Command) -> anyhow::Result<u32> {
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let pid = child.id();
        self.children.push(child);
        Ok(pid)
    }

    /// A connection to the daemon.
    pub(super) fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.socket())
    }

    /// What the daemon knows.
    pub(super) fn snapshot(&self) -> anyhow::Result<Snapshot> {
        Ok(Snapshot::from_json(&self.connect()?.snapshot()?)?)
    }

    /// Waits until so many queues are scheduled.
    pub(super) fn until_queues(&self, wanted: usize) -> anyhow::Result<()> {
        self.until(&format!("{wanted} queues are scheduled"), || {
            let tasks = self.snapshot()?.tasks;
            let scheduled = tasks.iter().filter(|task| task.priority.is_some());
            Ok(scheduled.map(|task| task.queues.len()).sum::<usize>() >= wanted)
        })
    }

    /// Waits until something is so.
    fn until(&self, what: &str, is_so: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = is_so();
            if matches!(found, Ok(true)) {
                return Ok(());
            }
            if Instant::now() > end {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                bail!("in vain: {what} ({found:?}); the daemon said: {log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends everybody in good order. Returns a sentence for each who did not end well: a load
    /// whose kernels did not run exactly once says so with its exit code.
    pub(super) fn end(mut self) -> anyhow::Result<Vec<String>> {
        let mut complaints = Vec::new();
        let mut children = std::mem::take(&mut self.children);
        let core = children.drain(..2).collect::<Vec<_>>();
        for child in &children {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        // Then the daemon and the emulator, who have nothing to do any more.
        for mut child in children.into_iter().chain(core.into_iter().rev()) {
            let pid = child.id();
            if pid == self.daemon || pid == self.emulator {
                let _ = kill_process(Pid::from_child(&child), Signal::TERM);
            }
            let status = child.wait()?;
            if !status.success() {
                complaints.push(format!("process {pid} ended with {status}"));
            }
        }
        Ok(complaints)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A connection to the daemon at that socket.
pub(super) fn connect(socket: &Path) -> anyhow::Result<Client> {
    let options = ClientOptions {
        paths: vec![socket.to_owned()],
        timeout: PATIENCE,
        ..ClientOptions::new(Role::Command, "service-numbers")
    };
    Ok(Client::connect(&options)?)
}

/// In memory where there is such a place, as the daemon's own folder in `/run` is.
fn place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}
