//! AMD: an emulated KFD, unpatched and patched, and processes that use it as ROCm does.

use std::fs;

use gpreempt_device::journal::Journal;
use gpreempt_stage::until;
use gpreempt_wire::statistics::TaskState;
use rustix::process::Signal;

use super::contention::{
    Contention, ENDLESS, resume, set, start_kfd, state, suspend, until_running,
};

/// gfx942: a call suspends or resumes every queue of the device.
const MI300X: u32 = 90_402;
/// gfx1100: a call suspends or resumes single queues.
const NAVI31: u32 = 110_000;
/// gfx1030: one process at a time may be debugged.
const NAVI21: u32 = 100_300;

#[test]
fn the_higher_priority_gets_the_device_and_no_work_is_lost() {
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.12.95", MI300X), ("6.12.103", NAVI31)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        // The device finishes a moment before the preempt is counted.
        until("the preempt is counted", || contention.low_task().preempts >= 1);
        assert_eq!(contention.daemon.snapshot().devices[0].kind, "amd");
        contention.high.finish_exact().unwrap();
        until("the low-priority load runs", || {
            state(&contention.daemon, &contention.low) == Some(TaskState::Running)
        });
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn processes_are_paused_where_queues_cannot_be_suspended() {
    // No debug interface, and a device with room for one debugged process.
    for (kernel, gfx) in [("6.1", MI300X), ("6.12.103", NAVI21)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        contention.finish();
    }
}

#[test]
fn a_preempted_process_runs_again_when_the_daemon_is_killed() {
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.1", MI300X)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        // Resumed by the kernel, or by the keeper where the kernel does not.
        contention.daemon.kill().unwrap();
        contention.until_low_runs();
        contention.restart_daemon();
        contention.until_low_waits();
        contention.stop_daemon();
        contention.until_low_runs();
        contention.finish();
    }
}

#[test]
fn a_stalled_daemon_keeps_no_process_off() {
    // A debug session that the keeper can end, one whose calls need a tracer, and a pause.
    for (kernel, gfx) in [("6.12.103", MI300X), ("6.12.95", MI300X), ("6.1", MI300X)] {
        let mut contention = Contention::on_kfd(kernel, gfx);
        contention.until_low_waits();
        contention.daemon.signal(Signal::STOP);
        // No process has died, so the kernel does nothing; the keeper undoes the changes. A daemon
        // that was stopped while it traced a process is continued by the keeper, and restarts.
        until("the low-priority load runs, or did", || {
            let is_restarted = |line: &String| line.contains("restarting control");
            !contention.is_low_stopped() || contention.daemon.log().iter().any(is_restarted)
        });
        assert!(!contention.is_high_stopped(), "{kernel}");
        contention.daemon.signal(Signal::CONT);
        contention.until_low_waits();
        contention.finish();
    }
}

#[test]
fn a_suspended_amd_process_is_off_until_its_lease_ends() {
    let mut contention = Contention::on_kfd("6.12.103", MI300X);
    contention.until_low_waits();
    contention.daemon.connect().expect_ok(&suspend(contention.high.pid(), 1_000)).unwrap();
    until("the high-priority load is off and the other runs", || {
        contention.is_high_stopped() && !contention.is_low_stopped()
    });
    contention.until_low_waits();
    contention.finish();
}

#[test]
fn an_emulated_kfd_that_ended_is_reported_and_used_again_after_its_restart() {
    for kernel in ["6.12.103", "6.12.103+patched"] {
        let contention = Contention::on_kfd(kernel, MI300X);
        contention.until_low_waits();
        let Contention { low, high, daemon, emulator, stage } = contention;
        drop(emulator);
        let is_reported = || {
            let problems = daemon.snapshot().problems;
            problems.iter().any(|problem| problem.contains("has ended, and its processes"))
        };
        until("the end is reported", is_reported);
        until("its processes are not tracked", || daemon.snapshot().tasks.is_empty());
        drop(low);
        drop(high);
        let emulator = start_kfd(&stage, kernel, MI300X);
        until("the problem is solved", || !is_reported());
        let low = emulator.load_at(2, ENDLESS).unwrap();
        until_running(&daemon, &low);
        let high = emulator.load_at(7, ENDLESS).unwrap();
        let mut contention = Contention { low, high, daemon, emulator, stage };
        contention.until_low_waits();
        contention.finish();
    }
}

#[test]
fn processes_that_are_killed_do_not_disturb_the_others() {
    let mut contention = Contention::on_kfd("6.12.103", MI300X);
    contention.until_low_waits();
    // Once while the killed process is off, once while it runs.
    let low =
        std::mem::replace(&mut contention.low, contention.emulator.load_at(3, ENDLESS).unwrap());
    drop(low);
    contention.until_low_waits();
    let high =
        std::mem::replace(&mut contention.high, contention.emulator.load_at(6, ENDLESS).unwrap());
    drop(high);
    contention.until_low_waits();
    contention.finish();
}

