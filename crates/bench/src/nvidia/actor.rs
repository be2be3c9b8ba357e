//! A load and its process, which stays for all measurements of a case.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Nvidia;
use super::arguments::{self, Start, of_load, of_torch, shape};
use super::mps;
use super::programs::{Leash, there};
use crate::child::Child;
use crate::lines::{self, Final, Line};
use crate::plan::seed_of;
use crate::results::Role;
use crate::round::{Order, Round};
use crate::suite::{Load, Work};

/// How long a load has to get ready: the driver compiles its kernels.
const READY: Duration = Duration::from_secs(90);
/// How long it has to get ready for a round.
const PREPARED: Duration = Duration::from_secs(40);
/// How long after its time a load may still be at its last request, or have work in flight.
const LATE: Duration = Duration::from_secs(60);
/// The PyTorch program.
const TORCH: &str = include_str!("../../torch/load.py");

/// A load and its process.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) load: Load,
    /// Its place among the loads of the case: part of the seed.
    index: usize,
    pub(super) child: Child,
    /// Where it writes its requests.
    raw: PathBuf,
    /// Where it writes moments inside its kernels.
    pub(super) beats: PathBuf,
    trace: PathBuf,
    /// What its kernels are, for those who come later.
    key: Option<String>,
}

impl Actor {
    /// Starts the process. It is not ready yet.
    pub(super) fn start(
        nvidia: &Nvidia,
        load: &Load,
        index: usize,
        is_probed: bool,
        folder: &Path,
        environment: Vec<(String, String)>,
    ) -> Result<Self, String> {
        let file = |what: &str| folder.join(format!("{what}-{index}"));
        let (raw, beats, trace) = (file("raw"), file("beats"), file("trace"));
        let is_probed = is_probed && load.work != Work::Copies;
        let key = key(load, is_probed);
        let start = Start {
            iterations: key.as_ref().and_then(|key| nvidia.iterations.get(key)).copied(),
            raw: raw.display().to_string(),
            beats: is_probed.then(|| beats.display().to_string()),
            trace: trace.display().to_string(),
        };
        let mut command = command(nvidia, load, &start, folder)?;
        // What the shell of the runner says of a server is for nobody here.
        for name in mps::VARIABLES {
            command.env_remove(name);
        }
        command.envs(environment);
        let mut command = nvidia.programs.leashed(Leash::Kill, command);
        let child = Child::start_told(&load.name, &mut command, file("log"))?;
        let load = load.clone();
        Ok(Self { load, index, child, raw, beats, trace, key })
    }

    /// Whether nobody knows yet how much its kernel must do: then nobody may be beside.
    pub(super) fn is_unknown(nvidia: &Nvidia, load: &Load, is_probed: bool) -> bool {
        let key = key(load, is_probed && load.work != Work::Copies);
        key.is_some_and(|key| !nvidia.iterations.contains_key(&key))
    }

    /// Waits until it is ready, and remembers how much its kernel does.
    pub(super) fn wait_until_ready(&mut self, nvidia: &mut Nvidia) -> Result<(), String> {
        let is_ready = |said: &str| lines::of(said).any(|line| matches!(line, Line::Ready { .. }));
        self.child.wait_for("ready", is_ready, READY, &nvidia.stop)?;
        let Some(key) = &self.key else { return Ok(()) };
        let said = self.child.said();
        let found = lines::of(&said).find_map(|line| {
            let Line::Ready { kernel } = line else { return None };
            kernel.and_then(|kernel| kernel.iterations)
        });
        let found = found.ok_or_else(|| self.child.failure("did not say what its kernel does"))?;
        nvidia.iterations.entry(key.clone()).or_insert(found);
        Ok(())
    }

    /// Tells it of a round. Answers are waited for with [`Self::wait_until_prepared`].
    pub(super) fn prepare(&mut self, round: &Round) -> Result<(), String> {
        let round = Round { seed: seed_of(round.seed, self.index), ..round.clone() };
        self.write_trace(&round)?;
        self.child.forget();
        self.child.tell(&Order::Prepare(round).line())
    }

    /// Waits until it can begin.
    pub(super) fn wait_until_prepared(&mut self, nvidia: &Nvidia) -> Result<(), String> {
        let is_so = |said: &str| lines::of(said).any(|line| matches!(line, Line::Prepared { .. }));
        self.child.wait_for("prepared", is_so, PREPARED, &nvidia.stop)
    }

    /// Lets it begin at that time.
    pub(super) fn begin(&mut self, round: u64, at_ns: u64) -> Result<(), String> {
        self.child.tell(&Order::Begin { round, at_ns }.line())
    }

    /// Tells it that the round is over.
    pub(super) fn end(&mut self, round: u64) -> Result<(), String> {
        self.child.tell(&Order::End { round }.line())
    }

    /// Waits for its last words of a round.
    pub(super) fn wait_until_over(
        &mut self,
        nvidia: &Nvidia,
        seconds: u64,
    ) -> Result<Final, String> {
        let limit = Duration::from_secs(seconds) + LATE;
        let is_over = |said: &str| lines::last(said).is_some();
        self.child.wait_for("through with a round", is_over, limit, &nvidia.stop)?;
        let last = lines::last(&self.child.said())
            .ok_or_else(|| self.child.failure("did not say how a round ended"))?;
        if last.wrong > 0 {
            return Err(self.child.failure(&format!("had {} wrong results", last.wrong)));
        }
        if last.drained == Some(false) {
            return Err(self.child.failure("left work on the device at the end of a round"));
        }
        Ok(last)
    }

    /// Every request of a round, as a table.
    pub(super) fn requests(&self) -> Result<String, String> {
        let raw = &self.raw;
        std::fs::read_to_string(raw).map_err(|error| format!("{}: {error}", raw.display()))
    }

    /// The file with the times of requests that are left to chance.
    fn write_trace(&self, round: &Round) -> Result<(), String> {
        let length_ms = round.seconds * 1_000 + arguments::WARMUP_MS;
        let end = gpreempt_core::time::Duration::from_millis(length_ms);
        let Some(times) = self.load.arrivals.times(end, round.seed) else { return Ok(()) };
        let text: String = times.iter().map(|time| format!("{}\n", time.as_nanos())).collect();
        let path = &self.trace;
        std::fs::write(path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// What a calibration is good for; none without a kernel of ours.
fn key(load: &Load, is_probed: bool) -> Option<String> {
    let has_kernel = matches!(load.work, Work::Kernels | Work::Counter | Work::Endless);
    has_kernel.then(|| {
        let seen = if is_probed { " looked into" } else { "" };
        shape(load).join(" ") + seen
    })
}

fn command(nvidia: &Nvidia, load: &Load, start: &Start, folder: &Path) -> Result<Command, String> {
    let Work::Torch(what) = &load.work else {
        let mut command = Command::new(there(&nvidia.programs.load, "gpreempt-load")?);
        command.args(of_load(load, start));
        return Ok(command);
    };
    let script = folder.join("load.py");
    std::fs::write(&script, TORCH)
        .map_err(|error| format!("cannot write {}: {error}", script.display()))?;
    let mut command = Command::new(there(&nvidia.programs.python, "python3")?);
    command.arg(script).args(of_torch(load, what, start));
    Ok(command)
}

/// Those of a role.
pub(super) fn of_role(actors: &[Actor], role: Role) -> impl Iterator<Item = &Actor> {
    actors.iter().filter(move |actor| actor.load.role == role)
}
