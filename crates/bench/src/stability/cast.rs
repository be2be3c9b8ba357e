//! Who takes part in a long run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::process::Signal;

use crate::child::Child;
use crate::lines::{self, Final, Line};
use crate::nvidia::{Leash, Programs, there};

/// Whoever is kept off gets a turn now and then: priorities change without end, and somebody who
/// never runs could not even leave.
const CONFIG: &str = "[scheduler]\ndefault_priority = 2\n\
                      aging = { after_ms = 950, grant_ms = 50 }\n";
const LIMIT: Duration = Duration::from_secs(60);
/// A small device: loads of few work-groups fill it, and emulating it costs little.
const UNITS: &str = "4";
const GROUPS: &str = "8";
/// The load whose latency matters.
const ONLINE: &str = "online";
/// Loads run a little longer than the run, and are asked to end.
const MARGIN: u64 = 120;

/// Everybody who stays.
#[derive(Debug)]
pub(super) struct Cast {
    programs: Programs,
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    environment: Vec<(String, String)>,
    emulator: Child,
    daemon: Child,
    /// One online, two offline.
    loads: Vec<(&'static str, Child)>,
}

/// Somebody who comes and goes.
#[derive(Debug)]
pub(super) struct Visitor {
    child: Child,
}

/// How a load ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) failure: Option<String>,
    pub(super) last: Option<Final>,
    /// Everything that best-effort work said about its rate: when a while began, and how much.
    pub(super) windows: Vec<(u64, u64)>,
}

impl Cast {
    /// Starts everybody and waits until all are ready.
    pub(super) fn start(
        programs: &Programs,
        folder: &Path,
        length: Duration,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let (gpu, socket) = (folder.join("gpu"), folder.join("gpreemptd.sock"));
        let mut command = Command::new(there(&programs.emulator, "gpreempt-emu")?);
        command.arg("--socket").arg(&gpu).args(["--compute-units", UNITS]);
        let mut command = programs.leashed(Leash::Kill, command);
        let mut emulator = Child::start("gpreempt-emu", &mut command, folder.join("emulator"))?;
        emulator.wait_for("listening", |_| gpu.exists(), LIMIT, stop)?;

        let environment = vec![
            ("GPREEMPT_STATE".to_owned(), folder.join("state").display().to_string()),
            ("GPREEMPT_SOCKET".to_owned(), socket.display().to_string()),
        ];
        let config = folder.join("config.toml");
        std::fs::write(&config, CONFIG)
            .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
        let mut command = Command::new(there(&programs.daemon, "gpreemptd")?);
        command.args(["--no-nvidia", "--no-amd", "--config"]).arg(&config);
        command.arg("--emulated").arg(&gpu).arg("--socket").arg(&socket);
        command.envs(environment.iter().cloned());
        let mut command = programs.leashed(Leash::Ask, command);
        let mut daemon = Child::start("gpreemptd", &mut command, folder.join("daemon"))?;
        daemon.wait_for("listening", |_| socket.exists(), LIMIT, stop)?;

        let mut cast = Self {
            programs: programs.clone(),
            folder: folder.to_owned(),
            stop: Arc::clone(stop),
            environment,
            emulator,
            daemon,
            loads: Vec::new(),
        };
        let seconds = (length.as_secs() + MARGIN).to_string();
        let online = ["lc", "--kernels", "10", "--kernel-us", "100", "--gap-us", "0", "--every-us"];
        let online = [&online[..], &["20000"]].concat();
        let offline = ["be", "--kernel-us", "4000", "--depth", "2", "--report-ms", "500"];
        for (name, words) in [(ONLINE, &online[..]), ("first", &offline), ("second", &offline)] {
            let child = cast.load(name, words, &seconds)?;
            cast.loads.push((name, child));
        }
        Ok(cast)
    }

    fn load(&self, name: &str, words: &[&str], seconds: &str) -> Result<Child, String> {
        let mut command = Command::new(there(&self.programs.emulator, "gpreempt-emu")?);
        command.arg("load").args(words).args(["--groups", GROUPS, "--seconds", seconds, "--json"]);
        command.arg("--socket").arg(self.folder.join("gpu"));
        let mut command = self.programs.leashed(Leash::Kill, command);
        let mut child = Child::start(name, &mut command, self.folder.join(name))?;
        let is_ready = |said: &str| lines::of(said).any(|line| matches!(line, Line::Ready { .. }));
        child.wait_for("ready", is_ready, LIMIT, &self.stop)?;
        Ok(child)
    }

    /// The next visitor.
    pub(super) fn visitor(&self, number: u64) -> Result<Visitor, String> {
        let kernel_us = (500 * (1 + number % 7)).to_string();
        let words = ["be", "--depth", "2", "--kernel-us", &kernel_us];
        Ok(Visitor { child: self.load("visitor", &words, "600")? })
    }

    /// Gives one of those who stay another priority, a level of its class.
    pub(super) fn change(&self, who: u64, level: u64) -> Result<(), String> {
        let index = usize::try_from(who).unwrap_or(0) % self.loads.len();
        let (name, child) = &self.loads[index];
        let level = if *name == ONLINE { super::CLASS + level } else { level };
        let output = Command::new(there(&self.programs.gpreempt, "gpreempt")?)
            .args(["set", &child.pid().to_string(), "-p", &level.to_string()])
            .envs(self.environment.iter().cloned())
            .output()
            .map_err(|error| format!("cannot start gpreempt: {error}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    pub(super) fn daemon_pid(&self) -> u32 {
        self.daemon.pid()
    }

    pub(super) fn emulator_pid(&self) -> u32 {
        self.emulator.pid()
    }

    /// Those who are not there any more although they should be.
    pub(super) fn gone(&mut self) -> Vec<String> {
        let mut all: Vec<&mut Child> = vec![&mut self.emulator, &mut self.daemon];
        all.extend(self.loads.iter_mut().map(|(_, child)| child));
        all.into_iter().filter_map(Child::gone).collect()
    }

    /// Asks everybody to end, loads first.
    pub(super) fn end(mut self) -> Vec<End> {
        let mut ends = Vec::new();
        for (_, mut child) in std::mem::take(&mut self.loads) {
            let failure = child.end(Signal::TERM).and_then(|()| child.wait(LIMIT, &NEVER)).err();
            let said = child.said();
            let windows = lines::of(&said).filter_map(|line| match line {
                Line::Rate { from_ns, count, .. } => Some((from_ns, count)),
                Line::Ready { .. }
                | Line::Prepared { .. }
                | Line::Final(_)
                | Line::Holds { .. }
                | Line::Attached { .. } => None,
            });
            let windows = windows.collect();
            ends.push(End { failure, last: lines::last(&said), windows });
        }
        for mut child in [self.daemon, self.emulator] {
            let failure = child.end(Signal::TERM).and_then(|()| child.wait(LIMIT, &NEVER)).err();
            ends.push(End { failure, last: None, windows: Vec::new() });
        }
        ends
    }
}

/// Nobody asks to stop while everybody is ended.
static NEVER: AtomicBool = AtomicBool::new(false);

impl Visitor {
    /// Ends it, and looks whether all it did was right.
    pub(super) fn leave(mut self) -> Result<(), String> {
        self.child.end(Signal::TERM)?;
        self.child.wait(LIMIT, &NEVER)?;
        let exactness = lines::last(&self.child.said()).and_then(|last| last.exactness);
        match exactness.is_some_and(|exactness| exactness.result == "pass") {
            true => Ok(()),
            false => Err(self.child.failure("did not prove that its work was done once")),
        }
    }
}
