//! An emulated GPU, a daemon, and a load without end: what a program that uses the library needs
//! around it.

use std::process::Command;

use gpreempt_core::id::QueueId;
use gpreempt_stage::{Daemon, Emulator, Load, Stage, until_some};
use gpreempt_wire::emulator::ring_page::Reading;
use gpreempt_wire::queue::QueueRecord;
use gpreempt_wire::request::Request;

/// Kernels of 3 ms in a row.
const LOAD: &str = "be --kernel-us 3000 --seconds 3600";

/// A load of priority 2 on an emulated GPU, and the daemon that schedules it.
pub(crate) struct ScheduledLoad {
    load: Load,
    daemon: Option<Daemon>,
    emulator: Emulator,
    stage: Stage,
}

impl ScheduledLoad {
    /// On an emulated GPU that is controlled by stopping.
    pub(crate) fn new() -> Self {
        Self::on("cwsr")
    }

    /// On another kind of machine.
    pub(crate) fn on(machine: &str) -> Self {
        let stage = Stage::new("agent").unwrap();
        let emulator = stage.emulator(&format!("--machine {machine}")).unwrap();
        Self::with(stage, emulator)
    }

    /// On an emulated AMD device.
    pub(crate) fn on_kfd() -> Self {
        let stage = Stage::new("agent-kfd").unwrap();
        let emulator = stage.kfd("").unwrap();
        Self::with(stage, emulator)
    }

    fn with(stage: Stage, emulator: Emulator) -> Self {
        let daemon = Some(start_daemon(&stage, &emulator));
        let load = emulator.load_at(2, LOAD).unwrap();
        let scheduled = Self { load, daemon, emulator, stage };
        scheduled.until_load(|queue| queue.is_active);
        scheduled
    }

    /// Has a program find the daemon and the emulated GPU.
    pub(crate) fn show_to(&self, command: &mut Command) {
        command.env("GPREEMPT_SOCKET", self.stage.socket());
        command.env("GPREEMPT_EMULATED_SOCKET", self.emulator.place());
    }

    pub(crate) fn load_pid(&self) -> u32 {
        self.load.pid()
    }

    /// The queue of the load, if the daemon answers and knows it.
    pub(crate) fn load(&self) -> Option<QueueRecord> {
        let queues = self.daemon.as_ref()?.queues(self.load_pid()).ok()?;
        queues.into_iter().next()
    }

    /// Waits until the queue of the load is so.
    pub(crate) fn until_load(&self, is_so: impl Fn(&QueueRecord) -> bool) -> QueueRecord {
        until_some("the load is as it should be", || self.load().filter(|queue| is_so(queue)))
    }

    /// Asks the daemon for something, as its owner may.
    pub(crate) fn ask(&self, request: &Request) {
        self.daemon.as_ref().unwrap().connect().expect_ok(request).unwrap();
    }

    /// What the emulated GPU itself shows of the load's queue.
    pub(crate) fn device_reading(&self) -> Reading {
        let number = QueueId(self.load().unwrap().native);
        self.emulator.control().unwrap().page(number).unwrap().read()
    }

    /// Kills the daemon and starts another one.
    pub(crate) fn restart_daemon(&mut self) {
        self.daemon = None;
        self.daemon = Some(start_daemon(&self.stage, &self.emulator));
    }

    /// Kills the emulated GPU.
    pub(crate) fn kill_emulator(&mut self) {
        self.emulator.process().kill_and_wait().unwrap();
    }
}

fn start_daemon(stage: &Stage, emulator: &Emulator) -> Daemon {
    stage.daemon().emulator(emulator.spec()).start().unwrap()
}
