//! Commands that ask the daemon for something.

use std::process::Command;
use std::time::{Duration, Instant};

use super::actor::{Actor, End};
use super::chance::Chance;
use super::gpu::Gpu;
use super::load::{self, Role};
use super::scene::Scene;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that a command lives which is going to be killed: a few milliseconds are its start,
/// then it asks.
const LIFE_MAX: Duration = Duration::from_millis(15);

/// A command that runs.
#[derive(Debug)]
pub(super) struct Client {
    actor: Actor,
    /// When it is killed, if it is.
    pub(super) kill_at: Option<Instant>,
}

/// A process to ask something about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) pid: u32,
    pub(super) role: Role,
}

impl Client {
    /// One that is left alone.
    pub(super) fn start(
        scene: &Scene,
        target: Target,
        chance: &mut Chance,
    ) -> anyhow::Result<Self> {
        let command = request(scene, target, chance);
        Ok(Self { actor: scene.start("client", command)?, kill_at: None })
    }

    /// One that is going to be killed.
    pub(super) fn start_doomed(
        scene: &Scene,
        target: Target,
        gpu: &Gpu,
        chance: &mut Chance,
    ) -> anyhow::Result<Self> {
        let command = match chance.between(0, 5) {
            0 => load::command(scene, gpu, Role::BestEffort, 1, true),
            1 => {
                let mut events = scene.command("gpreempt");
                events.arg("events");
                events
            }
            _ => request(scene, target, chance),
        };
        let life = chance.up_to(LIFE_MAX);
        let actor = scene.start("client", command)?;
        Ok(Self { actor, kill_at: Some(Instant::now() + life) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.actor.pid()
    }

    /// Kills it if it is time. True if it was alive.
    pub(super) fn kill_if_due(&mut self) -> bool {
        if self.kill_at.is_none_or(|at| at > Instant::now()) {
            return false;
        }
        self.kill_at = None;
        self.actor.kill()
    }

    pub(super) fn end(&mut self) -> anyhow::Result<Option<End>> {
        self.actor.end()
    }

    /// What it last said, if it should have ended long ago.
    pub(super) fn overdue(&self) -> Option<String> {
        let is_late = self.actor.age() > PATIENCE;
        is_late.then(|| format!("a command does not end: {}", self.actor.said()))
    }
}

/// Something to ask about a process.
fn request(scene: &Scene, target: Target, chance: &mut Chance) -> Command {
    let pid = target.pid.to_string();
    let mut command = scene.command("gpreempt");
    match chance.between(0, 7) {
        0..=2 => {
            let time = format!("{}ms", chance.between(20, 800));
            command.args(["suspend", &pid, "--for", &time])
        }
        3 => command.args(["resume", &pid]),
        4 => command.args(["resume", "--all"]),
        5 => command.args(["ps", "--json"]),
        _ => {
            let levels = match target.role {
                Role::BestEffort => (1, 4),
                Role::LatencyCritical => (8, 12),
            };
            let priority = chance.between(levels.0, levels.1).to_string();
            command.args(["set", &pid, "-p", &priority])
        }
    };
    command
}
