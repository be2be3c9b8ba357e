//! Two processes that want the same device, and a daemon that decides between them.

use gpreempt_stage::{Daemon, Emulator, Load, Stage, until};
use gpreempt_wire::statistics::TaskState;

/// A load that always has kernels of 4 ms in its ring.
pub(crate) const ENDLESS: &str = "be --kernel-us 4000 --depth 4 --report-ms 1000 --seconds 3600";

/// An emulator, a daemon, and two endless loads: `low` has priority 2, `high` has 7.
pub(crate) struct Contention {
    /// Killed first: a daemon that is stopped may trace the loads, which then cannot end.
    pub(crate) daemon: Daemon,
    pub(crate) low: Load,
    pub(crate) high: Load,
    pub(crate) emulator: Emulator,
    pub(crate) stage: Stage,
}

impl Contention {
    /// On an emulated GPU that preempts in that way: `cwsr` or `tsg`.
    pub(crate) fn on_gpu(machine: &str) -> Self {
        let stage = Stage::new("daemon").unwrap();
        let emulator = start_gpu(&stage, machine);
        Self::on(stage, emulator)
    }

    /// On the emulated KFD of that kernel, with a device of that generation.
    pub(crate) fn on_kfd(kernel: &str, gfx: u32) -> Self {
        let stage = Stage::new("daemon-kfd").unwrap();
        let emulator = start_kfd(&stage, kernel, gfx);
        Self::on(stage, emulator)
    }

    fn on(stage: Stage, emulator: Emulator) -> Self {
        let low = emulator.load_at(2, ENDLESS).unwrap();
        let daemon = start_daemon(&stage, &emulator);
        until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
        let high = emulator.load_at(7, ENDLESS).unwrap();
        Self { daemon, low, high, emulator, stage }
    }

    /// Replaces the daemon, which has ended.
    pub(crate) fn restart_daemon(&mut self) {
        self.daemon = start_daemon(&self.stage, &self.emulator);
    }

    pub(crate) fn until_low_waits(&self) {
        until("the low one was preempted", || {
            state(&self.daemon, &self.low) == Some(TaskState::Preempted)
                && state(&self.daemon, &self.high) == Some(TaskState::Running)
                && self.emulator.is_stopped(self.low.pid())
                && !self.emulator.is_stopped(self.high.pid())
        });
    }

    pub(crate) fn until_low_runs(&self) {
        until("the low one runs", || !self.emulator.is_stopped(self.low.pid()));
    }
}

/// One small emulated GPU, which a single kernel fills.
pub(crate) fn start_gpu(stage: &Stage, machine: &str) -> Emulator {
    let arguments = format!("--model mi300x --machine {machine} --compute-units 1");
    stage.emulator(&arguments).unwrap()
}

/// The same as a KFD. The name of a kernel with our patches ends with `+patched`.
pub(crate) fn start_kfd(stage: &Stage, kernel: &str, gfx: u32) -> Emulator {
    let (kernel, patched) = match kernel.strip_suffix("+patched") {
        Some(kernel) => (kernel, "--patched"),
        None => (kernel, ""),
    };
    let arguments = format!("--kernel {kernel} --gfx {gfx} --xccs 2 --compute-units 1 {patched}");
    stage.kfd(&arguments).unwrap()
}

/// Starts a daemon that controls an emulator.
pub(crate) fn start_daemon(stage: &Stage, emulator: &Emulator) -> Daemon {
    stage.daemon().emulator(emulator.spec()).start().unwrap()
}

/// The state of a load as the daemon sees it.
pub(crate) fn state(daemon: &Daemon, load: &Load) -> Option<TaskState> {
    daemon.task(load.pid()).map(|task| task.state)
}
