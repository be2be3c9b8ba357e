//! With an emulated KFD and processes that use it, as ROCm's would the kernel's.

use std::num::NonZeroU32;

use gpreempt_stage::until;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::TaskState;
use rustix::process::Signal;

use super::contention::{Contention, ENDLESS, start_kfd, state};

/// gfx942: a call moves every queue of the device.
const MI300X: u32 = 90_402;
/// gfx1100: a call moves single queues.
const NAVI31: u32 = 110_000;
/// gfx1030: one process at a time may have a debugger.
const NAVI21: u32 = 100_300;

#[test]
fn the_more_important_process_gets_the_device_and_nothing_is_lost() {
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.12.95", MI300X), ("6.12.103", NAVI31)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        // The device is done a moment before that is counted.
        until("the preempt is counted", || {
            contention.daemon.task(contention.low.pid()).is_some_and(|task| task.preempts >= 1)
        });
        assert_eq!(contention.daemon.snapshot().devices[0].kind, "amd");
        contention.high.finish_exact().unwrap();
        until("the low one has it again", || {
            state(&contention.daemon, &contention.low) == Some(TaskState::Running)
        });
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn where_queues_cannot_be_had_processes_are_paused() {
    // No debugger's interface, and a device with room for one debugged process.
    for (kernel, gfx) in [("6.1", MI300X), ("6.12.103", NAVI21)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        contention.high.finish_exact().unwrap();
        contention.until_low_runs();
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn whoever_was_off_goes_on_when_the_daemon_is_killed() {
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.1", MI300X)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        // By the kernel itself, or by the keeper where the kernel does nothing.
        contention.daemon.kill().unwrap();
        contention.until_low_runs();
        contention.restart_daemon();
        contention.until_low_waits();
        contention.daemon.signal(Signal::TERM);
        assert!(contention.daemon.wait().unwrap().success());
        contention.until_low_runs();
        contention.high.finish_exact().unwrap();
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn a_daemon_that_stands_still_keeps_nobody_off() {
    // A session that its owner ends, one whose calls need a tracer, and a pause.
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.12.95", MI300X), ("6.1", MI300X)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        contention.daemon.signal(Signal::STOP);
        // Nobody has died, so the kernel does nothing. The keeper hears nothing, and acts. If the
        // daemon was stopped while it traced somebody the keeper has it go on, and it soon begins
        // anew.
        until("the low one runs, or did", || {
            let begins_anew = |line: &String| line.contains("stood still for so long");
            !contention.emulator.is_stopped(contention.low.pid())
                || contention.daemon.log().iter().any(begins_anew)
        });
        assert!(!contention.emulator.is_stopped(contention.high.pid()), "{kernel}");
        // It goes on as if it had just started.
        contention.daemon.signal(Signal::CONT);
        contention.until_low_waits();
        contention.high.finish_exact().unwrap();
        contention.until_low_runs();
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn a_suspension_is_kept_and_ends_with_its_lease() {
    let mut contention = Contention::on_kfd("6.12.103", MI300X);
    contention.until_low_waits();
    let process = Process::new(contention.high.pid(), 0).unwrap();
    let lease_ms = NonZeroU32::new(1_000).unwrap();
    contention.daemon.connect().expect_ok(&Request::Suspend { process, lease_ms }).unwrap();
    until("the high one is off and the low one runs", || {
        contention.emulator.is_stopped(contention.high.pid())
            && !contention.emulator.is_stopped(contention.low.pid())
    });
    contention.until_low_waits();
    contention.high.finish_exact().unwrap();
    contention.low.finish_exact().unwrap();
}

#[test]
fn an_emulator_that_ends_is_missed_and_used_again_when_it_is_back() {
    for kernel in ["6.12.103", "6.12.103+patched"] {
        let contention = Contention::on_kfd(kernel, MI300X);
        contention.until_low_waits();
        let Contention { low, high, daemon, emulator, stage } = contention;
        drop(emulator);
        let is_said = || {
            let problems = daemon.snapshot().problems;
            problems.iter().any(|problem| problem.contains("has ended, and its processes"))
        };
        until("that is said", is_said);
        until("its processes are gone", || daemon.snapshot().tasks.is_empty());
        drop(low);
        drop(high);
        let emulator = start_kfd(&stage, kernel, MI300X);
        until("that is over", || !is_said());
        let low = emulator.load_at(2, ENDLESS).unwrap();
        until("the low one runs", || state(&daemon, &low) == Some(TaskState::Running));
        let high = emulator.load_at(7, ENDLESS).unwrap();
        let mut contention = Contention { low, high, daemon, emulator, stage };
        contention.until_low_waits();
        contention.high.finish_exact().unwrap();
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn processes_that_die_leave_nothing_behind() {
    let mut contention = Contention::on_kfd("6.12.103", MI300X);
    contention.until_low_waits();
    // Once while it is off, once while the other one is.
    let low =
        std::mem::replace(&mut contention.low, contention.emulator.load_at(3, ENDLESS).unwrap());
    drop(low);
    contention.until_low_waits();
    let high =
        std::mem::replace(&mut contention.high, contention.emulator.load_at(6, ENDLESS).unwrap());
    drop(high);
    contention.until_low_waits();
    contention.high.finish_exact().unwrap();
    contention.until_low_runs();
    contention.low.finish_exact().unwrap();
}
