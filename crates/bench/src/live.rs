//! The live demonstration (`gpreempt demo --live`): an online and an offline program, as real
//! processes on the emulated GPU, without and with gpreempt in one run.
//!
//! Everything is in one temporary folder, needs no rights, and ends with the run, however that
//! ends: the processes end with this one, the daemon after it has restored all settings.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::emulator::{QueueInfo, UsageInfo};
use rustix::process::Signal;
use serde::Serialize;
use tempfile::TempDir;

use crate::child::{Child, temp_folder};
use crate::daemon_process::DaemonProcess;
use crate::lines::{self, Final, Line};
use crate::nvidia::{ParentDeath, Programs, found};

/// How long a program may take to start or to end.
const LIMIT: Duration = Duration::from_secs(60);
/// How often the progress is shown and the end of the online program is checked.
const STEP: Duration = Duration::from_millis(100);
/// A small device: loads of few work-groups fill it, and emulating it costs little.
const UNITS: &str = "4";
const GROUPS: &str = "8";
/// The offline program has the low priority that every process without a rule gets here.
const CONFIG: &str = "[scheduler]\ndefault_priority = 2\n";
const OFFLINE: [&str; 5] = ["be", "--kernel-us", "8000", "--depth", "2"];
/// Requests of 1.5 ms: five kernels with pauses, in which the offline program gets the GPU.
const ONLINE: [&str; 7] = ["lc", "--kernels", "5", "--kernel-us", "200", "--gap-us", "100"];
const EVERY_US: &str = "50000";
/// The first requests of a phase run but do not count.
const WARMUP_MS: &str = "500";
/// The offline program would run this much longer than the phases, which end it.
const MARGIN_SECONDS: u64 = 600;

#[derive(Debug)]
pub struct LiveDemo {
    programs: Programs,
    folder: TempDir,
    stop: Arc<AtomicBool>,
}

/// What the run measured.
#[derive(Clone, Debug, Serialize)]
pub struct LiveResults {
    /// The emulated device.
    pub device: String,
    /// How long each phase took.
    pub seconds: u64,
    pub phases: Vec<Phase>,
    /// Whether every kernel of both programs ran exactly once.
    pub exact: bool,
}

/// One way of sharing the GPU.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// `alone`, `without` or `with`.
    pub name: &'static str,
    pub title: &'static str,
    pub online: Latency,
    /// The offline program; none while the online program is alone.
    pub offline: Option<Offline>,
}

/// Latencies of requests in microseconds, counted from when they were due.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Offline {
    pub pid: u32,
    pub kernels_per_s: f64,
    /// How often the device saved it in the middle of a kernel.
    pub preemptions: u64,
}

const ALONE: (&str, &str) = ("alone", "the online program has the GPU to itself");
const WITHOUT: (&str, &str) = ("without", "both programs, scheduled by the driver alone");
const WITH: (&str, &str) = ("with", "both, and gpreempt: online at priority 12, offline at 2");

impl LiveDemo {
    /// A demonstration with a new folder for its logs and sockets.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(stop: Arc<AtomicBool>) -> Result<Self, String> {
        Ok(Self { programs: Programs::find(), folder: temp_folder("live")?, stop })
    }

    /// The programs that are missing, each in one line.
    pub fn missing(&self) -> Vec<String> {
        self.programs.missing_own()
    }

    /// Runs all phases of that many seconds on that model of a device. `tell` gets what happens and
    /// the part of the phases that is over, in thousandths.
    ///
    /// # Errors
    /// If a program fails, or the run is stopped.
    pub fn run(
        &self,
        model: &str,
        seconds: u64,
        tell: &mut dyn FnMut(&str, u64),
    ) -> Result<LiveResults, String> {
        tell("starting the emulated GPU", 0);
        let mut stage = Stage { demo: self, seconds, tell, done: 0, exact: true, online: None };
        let mut emulator = stage.emulator(model)?;
        let mut daemon = None;
        let mut offline = None;
        let result = stage.phases(model, &mut offline, &mut daemon);
        // In this order, whatever happened: the daemon restores settings on the emulated GPU.
        drop(stage.online.take());
        drop(offline);
        let daemon = daemon.map_or(Ok(()), DaemonProcess::end);
        let emulator = emulator.end(Signal::TERM);
        let results = result?;
        daemon.and(emulator).map(|()| results)
    }
}

