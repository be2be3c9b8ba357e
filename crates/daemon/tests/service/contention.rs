//! What the tests have in common: daemons, loads that compete for a GPU, and requests.

use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use gpreempt_stage::{Daemon, Emulator, Load, Stage, until};
use gpreempt_wire::client::ClientError;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::{TaskSnapshot, TaskState};

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
    /// On an emulated GPU with that kind of preemption: `cwsr` or `tsg`.
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
        until_running(&daemon, &low);
        let high = emulator.load_at(7, ENDLESS).unwrap();
        Self { daemon, low, high, emulator, stage }
    }

    /// Replaces the daemon, which has ended.
    pub(crate) fn restart_daemon(&mut self) {
        self.daemon = start_daemon(&self.stage, &self.emulator);
    }

    /// Stops the daemon with SIGTERM.
    pub(crate) fn stop_daemon(&mut self) {
        self.daemon.signal(rustix::process::Signal::TERM);
        assert!(self.daemon.wait().unwrap().success(), "{:?}", self.daemon.log());
    }

    pub(crate) fn is_low_stopped(&self) -> bool {
        self.emulator.is_stopped(self.low.pid())
    }

    pub(crate) fn is_high_stopped(&self) -> bool {
        self.emulator.is_stopped(self.high.pid())
    }

    pub(crate) fn low_task(&self) -> TaskSnapshot {
        self.daemon.task(self.low.pid()).unwrap_or_default()
    }

    pub(crate) fn until_low_waits(&self) {
        until("the low-priority load is preempted", || {
            state(&self.daemon, &self.low) == Some(TaskState::Preempted)
                && state(&self.daemon, &self.high) == Some(TaskState::Running)
                && self.is_low_stopped()
                && !self.is_high_stopped()
        });
    }

    pub(crate) fn until_low_runs(&self) {
        until("the low-priority load runs", || !self.is_low_stopped());
    }

    /// Ends both loads, and checks that no work was lost.
    pub(crate) fn finish(&mut self) {
        self.high.finish_exact().unwrap();
        self.until_low_runs();
        self.low.finish_exact().unwrap();
    }
}

/// A daemon without devices.
pub(crate) fn start() -> (Daemon, Stage) {
    let stage = Stage::new("daemon").unwrap();
    (stage.daemon().start().unwrap(), stage)
}

/// A daemon with one emulated GPU.
pub(crate) fn start_on_gpu() -> (Daemon, Emulator, Stage) {
    let stage = Stage::new("daemon").unwrap();
    let emulator = start_gpu(&stage, "cwsr");
    (start_daemon(&stage, &emulator), emulator, stage)
}

/// A daemon with one emulated GPU and a load of that priority that runs.
pub(crate) fn start_with_load(priority: u8) -> (Load, Daemon, Emulator, Stage) {
    let (daemon, emulator, stage) = start_on_gpu();
    let load = emulator.load_at(priority, ENDLESS).unwrap();
    until_running(&daemon, &load);
    (load, daemon, emulator, stage)
}

/// One small emulated GPU, which a single kernel fills.
pub(crate) fn start_gpu(stage: &Stage, machine: &str) -> Emulator {
    let arguments = format!("--model mi300x --machine {machine} --compute-units 1");
    stage.emulator(&arguments).unwrap()
}

/// The same as a KFD. The name of a kernel with the project's patches ends with `+patched`.
pub(crate) fn start_kfd(stage: &Stage, kernel: &str, gfx: u32) -> Emulator {
    let (kernel, patched) = match kernel.strip_suffix("+patched") {
        Some(kernel) => (kernel, "--patched"),
        None => (kernel, ""),
    };
    let arguments = format!("--kernel {kernel} --gfx {gfx} --xccs 2 --compute-units 1 {patched}");
    stage.kfd(&arguments).unwrap()
}

/// A daemon that controls an emulator.
pub(crate) fn start_daemon(stage: &Stage, emulator: &Emulator) -> Daemon {
    stage.daemon().emulator(emulator.spec()).start().unwrap()
}

/// The state of a load in the daemon's snapshot.
pub(crate) fn state(daemon: &Daemon, load: &Load) -> Option<TaskState> {
    daemon.task(load.pid()).map(|task| task.state)
}

pub(crate) fn until_running(daemon: &Daemon, load: &Load) {
    until("the load runs", || state(daemon, load) == Some(TaskState::Running));
}

pub(crate) fn process(pid: u32) -> Process {
    Process::new(pid, 0).unwrap()
}

pub(crate) fn priority(level: u8) -> SchedAttrChange {
    SchedAttrChange { priority: Priority::new(level), ..SchedAttrChange::default() }
}

pub(crate) fn set(load: &Load, level: u8) -> Request {
    Request::Set { process: process(load.pid()), change: priority(level) }
}

pub(crate) fn suspend(pid: u32, lease_ms: u32) -> Request {
    let lease_ms = NonZeroU32::new(lease_ms).unwrap();
    Request::Suspend { process: process(pid), lease_ms }
}

pub(crate) fn resume(load: &Load) -> Request {
    Request::Resume { process: process(load.pid()) }
}

/// The code of a refusal.
pub(crate) fn code(result: Result<(), ClientError>) -> Option<RefusalCode> {
    match result {
        Ok(()) => None,
        Err(ClientError::Refused(refusal)) => Some(refusal.code),
        Err(other) => panic!("{other}"),
    }
}

/// The sentence of a refusal with that code.
pub(crate) fn refusal(answer: Result<(), ClientError>, code: RefusalCode) -> String {
    match answer {
        Err(ClientError::Refused(refusal)) if refusal.code == code => {
            refusal.sentence.as_str().to_owned()
        }
        other => panic!("{other:?} is not a refusal with {code:?}"),
    }
}