const PATCHED: &str = "6.12.103+patched";

/// Switches the in-kernel scheduler on or off.
fn set_scheduler(contention: &Contention, value: &str) {
    let enable = contention.stage.path("kfd").join("parameters/kfd_preempt_enable");
    fs::write(enable, value).unwrap();
}

/// The queues that the in-kernel scheduler has preempted.
fn kernel_preempts(contention: &Contention) -> u64 {
    let text = fs::read_to_string(contention.stage.path("kfd").join("debug/preempt"));
    let text = text.unwrap_or_default();
    let mut words = text.split_ascii_whitespace().skip_while(|word| *word != "preempts");
    words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The kernel preempts the low-priority load, and the daemon preempts nothing.
fn until_the_kernel_schedules(contention: &Contention) {
    let is_yielded = |pid: u32| {
        contention
            .daemon
            .task(pid)
            .is_some_and(|task| task.way.as_deref() == Some("kernel-scheduler"))
    };
    until("the kernel schedules", || {
        [&contention.low, &contention.high].iter().all(|l| is_yielded(l.pid()))
    });
    let before = kernel_preempts(contention);
    until("the kernel has preempted the low-priority load", || {
        (kernel_preempts(contention) > before || before > 0)
            && contention.is_low_stopped()
            && !contention.is_high_stopped()
    });
    until("no process is preempted by the daemon", || {
        state(&contention.daemon, &contention.low) == Some(TaskState::Running)
    });
    assert!(
        contention.low_task().why.contains("scheduled by the kernel"),
        "{}",
        contention.low_task().why
    );
}

#[test]
fn the_patched_calls_give_the_device_to_the_higher_priority() {
    for gfx in [MI300X, NAVI31] {
        let mut contention = Contention::on_kfd(PATCHED, gfx);
        contention.until_low_waits();
        assert_eq!(contention.low_task().way.as_deref(), Some("own-calls"));
        assert_eq!(contention.low_task().no_better_way, None);
        let devices = contention.daemon.snapshot().devices;
        assert_eq!(devices[0].way.as_deref(), Some("own-calls"));
        contention.high.finish_exact().unwrap();
        until("the low-priority load runs", || {
            state(&contention.daemon, &contention.low) == Some(TaskState::Running)
        });
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn the_kernel_resumes_all_queues_when_the_daemon_is_killed() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    contention.until_low_waits();
    contention.daemon.kill().unwrap();
    contention.until_low_runs();
    contention.restart_daemon();
    contention.until_low_waits();
    contention.stop_daemon();
    contention.until_low_runs();
    contention.finish();
}

#[test]
fn the_kernel_resumes_all_queues_when_the_daemon_stalls() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    contention.until_low_waits();
    contention.daemon.signal(Signal::STOP);
    // The daemon no longer renews the preempt.
    contention.until_low_runs();
    contention.daemon.signal(Signal::CONT);
    contention.until_low_waits();
    contention.finish();
}

#[test]
fn the_daemon_preempts_nothing_while_the_kernel_schedules() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    contention.until_low_waits();
    set_scheduler(&contention, "Y");
    until_the_kernel_schedules(&contention);
    let preempts = contention.low_task().preempts;
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(contention.low_task().preempts, preempts, "the daemon decides nothing");

    // The keeper of a killed daemon resets the priorities in the kernel.
    contention.daemon.kill().unwrap();
    let journal = Journal::at(contention.stage.path("state")).unwrap();
    until("all changes are undone", || journal.sessions().unwrap().is_empty());
    contention.until_low_runs();
    contention.restart_daemon();
    until_the_kernel_schedules(&contention);

    set_scheduler(&contention, "N");
    contention.until_low_waits();
    assert_eq!(contention.low_task().way.as_deref(), Some("own-calls"));
    contention.finish();
}

#[test]
fn priorities_and_suspensions_reach_the_kernel_that_schedules() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    set_scheduler(&contention, "Y");
    until_the_kernel_schedules(&contention);
    // The high-priority load gets the lowest priority.
    let mut client = contention.daemon.connect();
    client.expect_ok(&set(&contention.high, 0)).unwrap();
    until("the other load is off", || contention.is_high_stopped() && !contention.is_low_stopped());
    client.expect_ok(&suspend(contention.low.pid(), 60_000)).unwrap();
    until("it is suspended, and the other load runs", || {
        contention.is_low_stopped() && !contention.is_high_stopped()
    });
    client.expect_ok(&resume(&contention.low)).unwrap();
    until("it runs again", || contention.is_high_stopped());
    // The higher priority first: the other load may have to wait for it.
    contention.low.finish_exact().unwrap();
    contention.high.finish_exact().unwrap();
}
