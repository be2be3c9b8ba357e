//! With an emulated KFD that has the calls of our patches, and their scheduler.

use std::fs;
use std::num::NonZeroU32;

use gpreempt_core::priority::Priority;
use gpreempt_device::journal::Journal;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::{TaskSnapshot, TaskState};
use gpreempt_wire::traits::TraitsChange;
use rustix::process::Signal;

use super::amd::{Scene, start, state};
use super::daemon::until;

const PATCHED: &str = "6.12.103+patched";
/// gfx942: a call moves every queue of the device.
const MI300X: u32 = 90_402;
/// gfx1100: a call moves single queues.
const NAVI31: u32 = 110_000;

/// Switches the kernel's scheduler.
fn set_scheduler(scene: &Scene, value: &str) {
    let enable = scene.folder.path("kfd").join("parameters/kfd_preempt_enable");
    fs::write(enable, value).unwrap();
}

fn low(scene: &Scene) -> TaskSnapshot {
    scene.daemon.task(scene.low.pid()).unwrap_or_default()
}

/// How many queues the kernel's scheduler has preempted.
fn kernel_preempts(scene: &Scene) -> u64 {
    let text = fs::read_to_string(scene.folder.path("kfd").join("debug/preempt"));
    let text = text.unwrap_or_default();
    let mut words = text.split_ascii_whitespace().skip_while(|word| *word != "preempts");
    words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The kernel keeps the low one off, and the daemon does nothing.
fn until_the_kernel_schedules(scene: &Scene) {
    let is_yielded = |pid: u32| {
        scene.daemon.task(pid).is_some_and(|task| task.way.as_deref() == Some("kernel-scheduler"))
    };
    until("the kernel schedules", || [&scene.low, &scene.high].iter().all(|l| is_yielded(l.pid())));
    let before = kernel_preempts(scene);
    until("the kernel has preempted the low one", || {
        (kernel_preempts(scene) > before || before > 0)
            && scene.emulator.is_stopped(scene.low.pid())
            && !scene.emulator.is_stopped(scene.high.pid())
    });
    until("nobody is preempted by the daemon", || {
        state(&scene.daemon, &scene.low) == Some(TaskState::Running)
    });
    assert!(low(scene).why.contains("scheduled by the kernel"), "{}", low(scene).why);
}

#[test]
fn the_more_important_process_gets_the_device_in_one_call_for_all() {
    for gfx in [MI300X, NAVI31] {
        let mut scene = Scene::new(PATCHED, gfx);
        scene.until_low_waits();
        assert_eq!(low(&scene).way.as_deref(), Some("own-calls"));
        assert_eq!(low(&scene).no_better_way, None);
        let devices = scene.daemon.snapshot().devices;
        assert_eq!(devices[0].way.as_deref(), Some("own-calls"));
        scene.high.finish();
        until("the low one has it again", || {
            state(&scene.daemon, &scene.low) == Some(TaskState::Running)
        });
        scene.low.finish();
    }
}

#[test]
fn the_kernel_resumes_everybody_when_the_daemon_is_killed() {
    let mut scene = Scene::new(PATCHED, MI300X);
    scene.until_low_waits();
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

#[test]
fn the_kernel_resumes_everybody_when_the_daemon_stands_still() {
    let mut scene = Scene::new(PATCHED, MI300X);
    scene.until_low_waits();
    scene.daemon.signal(Signal::STOP);
    // Nobody tells the kernel any more that it is to stay off.
    scene.until_low_runs();
    scene.daemon.signal(Signal::CONT);
    scene.until_low_waits();
    scene.high.finish();
    scene.low.finish();
}

#[test]
fn the_daemon_steps_back_while_the_kernel_schedules_and_takes_over_after_that() {
    let mut scene = Scene::new(PATCHED, MI300X);
    scene.until_low_waits();
    set_scheduler(&scene, "Y");
    until_the_kernel_schedules(&scene);
    let preempts = low(&scene).preempts;
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(low(&scene).preempts, preempts, "the daemon decides nothing");

    // Whoever dies takes back what it told the kernel: nobody is more important than another.
    scene.daemon.kill();
    let journal = Journal::at(scene.folder.path("state")).unwrap();
    until("everything is put back", || journal.sessions().unwrap().is_empty());
    scene.until_low_runs();
    scene.daemon = start(&scene.folder);
    until_the_kernel_schedules(&scene);

    set_scheduler(&scene, "N");
    scene.until_low_waits();
    assert_eq!(low(&scene).way.as_deref(), Some("own-calls"));
    scene.high.finish();
    scene.low.finish();
}

#[test]
fn priorities_and_suspensions_reach_the_kernel_that_schedules() {
    let mut scene = Scene::new(PATCHED, MI300X);
    set_scheduler(&scene, "Y");
    until_the_kernel_schedules(&scene);
    // What was the more important one is the less important one now.
    let process = Process::new(scene.high.pid(), 0).unwrap();
    let mut client = scene.daemon.connect();
    let change = TraitsChange { priority: Some(Priority::MIN), ..TraitsChange::default() };
    client.expect_ok(&Request::Set { process, change }).unwrap();
    until("the other one is off", || {
        scene.emulator.is_stopped(scene.high.pid()) && !scene.emulator.is_stopped(scene.low.pid())
    });
    let process = Process::new(scene.low.pid(), 0).unwrap();
    let lease_ms = NonZeroU32::new(60_000).unwrap();
    client.expect_ok(&Request::Suspend { process, lease_ms }).unwrap();
    until("it is suspended, and the other one runs", || {
        scene.emulator.is_stopped(scene.low.pid()) && !scene.emulator.is_stopped(scene.high.pid())
    });
    client.expect_ok(&Request::Resume { process }).unwrap();
    until("it is on again", || scene.emulator.is_stopped(scene.high.pid()));
    // The more important one first: the other one may have to wait for that.
    scene.low.finish();
    scene.high.finish();
}
