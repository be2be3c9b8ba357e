//! The emulated GPUs and the loads on them, each started again after it was killed.

use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_core::time::Duration as Time;
use gpreempt_sim::model::DeviceModel;
use gpreempt_stage::{EmulatorSpec, Ended, Process, StageError};
use gpreempt_wire::emulator::control::{Control, Listing, Options};
use rustix::process::Signal;

use super::choices::RandomChoices;
use super::exits::LoadFacts;
use super::last_part;
use super::setup::{LoopSetup, Mode};

/// How long an emulator may take to answer.
const ANSWER_MAX: Time = Time::from_millis(5_000);

#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) machine: &'static str,
    pub(super) model: &'static str,
}

/// One that stops queues, and one that also slices.
pub(super) const KINDS: [Kind; 2] =
    [Kind { machine: "cwsr", model: "mi300x" }, Kind { machine: "tsg", model: "h200" }];

/// An emulated GPU and the connection to it.
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
    pub(super) fn keep_up(&mut self, setup: &LoopSetup) -> Result<(), StageError> {
        if self.process.is_none() && Instant::now() >= self.start_at {
            let command = self.spec.command(&setup.stage)?;
            self.process = Some(setup.stage.start(self.kind.machine, command)?);
            self.starts += 1;
        }
        if self.process.is_some() && self.control.is_none() {
            let options = Options { timeout: ANSWER_MAX, ..Options::default() };
            self.control = Control::connect(&self.spec.socket(), options).ok();
        }
        Ok(())
    }

    /// Whether it accepts clients.
    pub(super) const fn is_ready(&self) -> bool {
        self.control.is_some()
    }

    /// Kills it; another one is started after a pause.
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

    /// The slice of a queue unless one is set.
    pub(super) const fn slice(&self) -> Time {
        self.slice
    }

    /// A number that changes whenever one of its queues makes progress.
    pub(super) fn work_done(&mut self) -> Option<u64> {
        let (_, listing) = self.list()?;
        let control = self.control.as_mut()?;
        let usages = listing.queues.iter().filter_map(|queue| control.usage(queue.queue).ok());
        Some(usages.fold(0, |sum, usage| {
            sum.rotate_left(1) ^ usage.busy.as_nanos().wrapping_add(usage.completed)
        }))
    }
}

/// How long a load may take beyond the time it was given.
const OVERTIME_MAX: Duration = Duration::from_secs(60);
/// How old a load is when a private session attaches to it: then it has a queue.
const SETTLED: Duration = Duration::from_millis(150);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadRole {
    BestEffort,
    LatencyCritical,
}

impl LoadRole {
    pub(super) const fn priority(self) -> u8 {
        match self {
            Self::BestEffort => 2,
            Self::LatencyCritical => 9,
        }
    }
}

/// A slot on an emulated GPU that always has a load.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) role: LoadRole,
    pub(super) gpu: usize,
    process: Option<Process>,
    /// Which start of the emulated GPU it uses.
    gpu_start: u64,
    facts: LoadFacts,
    seconds: u64,
    start_at: Instant,
}

impl Load {
    pub(super) fn new(role: LoadRole, gpu: usize) -> Self {
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
        setup: &LoopSetup,
        gpu: &Gpu,
        choices: &mut RandomChoices,
    ) -> Result<(), StageError> {
        if self.process.is_some() || !gpu.is_ready() || Instant::now() < self.start_at {
            return Ok(());
        }
        self.seconds = choices.between(1, 3);
        self.gpu_start = gpu.starts;
        let is_run = choices.once_in(3) && setup.mode == Mode::Daemon;
        self.facts = LoadFacts { is_run, ..LoadFacts::default() };
        let command = load_command(setup, gpu, self.role, self.seconds, is_run)?;
        self.process = Some(setup.stage.start("load", command)?);
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
        let most = Duration::from_secs(self.seconds) + OVERTIME_MAX;
        let (pid, said) = (process.pid(), process.err());
        (process.age() > most).then(|| format!("load {pid} does not end: {}", last_part(&said)))
    }
}

/// The command of a load: short kernels in a row, or requests that take half of the time.
pub(super) fn load_command(
    setup: &LoopSetup,
    gpu: &Gpu,
    role: LoadRole,
    seconds: u64,
    is_run: bool,
) -> Result<Command, StageError> {
    let shape = match role {
        LoadRole::BestEffort => "be --kernel-us 3000 --depth 3",
        LoadRole::LatencyCritical => {
            "lc --kernel-us 1000 --kernels 12 --every-us 25000 --warmup-ms 0"
        }
    };
    let priority = role.priority().to_string();
    let mut command = if is_run {
        let mut run = setup.gpreempt()?;
        run.args(["run", "-p", &priority, "--"]).arg(setup.stage.program("gpreempt-load")?);
        run
    } else {
        let mut load = setup.stage.command("gpreempt-load")?;
        load.env("GPREEMPT_PRIORITY", priority);
        load
    };
    gpu.spec.add_load(&mut command, &format!("{shape} --seconds {seconds}"));
    Ok(command)
}
