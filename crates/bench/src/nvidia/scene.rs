//! The processes of one measurement: all get ready, then all begin.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::arguments::{Occasion, of_load, of_torch, shape};
use super::mode::Mode;
use super::mps::Mps;
use super::programs::there;
use super::steer::Daemon;
use super::{Nvidia, arguments};
use crate::child::Child;
use crate::lines::{self, Line};
use crate::plan::Step;
use crate::results::Role;
use crate::suite::{Arrivals, Load, Work, bursty};

/// How long a load has to get ready: the driver compiles its kernels.
const READY: Duration = Duration::from_secs(90);
/// Time for ends and beginnings, beyond the measurement itself.
const MARGIN_SECONDS: u64 = 25;
/// The PyTorch program.
const TORCH: &str = include_str!("../../torch/load.py");

/// A load and its process.
#[derive(Debug)]
pub(super) struct Actor<'s> {
    pub(super) load: &'s Load,
    pub(super) child: Child,
    /// Where it writes its requests.
    pub(super) raw: PathBuf,
    /// Where it writes moments inside its kernels.
    pub(super) beats: PathBuf,
}

/// Everything that runs for one measurement. What is ended first is named first.
#[derive(Debug)]
pub(super) struct Scene<'s> {
    pub(super) actors: Vec<Actor<'s>>,
    pub(super) daemon: Option<Daemon>,
    /// The server outlives its clients.
    _mps: Option<Mps>,
    pub(super) folder: PathBuf,
}

/// Where the file is that begins a role.
fn go_file(folder: &Path, role: Role) -> PathBuf {
    folder.join(if role == Role::Lc { "go-lc" } else { "go-be" })
}

impl Nvidia {
    /// Finds out how much the kernels of these loads must do, each with nobody beside.
    pub(super) fn calibrate(&mut self, loads: &[&Load]) -> Result<(), String> {
        for load in loads {
            let has_kernel = matches!(load.work, Work::Kernels | Work::Counter | Work::Endless);
            let words = shape(load);
            let key = words.join(" ");
            if !has_kernel || self.iterations.contains_key(&key) {
                continue;
            }
            let mut command = Command::new(there(&self.programs.load, "gpreempt-load")?);
            let nowhere = self.scratch.join("never");
            command.args(&words).args(["--seconds", "1", "--json", "--wait-file"]).arg(nowhere);
            let log = self.scratch.join("calibration");
            let mut child = Child::start("a calibration", &mut command, log)?;
            child.wait_for("ready", is_ready, READY, &self.stop)?;
            let found = lines::of(&child.said()).find_map(|line| match line {
                Line::Ready { kernel } => kernel.and_then(|kernel| kernel.iterations),
                Line::Rate { .. } | Line::Final(_) | Line::Holds { .. } | Line::Attached { .. } => {
                    None
                }
            });
            child.end(Signal::TERM)?;
            let found = found.ok_or("a load did not say what its kernel does")?;
            self.iterations.insert(key, found);
        }
        Ok(())
    }

