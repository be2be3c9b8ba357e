//! With an emulated KFD and processes that use it, as ROCm's would the kernel's.

use std::num::NonZeroU32;

use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::TaskState;
use rustix::process::Signal;

use super::daemon::{Daemon, Folder, until};
use super::scene::{Emulator, Load};

/// gfx942: a call moves every queue of the device.
const MI300X: u32 = 90_402;
/// gfx1100: a call moves single queues.
const NAVI31: u32 = 110_000;
/// gfx1030: one process at a time may have a debugger.
const NAVI21: u32 = 100_300;

/// A daemon, an emulated KFD, and two loads without end: one less important than the other.
pub(super) struct Scene {
    /// Ended first: one that stands still may trace the others, who then cannot end.
    pub(super) daemon: Daemon,
    pub(super) low: Load,
    pub(super) high: Load,
    pub(super) emulator: Emulator,
    pub(super) folder: Folder,
}

impl Scene {
    pub(super) fn new(kernel: &str, gfx: u32) -> Self {
        let folder = Folder::new();
        let emulator = Emulator::start_kfd(&folder, kernel, gfx);
        let low = emulator.load(&[("GPREEMPT_PRIORITY", "2")]);
        let daemon = start(&folder);
        until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
        let high = emulator.load(&[("GPREEMPT_PRIORITY", "7")]);
        Self { low, high, daemon, emulator, folder }
    }

    pub(super) fn until_low_waits(&self) {
        until("the low one was preempted", || {
            state(&self.daemon, &self.low) == Some(TaskState::Preempted)
                && state(&self.daemon, &self.high) == Some(TaskState::Running)
                && self.emulator.is_stopped(self.low.pid())
                && !self.emulator.is_stopped(self.high.pid())
        });
    }

    pub(super) fn until_low_runs(&self) {
        until("the low one runs", || !self.emulator.is_stopped(self.low.pid()));
    }
}

pub(super) fn start(folder: &Folder) -> Daemon {
    Daemon::start(folder, &["--emulated-kfd", folder.path("kfd").to_str().unwrap()])
}

pub(super) fn state(daemon: &Daemon, load: &Load) -> Option<TaskState> {
    daemon.task(load.pid()).map(|task| task.state)
}

#[test]
fn the_more_important_process_gets_the_device_and_nothing_is_lost() {
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.12.95", MI300X), ("6.12.103", NAVI31)] {
        let mut scene = Scene::new(kernel, gfx);
        scene.until_low_waits();
        // The device is done a moment before that is counted.
        until("the preempt is counted", || {
            scene.daemon.task(scene.low.pid()).is_some_and(|task| task.preempts >= 1)
        });
        assert_eq!(scene.daemon.snapshot().devices[0].kind, "amd");
        scene.high.finish();
        until("the low one has it again", || {
            state(&scene.daemon, &scene.low) == Some(TaskState::Running)
        });
        scene.low.finish();
    }
}

#[test]
fn where_queues_cannot_be_had_processes_are_paused() {
    // No debugger's interface, and a device with room for one debugged process.
    for (kernel, gfx) in [("6.1", MI300X), ("6.12.103", NAVI21)] {
        let mut scene = Scene::new(kernel, gfx);
        scene.until_low_waits();
        scene.high.finish();
        scene.until_low_runs();
        scene.low.finish();
    }
}

#[test]
fn whoever_was_off_goes_on_when_the_daemon_is_killed() {
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.1", MI300X)] {
        let mut scene = Scene::new(kernel, gfx);
        scene.until_low_waits();
        // By the kernel itself, or by the keeper where the kernel does nothing.
        scene.daemon.kill();
        scene.until_low_runs();
        scene.daemon = start(&scene.folder);
        scene.until_low_waits();
        scene.daemon.signal(Signal::TERM);
        assert!(scene.daemon.wait().success());
        scene.until_low_runs();
        scene.high.finish();
        scene.low.finish();
    }
}

#[test]
fn a_daemon_that_stands_still_keeps_nobody_off() {
    // A session that its owner ends, one whose calls need a tracer, and a pause.
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.12.95", MI300X), ("6.1", MI300X)] {
        let mut scene = Scene::new(kernel, gfx);
        scene.until_low_waits();
        scene.daemon.signal(Signal::STOP);
        // Nobody has died, so the kernel does nothing. The keeper hears nothing, and acts. If the
        // daemon was stopped while it traced somebody the keeper has it go on, and it soon begins
        // anew.
        until("the low one runs, or did", || {
            let begins_anew = |line: &String| line.contains("stood still for so long");
            !scene.emulator.is_stopped(scene.low.pid())
                || scene.daemon.log().iter().any(begins_anew)
        });
        assert!(!scene.emulator.is_stopped(scene.high.pid()), "{kernel}");
        // It goes on as if it had just started.
        scene.daemon.signal(Signal::CONT);
        scene.until_low_waits();
        scene.high.finish();
        scene.until_low_runs();
        scene.low.finish();
    }
}

#[test]
fn a_suspension_is_kept_and_ends_with_its_lease() {
    let mut scene = Scene::new("6.12.103", MI300X);
    scene.until_low_waits();
    let process = Process::new(scene.high.pid(), 0).unwrap();
    let lease_ms = NonZeroU32::new(1_000).unwrap();
    scene.daemon.connect().expect_ok(&Request::Suspend { process, lease_ms }).unwrap();
    until("the high one is off and the low one runs", || {
        scene.emulator.is_stopped(scene.high.pid()) && !scene.emulator.is_stopped(scene.low.pid())
    });
    scene.until_low_waits();
    scene.high.finish();
    scene.low.finish();
}

#[test]
fn an_emulator_that_ends_is_missed_and_used_again_when_it_is_back() {
    for kernel in ["6.12.103", "6.12.103+patched"] {
        let scene = Scene::new(kernel, MI300X);
        scene.until_low_waits();
        let Scene { low, high, daemon, emulator, folder } = scene;
        drop(emulator);
        let is_said = || {
            let problems = daemon.snapshot().problems;
            problems.iter().any(|problem| problem.contains("has ended, and its processes"))
        };
        until("that is said", is_said);
        until("its processes are gone", || daemon.snapshot().tasks.is_empty());
        drop(low);
        drop(high);
        let emulator = Emulator::start_kfd(&folder, kernel, MI300X);
        until("that is over", || !is_said());
        let low = emulator.load(&[("GPREEMPT_PRIORITY", "2")]);
        until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
        let high = emulator.load(&[("GPREEMPT_PRIORITY", "7")]);
        let mut scene = Scene { low, high, daemon, emulator, folder };
        scene.until_low_waits();
        scene.high.finish();
        scene.low.finish();
    }
}

#[test]
fn processes_that_die_leave_nothing_behind() {
    let mut scene = Scene::new("6.12.103", MI300X);
    scene.until_low_waits();
    // Once while it is off, once while the other one is.
    let low = std::mem::replace(&mut scene.low, scene.emulator.load(&[("GPREEMPT_PRIORITY", "3")]));
    drop(low);
    scene.until_low_waits();
    let high =
        std::mem::replace(&mut scene.high, scene.emulator.load(&[("GPREEMPT_PRIORITY", "6")]));
    drop(high);
    scene.until_low_waits();
    scene.high.finish();
    scene.until_low_runs();
    scene.low.finish();
}
