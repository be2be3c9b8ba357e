//! An emulated GPU that can be killed.

use std::time::{Duration, Instant};

use gpreempt_core::time::Duration as Time;
use gpreempt_sim::model::DeviceModel;
use gpreempt_stage::{EmulatorSpec, Ended, Process, StageError};
use gpreempt_wire::emulator::control::{Control, Listing, Options};
use rustix::process::Signal;

use super::site::Site;

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
    pub(super) spec: EmulatorSpec,
    slice: Time,
    process: Option<Process>,
    control: Option<Control>,
    start_at: Instant,
    /// How often it was started. What used an earlier one has lost it.
    pub(super) starts: u64,
}

impl Gpu {
    pub(super) fn new(kind: Kind, spec: EmulatorSpec) -> Self {
        let start_at = Instant::now();
        // PANIC: the models are part of the simulator.
        let slice = DeviceModel::built_in(kind.model).expect("a built-in model").tsg.slice;
        Self { kind, spec, slice, process: None, control: None, start_at, starts: 0 }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.kind.machine
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Starts it if it is time, and connects to it as soon as it listens.
    pub(super) fn keep_up(&mut self, site: &Site) -> Result<(), StageError> {
        if self.process.is_none() && Instant::now() >= self.start_at {
            let command = self.spec.command(&site.stage)?;
            self.process = Some(site.stage.start(self.kind.machine, command)?);
            self.starts += 1;
        }
        if self.process.is_some() && self.control.is_none() {
            let options = Options { timeout: PATIENCE, ..Options::default() };
            self.control = Control::connect(&self.spec.socket(), options).ok();
        }
        Ok(())
    }

    /// Whether somebody can use it.
    pub(super) const fn is_ready(&self) -> bool {
        self.control.is_some()
    }

    /// Kills it; it comes back after a while.
    pub(super) fn kill(&mut self, pause: Duration) -> bool {
        let is_killed = self.process.as_mut().is_some_and(Process::kill);
        if is_killed {
            self.control = None;
            self.start_at = Instant::now() + pause;
        }
        is_killed
    }

    pub(super) fn ask_to_end(&self) {
        if let Some(process) = &self.process {
            process.signal(Signal::TERM);
        }
    }

    /// How it ended, once it has.
    pub(super) fn end(&mut self) -> Result<Option<Ended>, StageError> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let end = process.end()?;
        if end.is_some() {
            self.process = None;
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