    /// Starts these loads and waits until all are ready; none of them has begun.
    pub(super) fn scene<'s>(
        &mut self,
        step: &Step<'_>,
        mode: Mode,
        loads: &[&'s Load],
        seconds: u64,
    ) -> Result<Scene<'s>, String> {
        self.calibrate(loads)?;
        self.scenes += 1;
        let folder = self.scratch.join(format!("scene-{}", self.scenes));
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mps = match mode.uses_mps() {
            true => {
                let program = there(&self.programs.mps, "nvidia-cuda-mps-control")?;
                Some(Mps::start(program, &folder.join("mps"), &self.stop)?)
            }
            false => None,
        };
        let daemon = match mode {
            Mode::Hints => Some(Daemon::start(self, &folder, step.case.policy)?),
            Mode::Alone
            | Mode::Default
            | Mode::Mps
            | Mode::MpsPriority
            | Mode::PeerSlices
            | Mode::Slices
            | Mode::Hold => None,
        };
        let mut scene = Scene { actors: Vec::new(), daemon, _mps: mps, folder };
        for (index, load) in loads.iter().enumerate() {
            let actor = self.start(step, mode, load, index, seconds, &scene)?;
            scene.actors.push(actor);
        }
        for actor in &mut scene.actors {
            actor.child.wait_for("ready", is_ready, READY, &self.stop)?;
        }
        Ok(scene)
    }

    fn start<'s>(
        &self,
        step: &Step<'_>,
        mode: Mode,
        load: &'s Load,
        index: usize,
        seconds: u64,
        scene: &Scene<'_>,
    ) -> Result<Actor<'s>, String> {
        let file = |what: &str| scene.folder.join(format!("{what}-{index}"));
        let (raw, beats) = (file("raw"), file("beats"));
        let is_probed = step.case.probed && load.work != Work::Copies;
        let more = if load.role == Role::Be { MARGIN_SECONDS } else { 0 };
        let occasion = Occasion {
            seconds: seconds + more,
            seed: step.seed * 1_000 + index as u64,
            iterations: self.iterations.get(&shape(load).join(" ")).copied(),
            go: go_file(&scene.folder, load.role).display().to_string(),
            raw: raw.display().to_string(),
            beats: is_probed.then(|| beats.display().to_string()),
            trace: trace(load, step, index, seconds, &file("trace"))?,
            hints: mode == Mode::Hints && load.role == Role::Lc,
        };
        let mut command = self.command(load, &occasion, scene)?;
        command.envs(environment(mode, load, scene));
        let child = Child::start(&load.name, &mut command, file("log"))?;
        Ok(Actor { load, child, raw, beats })
    }

    fn command(
        &self,
        load: &Load,
        occasion: &Occasion,
        scene: &Scene<'_>,
    ) -> Result<Command, String> {
        let Work::Torch(what) = &load.work else {
            let mut command = Command::new(there(&self.programs.load, "gpreempt-load")?);
            command.args(of_load(load, occasion));
            return Ok(command);
        };
        let script = scene.folder.join("load.py");
        std::fs::write(&script, TORCH)
            .map_err(|error| format!("cannot write {}: {error}", script.display()))?;
        let mut command = Command::new(there(&self.programs.python, "python3")?);
        command.arg(script).args(of_torch(load, what, occasion));
        Ok(command)
    }
}

/// What a process finds around it.
fn environment(mode: Mode, load: &Load, scene: &Scene<'_>) -> Vec<(String, String)> {
    let mut environment = Vec::new();
    if let Some(mps) = &scene._mps {
        let below = u8::from(load.role == Role::Be);
        environment.extend(mps.client((mode == Mode::MpsPriority).then_some(below)));
    }
    if let Some(daemon) = &scene.daemon {
        environment.extend(daemon.environment.iter().cloned());
    }
    environment
}

/// The file with the times of bursty requests.
fn trace(
    load: &Load,
    step: &Step<'_>,
    index: usize,
    seconds: u64,
    path: &Path,
) -> Result<Option<String>, String> {
    let Arrivals::Bursty { mean } = load.arrivals else { return Ok(None) };
    let end = gpreempt_core::time::Duration::from_millis(seconds * 1_000 + arguments::WARMUP_MS);
    let times = bursty(mean, end, step.seed * 1_000 + index as u64);
    let text: String = times.iter().map(|time| format!("{}\n", time.as_nanos())).collect();
    std::fs::write(path, text)
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(Some(path.display().to_string()))
}

impl Scene<'_> {
    /// Lets a role begin.
    pub(super) fn go(&self, role: Role) -> Result<(), String> {
        let path = go_file(&self.folder, role);
        std::fs::write(&path, "").map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn is_ready(said: &str) -> bool {
    lines::of(said).any(|line| matches!(line, Line::Ready { .. }))
}
