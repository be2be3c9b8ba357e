//! The daemon, and through it its keeper.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::role::Role;
use gpreempt_wire::state::Snapshot;

use super::actor::{Actor, End};
use super::gpu::Gpu;
use super::proc;
use super::scene::Scene;

/// How long it may take to answer us.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many daemons' last words are kept.
const WORDS_MAX: usize = 3;

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    actor: Option<Actor>,
    start_at: Instant,
    /// How often it was started.
    pub(super) starts: u64,
    /// What the last ones said.
    words: VecDeque<String>,
}

impl Daemon {
    pub(super) fn new() -> Self {
        Self { actor: None, start_at: Instant::now(), starts: 0, words: VecDeque::new() }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.actor.as_ref().map(Actor::pid)
    }

    /// Its process, unless it was killed.
    pub(super) fn living(&self) -> Option<u32> {
        self.actor.as_ref().filter(|actor| !actor.was_killed()).map(Actor::pid)
    }

    /// Starts it if it is time.
    pub(super) fn keep_up(&mut self, scene: &Scene, gpus: &[Gpu]) -> anyhow::Result<()> {
        if self.actor.is_some() || Instant::now() < self.start_at {
            return Ok(());
        }
        let mut command = scene.command("gpreemptd");
        command.args(["--foreground", "--no-nvidia", "--no-amd", "--config"]).arg(scene.config());
        command.arg("--socket").arg(scene.socket()).arg("--state").arg(scene.state());
        for gpu in gpus {
            command.arg("--emulated").arg(&gpu.socket);
        }
        self.actor = Some(scene.start("daemon", command)?);
        self.starts += 1;
        Ok(())
    }

    /// Kills it; another one comes after a while.
    pub(super) fn kill(&mut self, pause: Duration) -> bool {
        let is_killed = self.actor.as_mut().is_some_and(Actor::kill);
        if is_killed {
            self.start_at = Instant::now() + pause;
        }
        is_killed
    }

    /// Kills its keeper, and with `both` itself as well.
    pub(super) fn kill_keeper(&mut self, both: Option<Duration>) -> u64 {
        let Some(pid) = self.pid() else { return 0 };
        let Some(keeper) = proc::children(pid).first().copied() else { return 0 };
        let is_killed = both.is_some_and(|pause| self.kill(pause));
        // Whoever has lost its parent is ours.
        let own = std::process::id();
        let is_keeper_killed = proc::kill_child(keeper, pid) || proc::kill_child(keeper, own);
        u64::from(is_killed) + u64::from(is_keeper_killed)
    }

    pub(super) fn ask_to_end(&self) {
        if let Some(actor) = &self.actor {
            actor.ask_to_end();
        }
    }

    /// How it ended, once it has.
    pub(super) fn end(&mut self) -> anyhow::Result<Option<End>> {
        let Some(actor) = &mut self.actor else { return Ok(None) };
        let end = actor.end()?;
        if let Some(end) = &end {
            self.actor = None;
            if self.words.len() == WORDS_MAX {
                self.words.pop_front();
            }
            self.words.push_back(end.err.clone());
        }
        Ok(end)
    }

    /// What this one and those before it said.
    pub(super) fn said(&self) -> String {
        let mut said = Vec::from_iter(self.words.iter().cloned());
        said.extend(self.actor.as_ref().map(Actor::said));
        said.join("-- then it was killed, and the next one said --\n")
    }

    /// What it knows, if it answers.
    pub(super) fn snapshot(&self, scene: &Scene) -> Option<Snapshot> {
        let mut options = ClientOptions::new(Role::Command, "kill-loop");
        options.paths = vec![scene.socket()];
        options.timeout = PATIENCE;
        let text = Client::connect(&options).ok()?.snapshot().ok()?;
        Snapshot::from_json(&text).ok()
    }
}
