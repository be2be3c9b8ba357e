//! A place on an emulated GPU that always has a load.

use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_stage::{Ended, Process, StageError};
use rustix::process::Signal;

use super::chance::Chance;
use super::end::LoadFacts;
use super::gpu::Gpu;
use super::last_part;
use super::site::{Mode, Site};

/// How long a load may take beyond the time it was given.
const PATIENCE: Duration = Duration::from_secs(60);
/// How old a load is when a private session attaches to it: then it has a queue.
const SETTLED: Duration = Duration::from_millis(150);

/// What kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    BestEffort,
    LatencyCritical,
}

impl Role {
    /// The priority of loads of this kind.
    pub(super) const fn priority(self) -> u8 {
        match self {
            Self::BestEffort => 2,
            Self::LatencyCritical => 9,
        }
    }
}

/// A place for a load.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) role: Role,
    /// On which emulated GPU.
    pub(super) gpu: usize,
    process: Option<Process>,
    /// Which start of the emulated GPU it uses.
    gpu_start: u64,
    facts: LoadFacts,
    seconds: u64,
    start_at: Instant,
}

impl Load {
    pub(super) fn new(role: Role, gpu: usize) -> Self {
        let (process, facts, start_at) = (None, LoadFacts::default(), Instant::now());
        Self { role, gpu, process, gpu_start: 0, facts, seconds: 0, start_at }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Whether it runs and is old enough to have a queue.
    pub(super) fn is_settled(&self) -> bool {
        let is_settled = |process: &Process| !process.was_killed() && process.age() > SETTLED;
        self.process.as_ref().is_some_and(is_settled)
    }

    /// Starts it if it is time and its GPU is there; beside a daemon some through `gpreempt run`.
    /// Without a daemon `run` may have to schedule: then it is not the load that has its pid.
    pub(super) fn keep_up(
        &mut self,
        site: &Site,
        gpu: &Gpu,
        chance: &mut Chance,
    ) -> Result<(), StageError> {
        if self.process.is_some() || !gpu.is_ready() || Instant::now() < self.start_at {
            return Ok(());
        }
        self.seconds = chance.between(1, 3);
        self.gpu_start = gpu.starts;
        let is_run = chance.once_in(3) && site.mode == Mode::Daemon;
        self.facts = LoadFacts { is_run, ..LoadFacts::default() };
        let command = command(site, gpu, self.role, self.seconds, is_run)?;
        self.process = Some(site.stage.start("load", command)?);
        Ok(())
    }

    pub(super) fn kill(&mut self) -> bool {
        self.process.as_mut().is_some_and(Process::kill)
    }

    /// Another one is started after a pause.
    pub(super) fn replace_after(&mut self, pause: Duration) {
        self.start_at = Instant::now() + pause;
    }

    pub(super) fn ask_to_end(&mut self) {
        if let Some(process) = &self.process {
            self.facts.was_asked = true;
            process.signal(Signal::TERM);
        }
    }

    /// How it ended, once it has, and what it could know.
    pub(super) fn end(&mut self, gpu: &Gpu) -> Result<Option<(Ended, LoadFacts)>, StageError> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let Some(end) = process.end()? else { return Ok(None) };
        self.process = None;
        let lost_its_device = gpu.starts != self.gpu_start || !gpu.is_ready();
        Ok(Some((end, LoadFacts { lost_its_device, ..self.facts })))
    }

    /// What it last printed, if it should have ended long ago.
    pub(super) fn overdue(&self) -> Option<String> {
        let process = self.process.as_ref()?;
        let most = Duration::from_secs(self.seconds) + PATIENCE;
        let (pid, said) = (process.pid(), process.err());
        (process.age() > most).then(|| format!("load {pid} does not end: {}", last_part(&said)))
    }
}

/// The command of a load: short kernels in a row, or requests that take half of the time.
pub(super) fn command(
    site: &Site,
    gpu: &Gpu,
    role: Role,
    seconds: u64,
    is_run: bool,
) -> Result<Command, StageError> {
    let shape = match role {
        Role::BestEffort => "be --kernel-us 3000 --depth 3",
        Role::LatencyCritical => "lc --kernel-us 1000 --kernels 12 --every-us 25000 --warmup-ms 0",
    };
    let priority = role.priority().to_string();
    let mut command = if is_run {
        let mut run = site.gpreempt()?;
        run.args(["run", "-p", &priority, "--"]).arg(site.stage.program("gpreempt-emu")?);
        run
    } else {
        let mut load = site.stage.command("gpreempt-emu")?;
        load.env("GPREEMPT_PRIORITY", priority);
        load
    };
    gpu.spec.add_load(&mut command, &format!("{shape} --seconds {seconds}"));
    Ok(command)
}
