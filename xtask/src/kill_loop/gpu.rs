//! An emulated GPU that can be killed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpreempt_core::time::Duration as Time;
use gpreempt_sim::model::DeviceModel;
use gpreempt_wire::emulator::control::{Control, Listing, Options};

use super::actor::{Actor, End};
use super::scene::Scene;

/// How long an emulator may take to answer.
const PATIENCE: Time = Time::from_millis(5_000);

/// What an emulated GPU is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Its machine: how it preempts.
    pub(super) machine: &'static str,
    pub(super) model: &'static str,
}

/// One that stops queues, and one that also slices.
pub(super) const KINDS: [Kind; 2] =
    [Kind { machine: "cwsr", model: "mi300x" }, Kind { machine: "tsg", model: "h200" }];

/// An emulated GPU and our connection to it.
#[derive(Debug)]
pub(super) struct Gpu {
    kind: Kind,
    pub(super) socket: PathBuf,
    slice: Time,
    actor: Option<Actor>,
    control: Option<Control>,
    start_at: Instant,
    /// How often it was started. What used an earlier one has lost it.
    pub(super) starts: u64,
}

impl Gpu {
    pub(super) fn new(scene: &Scene, kind: Kind) -> Self {
        let socket = scene.gpu(kind.machine);
        let start_at = Instant::now();
        // PANIC: the models are part of the simulator.
        let slice = DeviceModel::built_in(kind.model).expect("a built-in model").tsg.slice;
        Self { kind, socket, slice, actor: None, control: None, start_at, starts: 0 }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.kind.machine
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.actor.as_ref().map(Actor::pid)
    }

    /// Starts it if it is time, and connects to it as soon as it listens.
    pub(super) fn keep_up(&mut self, scene: &Scene) -> anyhow::Result<()> {
        if self.actor.is_none() && Instant::now() >= self.start_at {
            let Kind { machine, model } = self.kind;
            let mut command = scene.command("gpreempt-emu");
            command.arg("--socket").arg(&self.socket);
            command.args(["--machine", machine, "--model", model, "--compute-units", "1"]);
            self.actor = Some(scene.start(machine, command)?);
            self.starts += 1;
        }
        if self.actor.is_some() && self.control.is_none() {
            let options = Options { timeout: PATIENCE, ..Options::default() };
            self.control = Control::connect(&self.socket, options).ok();
        }
        Ok(())
    }

    /// Whether somebody can use it.
    pub(super) const fn is_ready(&self) -> bool {
        self.control.is_some()
    }

    /// Kills it; it comes back after a while.
    pub(super) fn kill(&mut self, pause: Duration) -> bool {
        let is_killed = self.actor.as_mut().is_some_and(Actor::kill);
        if is_killed {
            self.control = None;
            self.start_at = Instant::now() + pause;
        }
        is_killed
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
        if end.is_some() {
            self.actor = None;
            self.control = None;
        }
        Ok(end)
    }

    /// Which emulator it is, and everything it has. Nothing if it is not there.
    pub(super) fn list(&mut self) -> Option<(u64, Listing)> {
        let control = self.control.as_mut()?;
        match control.list() {
            Ok(listing) => Some((control.instance(), listing)),
            Err(_) => {
                self.control = None;
                None
            }
        }
    }

    /// The slice that a queue has when nobody gave it another.
    pub(super) const fn slice(&self) -> Time {
        self.slice
    }

    /// A number that changes whenever any of its queues gets something done.
    pub(super) fn work_done(&mut self) -> Option<u64> {
        let (_, listing) = self.list()?;
        let control = self.control.as_mut()?;
        let usages = listing.queues.iter().filter_map(|queue| control.usage(queue.queue).ok());
        Some(usages.fold(0, |sum, usage| {
            sum.rotate_left(1) ^ usage.busy.as_nanos().wrapping_add(usage.completed)
        }))
    }
}