/// A run in progress.
struct Stage<'a> {
    demo: &'a LiveDemo,
    seconds: u64,
    tell: &'a mut dyn FnMut(&str, u64),
    /// Finished phases.
    done: u64,
    exact: bool,
    /// The running online program. It is killed when this is dropped.
    online: Option<Child>,
}

/// The phases of a run.
const PHASES: u64 = 3;

impl Stage<'_> {
    fn phases(
        &mut self,
        model: &str,
        offline: &mut Option<Child>,
        daemon: &mut Option<DaemonProcess>,
    ) -> Result<LiveResults, String> {
        let mut phases = vec![self.phase(ALONE, None, None)?];
        let child = offline.insert(self.offline()?);
        phases.push(self.phase(WITHOUT, Some(child.pid()), None)?);
        let arguments = ["--no-nvidia", "--no-amd", "--emulated", &self.gpu()];
        let LiveDemo { programs, folder, stop } = self.demo;
        let started =
            DaemonProcess::start(programs, folder.path(), "state", CONFIG, &arguments, stop)?;
        let service = daemon.insert(started);
        phases.push(self.phase(WITH, Some(child.pid()), Some(service))?);
        child.end(Signal::TERM)?;
        child.wait(LIMIT, stop)?;
        self.check(lines::last(&child.output()).as_ref());
        let (device, seconds) = (model.to_owned(), self.seconds);
        Ok(LiveResults { device, seconds, phases, exact: self.exact })
    }

    fn gpu(&self) -> String {
        self.demo.folder.path().join("gpu").display().to_string()
    }

    fn emulator(&self, model: &str) -> Result<Child, String> {
        let LiveDemo { programs, folder, stop } = self.demo;
        let mut command = Command::new(found(&programs.emulator, "gpreempt-emu")?);
        command.arg("--socket").arg(self.gpu());
        command.args(["--model", model, "--compute-units", UNITS]);
        let mut command = programs.with_parent(ParentDeath::Kill, command);
        let log = folder.path().join("emulator");
        let mut emulator = Child::start("gpreempt-emu", &mut command, log)?;
        let gpu = self.gpu();
        emulator.wait_for("listening", |_| Path::new(&gpu).exists(), LIMIT, stop)?;
        Ok(emulator)
    }

    fn offline(&self) -> Result<Child, String> {
        let LiveDemo { programs, folder, stop } = self.demo;
        let mut command = Command::new(found(&programs.load, "gpreempt-load")?);
        let seconds = self.seconds * PHASES + MARGIN_SECONDS;
        self.add_load(&mut command, &OFFLINE, seconds);
        let mut command = programs.with_parent(ParentDeath::Kill, command);
        let log = folder.path().join("offline");
        let mut child = Child::start("the offline program", &mut command, log)?;
        let is_ready = |said: &str| lines::of(said).any(|line| matches!(line, Line::Ready { .. }));
        child.wait_for("ready", is_ready, LIMIT, stop)?;
        Ok(child)
    }

    fn add_load(&self, command: &mut Command, words: &[&str], seconds: u64) {
        command.args(words).arg("--socket").arg(self.gpu());
        command.args(["--groups", GROUPS, "--seconds", &seconds.to_string(), "--json"]);
    }

    /// Runs the online program, under the daemon if there is one.
    fn phase(
        &mut self,
        (name, title): (&'static str, &'static str),
        offline: Option<u32>,
        daemon: Option<&mut DaemonProcess>,
    ) -> Result<Phase, String> {
        let LiveDemo { programs, folder, .. } = self.demo;
        let load = found(&programs.load, "gpreempt-load")?;
        let mut command = match &daemon {
            None => Command::new(load),
            Some(daemon) => {
                let mut command = Command::new(found(&programs.gpreempt, "gpreempt")?);
                command.args(["run", "-p", "12", "--"]).arg(load);
                daemon.add_client(&mut command);
                command
            }
        };
        self.add_load(&mut command, &ONLINE, self.seconds);
        command.args(["--every-us", EVERY_US, "--warmup-ms", WARMUP_MS]);
        let mut command = programs.with_parent(ParentDeath::Kill, command);
        let before = offline.map(|pid| self.usage(pid)).transpose()?;
        let begin = Instant::now();
        let log = folder.path().join(format!("online-{name}"));
        self.online = Some(Child::start("the online program", &mut command, log)?);
        let last = self.until_final(title)?;
        let seconds = begin.elapsed().as_secs_f64();
        let after = offline.map(|pid| self.usage(pid)).transpose()?;
        self.online = None;
        self.done += 1;
        self.check(Some(&last));
        let offline = offline.zip(before.zip(after)).map(|(pid, (before, after))| Offline {
            pid,
            // CAST: far below what a float counts exactly.
            kernels_per_s: after.completed.saturating_sub(before.completed) as f64 / seconds,
            preemptions: u64::from(after.preemptions.saturating_sub(before.preemptions)),
        });
        let latency = last.latency_us.unwrap_or_default();
        let (p50_us, p99_us, max_us) = (latency.p50, latency.p99, latency.max);
        Ok(Phase { name, title, online: Latency { p50_us, p99_us, max_us }, offline })
    }

    /// Waits for the result of the online program, which runs as long as the phase.
    fn until_final(&mut self, title: &str) -> Result<Final, String> {
        let begin = Instant::now();
        let length = Duration::from_secs(self.seconds);
        let Some(online) = &mut self.online else { return Err("nothing runs".to_owned()) };
        loop {
            // In this order: what it prints last is complete when it has ended.
            let gone = online.gone();
            if let Some(last) = lines::last(&online.output()) {
                return Ok(last);
            }
            if let Some(failure) = gone {
                return Err(failure);
            }
            // ORDERING: an independent flag.
            if self.demo.stop.load(Ordering::Relaxed) {
                return Err("stopped".to_owned());
            }
            if begin.elapsed() > length + LIMIT {
                return Err(online.failure("did not end in time"));
            }
            let part = begin.elapsed().as_millis().min(length.as_millis()) * 1_000;
            let part = u64::try_from(part / length.as_millis().max(1)).unwrap_or(0);
            (self.tell)(title, (self.done * 1_000 + part) / PHASES);
            std::thread::sleep(STEP);
        }
    }

    /// What the offline program has done so far, as the device counts it.
    fn usage(&self, pid: u32) -> Result<UsageInfo, String> {
        let failed = |error| format!("the emulated GPU does not answer: {error}");
        let mut control =
            Control::connect(Path::new(&self.gpu()), Options::default()).map_err(failed)?;
        let listing = control.list().map_err(failed)?;
        let task = listing.tasks.iter().find(|task| task.pid == pid);
        let own = |queue: &&QueueInfo| task.is_some_and(|task| queue.task == task.task);
        let queue = listing.queues.iter().find(own);
        let queue = queue.ok_or("the offline program has no queue on the emulated GPU")?;
        control.usage(queue.queue).map_err(failed)
    }

    /// Remembers whether a program proved that each of its kernels ran exactly once.
    fn check(&mut self, last: Option<&Final>) {
        let exactness = last.and_then(|last| last.exactness.as_ref());
        self.exact &= exactness.is_some_and(|exactness| exactness.result == "pass");
    }
}
