//! The processes of a stability run: emulator, daemon, three loads that stay, and transient loads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::Signal;

use crate::child::Child;
use crate::daemon_process::DaemonProcess;
use crate::lines::{self, Final, Line};
use crate::nvidia::{ParentDeath, Programs, found};

/// With aging: priorities change all the time, and a load that never runs could not drain and end.
const CONFIG: &str = "[scheduler]\ndefault_priority = 2\n\
                      aging = { after_ms = 950, grant_ms = 50 }\n";
const LIMIT: Duration = Duration::from_secs(60);
/// A small device: loads of few work-groups fill it, and emulating it costs little.
const UNITS: &str = "4";
const GROUPS: &str = "8";
/// The latency-critical load.
const ONLINE: &str = "online";
/// Loads would run this many seconds longer than the run, which ends them.
const MARGIN: u64 = 120;

#[derive(Debug)]
pub(super) struct Processes {
    programs: Programs,
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    pub(super) emulator: Child,
    pub(super) daemon: DaemonProcess,
    /// One online, two offline.
    loads: Vec<(&'static str, Child)>,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) failure: Option<String>,
    pub(super) last: Option<Final>,
    /// The rate lines of a best-effort load: begin of the interval, and count.
    pub(super) windows: Vec<(u64, u64)>,
}

impl Processes {
    /// Starts all processes and waits until they are ready.
    pub(super) fn start(
        programs: &Programs,
        folder: &Path,
        length: Duration,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let gpu = folder.join("gpu");
        let mut command = Command::new(found(&programs.emulator, "gpreempt-emu")?);
        command.arg("--socket").arg(&gpu).args(["--compute-units", UNITS]);
        let mut command = programs.with_parent(ParentDeath::Kill, command);
        let mut emulator = Child::start("gpreempt-emu", &mut command, folder.join("emulator"))?;
        emulator.wait_for("listening", |_| gpu.exists(), LIMIT, stop)?;

        let gpu = gpu.display().to_string();
        let arguments = ["--no-nvidia", "--no-amd", "--emulated", &gpu];
        let daemon = DaemonProcess::start(programs, folder, "state", CONFIG, &arguments, stop)?;
        let mut processes = Self {
            programs: programs.clone(),
            folder: folder.to_owned(),
            stop: Arc::clone(stop),
            emulator,
            daemon,
            loads: Vec::new(),
        };
        let seconds = (length.as_secs() + MARGIN).to_string();
        let online = ["lc", "--kernels", "10", "--kernel-us", "100", "--gap-us", "0", "--every-us"];
        let online = [&online[..], &["20000"]].concat();
        let offline = ["be", "--kernel-us", "4000", "--depth", "2", "--report-ms", "500"];
        for (name, words) in [(ONLINE, &online[..]), ("first", &offline), ("second", &offline)] {
            let child = processes.load(name, words, &seconds)?;
            processes.loads.push((name, child));
        }
        Ok(processes)
    }

    fn load(&self, name: &str, words: &[&str], seconds: &str) -> Result<Child, String> {
        let mut command = Command::new(found(&self.programs.load, "gpreempt-load")?);
        command.args(words).args(["--groups", GROUPS, "--seconds", seconds, "--json"]);
        command.arg("--socket").arg(self.folder.join("gpu"));
        let mut command = self.programs.with_parent(ParentDeath::Kill, command);
        let mut child = Child::start(name, &mut command, self.folder.join(name))?;
        let is_ready = |said: &str| lines::of(said).any(|line| matches!(line, Line::Ready { .. }));
        child.wait_for("ready", is_ready, LIMIT, &self.stop)?;
        Ok(child)
    }

    pub(super) fn transient(&self, number: u64) -> Result<Child, String> {
        let kernel_us = (500 * (1 + number % 7)).to_string();
        self.load("transient", &["be", "--depth", "2", "--kernel-us", &kernel_us], "600")
    }

    /// Gives one of the loads another priority, a level of its class.
    pub(super) fn change(&self, number: u64, level: u64) -> Result<(), String> {
        let index = usize::try_from(number).unwrap_or(0) % self.loads.len();
        let (name, child) = &self.loads[index];
        let level = if *name == ONLINE { super::CLASS + level } else { level };
        let set = self.daemon.set(&self.programs, child.pid(), &[("priority", level)]);
        set.map_err(|error| format!("{name}: {error}"))
    }

    /// Errors for processes that ended although the run did not end them.
    pub(super) fn gone(&mut self) -> Vec<String> {
        let mut all: Vec<&mut Child> = vec![&mut self.emulator, &mut self.daemon.child];
        all.extend(self.loads.iter_mut().map(|(_, child)| child));
        all.into_iter().filter_map(Child::gone).collect()
    }

    /// Ends all processes, loads first.
    pub(super) fn end(mut self) -> Vec<End> {
        let mut ends = Vec::new();
        for (_, mut child) in std::mem::take(&mut self.loads) {
            let failure = child.end(Signal::TERM).and_then(|()| child.wait(LIMIT, &NEVER)).err();
            let said = child.output();
            let windows = lines::of(&said).filter_map(|line| {
                let Line::Rate { from_ns, count, .. } = line else { return None };
                Some((from_ns, count))
            });
            let windows = windows.collect();
            ends.push(End { failure, last: lines::last(&said), windows });
        }
        for mut child in [self.daemon.child, self.emulator] {
            let failure = child.end(Signal::TERM).and_then(|()| child.wait(LIMIT, &NEVER)).err();
            ends.push(End { failure, last: None, windows: Vec::new() });
        }
        ends
    }
}

/// The end of the processes is not interrupted.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Ends a transient load, and checks its result.
pub(super) fn end_transient(mut child: Child) -> Result<(), String> {
    child.end(Signal::TERM)?;
    child.wait(LIMIT, &NEVER)?;
    let exactness = lines::last(&child.output()).and_then(|last| last.exactness);
    match exactness.is_some_and(|exactness| exactness.result == "pass") {
        true => Ok(()),
        false => Err(child.failure("did not report that every kernel ran exactly once")),
    }
}
