//! With an emulated KFD that has the calls of our patches, and their scheduler.

use std::fs;
use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use gpreempt_device::journal::Journal;
use gpreempt_stage::until;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::request::Request;
use gpreempt_wire::statistics::{TaskSnapshot, TaskState};
use rustix::process::Signal;

use super::contention::{Contention, state};

const PATCHED: &str = "6.12.103+patched";
/// gfx942: a call moves every queue of the device.
const MI300X: u32 = 90_402;
/// gfx1100: a call moves single queues.
const NAVI31: u32 = 110_000;

/// Switches the kernel's scheduler.
fn set_scheduler(contention: &Contention, value: &str) {
    let enable = contention.stage.path("kfd").join("parameters/kfd_preempt_enable");
    fs::write(enable, value).unwrap();
}

fn low(contention: &Contention) -> TaskSnapshot {
    contention.daemon.task(contention.low.pid()).unwrap_or_default()
}

/// How many queues the kernel's scheduler has preempted.
fn kernel_preempts(contention: &Contention) -> u64 {
    let text = fs::read_to_string(contention.stage.path("kfd").join("debug/preempt"));
    let text = text.unwrap_or_default();
    let mut words = text.split_ascii_whitespace().skip_while(|word| *word != "preempts");
    words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The kernel keeps the low one off, and the daemon does nothing.
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
    until("the kernel has preempted the low one", || {
        (kernel_preempts(contention) > before || before > 0)
            && contention.emulator.is_stopped(contention.low.pid())
            && !contention.emulator.is_stopped(contention.high.pid())
    });
    until("nobody is preempted by the daemon", || {
        state(&contention.daemon, &contention.low) == Some(TaskState::Running)
    });
    assert!(low(contention).why.contains("scheduled by the kernel"), "{}", low(contention).why);
}

#[test]
fn the_more_important_process_gets_the_device_in_one_call_for_all() {
    for gfx in [MI300X, NAVI31] {
        let mut contention = Contention::on_kfd(PATCHED, gfx);
        contention.until_low_waits();
        assert_eq!(low(&contention).way.as_deref(), Some("own-calls"));
        assert_eq!(low(&contention).no_better_way, None);
        let devices = contention.daemon.snapshot().devices;
        assert_eq!(devices[0].way.as_deref(), Some("own-calls"));
        contention.high.finish_exact().unwrap();
        until("the low one has it again", || {
            state(&contention.daemon, &contention.low) == Some(TaskState::Running)
        });
        contention.low.finish_exact().unwrap();
    }
}

#[test]
fn the_kernel_resumes_everybody_when_the_daemon_is_killed() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    contention.until_low_waits();
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

#[test]
fn the_kernel_resumes_everybody_when_the_daemon_stands_still() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    contention.until_low_waits();
    contention.daemon.signal(Signal::STOP);
    // Nobody tells the kernel any more that it is to stay off.
    contention.until_low_runs();
    contention.daemon.signal(Signal::CONT);
    contention.until_low_waits();
    contention.high.finish_exact().unwrap();
    contention.low.finish_exact().unwrap();
}

#[test]
fn the_daemon_steps_back_while_the_kernel_schedules_and_takes_over_after_that() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    contention.until_low_waits();
    set_scheduler(&contention, "Y");
    until_the_kernel_schedules(&contention);
    let preempts = low(&contention).preempts;
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(low(&contention).preempts, preempts, "the daemon decides nothing");

    // Whoever dies takes back what it told the kernel: nobody is more important than another.
    contention.daemon.kill().unwrap();
    let journal = Journal::at(contention.stage.path("state")).unwrap();
    until("everything is put back", || journal.sessions().unwrap().is_empty());
    contention.until_low_runs();
    contention.restart_daemon();
    until_the_kernel_schedules(&contention);

    set_scheduler(&contention, "N");
    contention.until_low_waits();
    assert_eq!(low(&contention).way.as_deref(), Some("own-calls"));
    contention.high.finish_exact().unwrap();
    contention.low.finish_exact().unwrap();
}

#[test]
fn priorities_and_suspensions_reach_the_kernel_that_schedules() {
    let mut contention = Contention::on_kfd(PATCHED, MI300X);
    set_scheduler(&contention, "Y");
    until_the_kernel_schedules(&contention);
    // What was the more important one is the less important one now.
    let process = Process::new(contention.high.pid(), 0).unwrap();
    let mut client = contention.daemon.connect();
    let change = SchedAttrChange { priority: Some(Priority::MIN), ..SchedAttrChange::default() };
    client.expect_ok(&Request::Set { process, change }).unwrap();
    until("the other one is off", || {
        contention.emulator.is_stopped(contention.high.pid())
            && !contention.emulator.is_stopped(contention.low.pid())
    });
    let process = Process::new(contention.low.pid(), 0).unwrap();
    let lease_ms = NonZeroU32::new(60_000).unwrap();
    client.expect_ok(&Request::Suspend { process, lease_ms }).unwrap();
    until("it is suspended, and the other one runs", || {
        contention.emulator.is_stopped(contention.low.pid())
            && !contention.emulator.is_stopped(contention.high.pid())
    });
    client.expect_ok(&Request::Resume { process }).unwrap();
    until("it is on again", || contention.emulator.is_stopped(contention.high.pid()));
    // The more important one first: the other one may have to wait for that.
    contention.low.finish_exact().unwrap();
    contention.high.finish_exact().unwrap();
}
