//! A place on an emulated GPU that always has a load.

use std::process::Command;
use std::time::{Duration, Instant};

use super::actor::{Actor, End};
use super::chance::Chance;
use super::end::LoadFacts;
use super::gpu::Gpu;
use super::scene::Scene;

/// How long a load may take beyond the time it was given.
const PATIENCE: Duration = Duration::from_secs(60);

/// What kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    BestEffort,
    LatencyCritical,
}

/// A place for a load.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) role: Role,
    /// On which emulated GPU.
    pub(super) gpu: usize,
    actor: Option<Actor>,
    /// Which start of the emulated GPU it uses.
    gpu_start: u64,
    facts: LoadFacts,
    seconds: u64,
    start_at: Instant,
}

impl Load {
    pub(super) fn new(role: Role, gpu: usize) -> Self {
        let (actor, facts, start_at) = (None, LoadFacts::default(), Instant::now());
        Self { role, gpu, actor, gpu_start: 0, facts, seconds: 0, start_at }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.actor.as_ref().map(Actor::pid)
    }

    /// Starts it if it is time and its GPU is there; some through `gpreempt run`.
    pub(super) fn keep_up(
        &mut self,
        scene: &Scene,
        gpu: &Gpu,
        chance: &mut Chance,
    ) -> anyhow::Result<()> {
        if self.actor.is_some() || !gpu.is_ready() || Instant::now() < self.start_at {
            return Ok(());
        }
        self.seconds = chance.between(1, 3);
        self.gpu_start = gpu.starts;
        let is_run = chance.once_in(3);
        self.facts = LoadFacts { is_run, ..LoadFacts::default() };
        let command = command(scene, gpu, self.role, self.seconds, is_run);
        self.actor = Some(scene.start("load", command)?);
        Ok(())
    }

    pub(super) fn kill(&mut self) -> bool {
        self.actor.as_mut().is_some_and(Actor::kill)
    }

    /// Another one comes after a while.
    pub(super) fn replace_after(&mut self, pause: Duration) {
        self.start_at = Instant::now() + pause;
    }

    pub(super) fn ask_to_end(&mut self) {
        if let Some(actor) = &self.actor {
            self.facts.was_asked = true;
            actor.ask_to_end();
        }
    }

    /// How it ended, once it has, and what it could know.
    pub(super) fn end(&mut self, gpu: &Gpu) -> anyhow::Result<Option<(End, LoadFacts)>> {
        let Some(actor) = &mut self.actor else { return Ok(None) };
        let Some(end) = actor.end()? else { return Ok(None) };
        self.actor = None;
        let lost_its_device = gpu.starts != self.gpu_start || !gpu.is_ready();
        Ok(Some((end, LoadFacts { lost_its_device, ..self.facts })))
    }

    /// What it last said, if it should have ended long ago.
    pub(super) fn overdue(&self) -> Option<String> {
        let actor = self.actor.as_ref()?;
        let most = Duration::from_secs(self.seconds) + PATIENCE;
        (actor.age() > most).then(|| format!("load {} does not end: {}", actor.pid(), actor.said()))
    }
}

/// The command of a load: short kernels in a row, or requests that take half of the time.
pub(super) fn command(scene: &Scene, gpu: &Gpu, role: Role, seconds: u64, is_run: bool) -> Command {
    let (name, priority, shape) = match role {
        Role::BestEffort => ("be", "2", ["--kernel-us", "3000", "--depth", "3"]),
        Role::LatencyCritical => ("lc", "9", ["--kernel-us", "1000", "--kernels", "12"]),
    };
    let mut command = if is_run {
        let mut run = scene.command("gpreempt");
        run.args(["run", "-p", priority, "--"]).arg(scene.program("gpreempt-emu"));
        run
    } else {
        let mut load = scene.command("gpreempt-emu");
        load.env("GPREEMPT_PRIORITY", priority);
        load
    };
    command.args(["load", name, "--json", "--socket"]).arg(&gpu.socket).args(shape);
    command.args(["--seconds", &seconds.to_string()]);
    if role == Role::LatencyCritical {
        command.args(["--every-us", "25000", "--warmup-ms", "0"]);
    }
    command
}
