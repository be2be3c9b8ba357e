//! Commands that ask the daemon, or the private session, for something.

use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_stage::{Ended, Process, StageError};

use super::chance::Chance;
use super::gpu::Gpu;
use super::last_part;
use super::load::{self, Role};
use super::site::Site;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest that a command lives which is going to be killed: a few milliseconds are its start,
/// then it asks.
const LIFE_MAX: Duration = Duration::from_millis(15);

/// A command that runs.
#[derive(Debug)]
pub(super) struct Client {
    process: Process,
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
        site: &Site,
        target: Target,
        chance: &mut Chance,
    ) -> Result<Self, StageError> {
        let command = request(site, target, chance)?;
        Ok(Self { process: site.stage.start("client", command)?, kill_at: None })
    }

    /// One that is going to be killed.
    pub(super) fn start_doomed(
        site: &Site,
        target: Target,
        gpu: &Gpu,
        chance: &mut Chance,
    ) -> Result<Self, StageError> {
        let command = match chance.between(0, 5) {
            0 => load::command(site, gpu, Role::BestEffort, 1, true)?,
            1 => {
                let mut events = site.gpreempt()?;
                events.arg("events");
                events
            }
            _ => request(site, target, chance)?,
        };
        let life = chance.up_to(LIFE_MAX);
        let process = site.stage.start("client", command)?;
        Ok(Self { process, kill_at: Some(Instant::now() + life) })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Its pid, unless it was killed.
    pub(super) fn living(&self) -> Option<u32> {
        (!self.process.was_killed()).then(|| self.process.pid())
    }

    /// Kills it if it is time. True if it was alive.
    pub(super) fn kill_if_due(&mut self) -> bool {
        if self.kill_at.is_none_or(|at| at > Instant::now()) {
            return false;
        }
        self.kill_at = None;
        self.process.kill()
    }

    pub(super) fn end(&mut self) -> Result<Option<Ended>, StageError> {
        self.process.end()
    }

    /// What it last printed, if it should have ended long ago.
    pub(super) fn overdue(&self) -> Option<String> {
        let is_late = self.process.age() > PATIENCE;
        is_late.then(|| format!("a command does not end: {}", last_part(&self.process.err())))
    }
}

/// Something to ask about a process.
fn request(site: &Site, target: Target, chance: &mut Chance) -> Result<Command, StageError> {
    let pid = target.pid.to_string();
    let mut command = site.gpreempt()?;
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
    Ok(command)
}
