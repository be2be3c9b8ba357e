//! The two programs of the demo and the ways in which they share a device.

use gpreempt_core::config::Config;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{
    Arrivals, KernelSpec, ProgramSource, RequestStep, Scenario, SchedulerSpec, TaskSpec,
};

/// A way of sharing the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Online work has the device to itself.
    Alone,
    /// The device and its driver do what they do by themselves.
    None,
    /// The papers' design: kill what runs, submit it again later.
    Reset,
    /// This scheduler.
    Ours,
}

impl Mode {
    pub(crate) const ALL: [Self; 4] = [Self::Alone, Self::None, Self::Reset, Self::Ours];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::None => "none",
            Self::Reset => "reset",
            Self::Ours => "ours",
        }
    }

    pub(crate) const fn explanation(self) -> &'static str {
        match self {
            Self::Alone => "online work has the device to itself",
            Self::None => "both share it as the driver does by default",
            Self::Reset => "offline kernels are killed and submitted again (GPreempt, REEF)",
            Self::Ours => "offline kernels are saved in the middle and continue later",
        }
    }
}

/// Online inference and offline training on one device.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) model: DeviceModel,
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
}

const PHASE: Duration = Duration::from_millis(20);

const ONLINE: usize = 0;

impl Workload {
    pub(crate) fn new(model: DeviceModel, seconds: u64, seed: u64) -> Self {
        Self { model, duration: Duration::from_millis(seconds * 1000), seed }
    }

    /// What is simulated in a mode: the online task first.
    pub(crate) fn scenario(&self, mode: Mode) -> Scenario {
        let mut tasks = vec![self.online()];
        if mode != Mode::Alone {
            tasks.push(self.offline());
        }
        let machine = match (mode, self.model.machine) {
            (Mode::Reset, _) => MachineKind::Reset,
            (Mode::Alone | Mode::None | Mode::Ours, machine) => machine,
        };
        let scheduled = matches!(mode, Mode::Reset | Mode::Ours);
        if self.announces(mode) {
            tasks[ONLINE].hint = Some(Duration::ZERO);
        }
        let scheduler = SchedulerSpec { config: Config::default(), hold: true };
        self.build(tasks, machine, scheduled.then_some(scheduler))
    }

    /// Offline work with the device to itself: what it could do.
    pub(crate) fn offline_alone(&self) -> Scenario {
        self.build(vec![self.offline()], self.model.machine, None)
    }

    /// Whether online work says that a request begins. The papers' runtime sees every launch; a
    /// device that only software can preempt needs the word to be faster than polling.
    pub(crate) fn announces(&self, mode: Mode) -> bool {
        let by_software = self.model.machine != MachineKind::Tsg;
        mode == Mode::Reset || (mode == Mode::Ours && by_software)
    }

    /// A few milliseconds around one request, the same in every mode.
    pub(crate) fn window(&self) -> (Instant, Instant) {
        let requests = self.duration.saturating_sub(PHASE).as_nanos() / self.every().as_nanos();
        let arrival = self.arrival(requests.min(5));
        let before = Duration::from_millis(1);
        let start = Instant::from_nanos(arrival.as_nanos().saturating_sub(before.as_nanos()));
        (start, start + Duration::from_millis(12))
    }

    /// When the request in the window arrives.
    pub(crate) fn arrival_in_window(&self) -> Instant {
        self.window().0 + Duration::from_millis(1)
    }

    /// From one online request to the next: further apart than the slowest mode needs, so that no
    /// mode is overloaded, and no multiple of a slice, so that requests arrive at all phases.
    fn every(&self) -> Duration {
        match self.model.machine {
            MachineKind::Tsg => Duration::from_micros(61_173),
            // Without slices each of the 20 kernels may wait for a whole offline kernel.
            MachineKind::None | MachineKind::Reset | MachineKind::Cwsr => {
                Duration::from_micros(211_173)
            }
        }
    }

    fn arrival(&self, number: u64) -> Instant {
        Instant::ZERO + PHASE + self.every().times(number)
    }

    fn build(
        &self,
        tasks: Vec<TaskSpec>,
        machine: MachineKind,
        scheduler: Option<SchedulerSpec>,
    ) -> Scenario {
        let units = self.model.compute_units;
        Scenario {
            name: "online beside offline".into(),
            model: self.model.clone(),
            machine,
            devices: 1,
            seed: self.seed,
            duration: self.duration,
            scheduler,
            kernels: vec![
                kernel("layer", "reduce", Duration::from_micros(14), units),
                kernel(
                    "step",
                    "mix",
                    Duration::from_micros(7_930),
                    units * self.model.waves_per_unit,
                ),
            ],
            tasks,
            faults: Vec::new(),
        }
    }

    /// Inference: 20 small kernels, each followed by a wait and 30 us on the processor.
    fn online(&self) -> TaskSpec {
        let arrivals = Arrivals::Periodic { every: self.every(), phase: PHASE };
        let cpu = Duration::from_micros(30);
        task("online", 12, arrivals, RequestStep { kernel: 0, count: 20, sync: true, cpu })
    }

    /// Training: kernels of 8 ms that fill the device, back to back.
    fn offline(&self) -> TaskSpec {
        let arrivals = Arrivals::BackToBack { depth: 4 };
        let cpu = Duration::ZERO;
        task("offline", 2, arrivals, RequestStep { kernel: 1, count: 1, sync: true, cpu })
    }
}

fn kernel(name: &str, program: &str, work: Duration, groups: u32) -> KernelSpec {
    let program = ProgramSource::BuiltIn(program.into());
    KernelSpec { name: name.into(), program, work, groups, waves: 1 }
}

fn task(name: &str, priority: u8, arrivals: Arrivals, step: RequestStep) -> TaskSpec {
    let priority = Priority::new(priority).unwrap_or(Priority::DEFAULT);
    TaskSpec::new(name, priority, arrivals, vec![step])
}
