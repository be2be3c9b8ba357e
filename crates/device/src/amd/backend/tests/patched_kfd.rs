//! A patched KFD: all processes in one call, without a debug session; and a patched KFD whose calls
//! or list of queues disappear and return.

use std::time::Instant;

use gpreempt_core::priority::Priority;

use super::*;
use crate::amd::stop_method::PatchedCalls;

pub(super) fn patched() -> KfdProfile {
    KfdProfile { patched: true, ..KfdProfile::default() }
}

pub(super) fn set_scheduler(fixture: &Fixture, text: &str) {
    let folder = fixture.folder.path("parameters");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("kfd_preempt_enable"), text).unwrap();
}

/// The serial number of queue 0.
pub(super) fn serial(fixture: &Fixture) -> u64 {
    fixture.kfd.serial(fixture.key.pid, 0).unwrap()
}

/// Writes debugfs with queue 0 under a serial number.
pub(super) fn list(fixture: &Fixture, serial: u64, mark: &str) {
    let pid = fixture.key.pid;
    fs::create_dir_all(fixture.folder.path("debug")).unwrap();
    let line = format!(
        "pid {pid} queue 0 serial {serial} gpu_id {GPU} type 0 format 1 ring 1000 size 4096 \
         read 0 write 0{mark}\n"
    );
    let made = fixture.folder.path("made");
    fs::write(&made, line).unwrap();
    fs::rename(made, fixture.folder.path("debug/queues")).unwrap();
}

#[test]
fn queues_of_eight_processes_are_one_call_and_one_remap() {
    let mut fixture = Fixture::new(patched(), 8);
    let others: Vec<TestProcess> = (0..7).map(|_| fixture.join(8)).collect();
    fixture.adopt();
    for (number, other) in (2..).zip(&others) {
        fixture.backend.adopt(TaskId(number), other.key).unwrap();
    }
    let queues: Vec<QueueId> = (0..64).map(|_| fixture.wait_for_queue()).collect();
    let pids: Vec<u32> =
        others.iter().map(|other| other.key.pid).chain([fixture.key.pid]).collect();
    let all_run = |fixture: &Fixture, runs: bool| {
        let is_so = |pid: u32, queue| fixture.kfd.is_running(pid, queue) == Some(runs);
        pids.iter().all(|pid| (0..8).all(|queue| is_so(*pid, queue)))
    };
    // This thread may be descheduled between two commands, so several attempts are allowed.
    let mut fewest = u64::MAX;
    for _ in 0..50 {
        let before = fixture.kfd.remaps();
        queues.iter().for_each(|queue| fixture.preempt(*queue));
        for _ in 0..64 {
            fixture.wait_for(|event| matches!(event, Event::Preempted { .. }).then_some(()));
        }
        fewest = fewest.min(fixture.kfd.remaps() - before);
        assert!(all_run(&fixture, false));
        for queue in &queues {
            fixture.backend.submit(Command::Resume { queue: *queue });
        }
        for _ in 0..64 {
            fixture.wait_for(|event| matches!(event, Event::Resumed { .. }).then_some(()));
        }
        assert!(all_run(&fixture, true));
        if fewest == 1 {
            break;
        }
    }
    assert_eq!(fewest, 1);
    assert!(pids.iter().all(|pid| !fixture.kfd.is_debugged(*pid)), "no process has a session");
    assert_eq!(fixture.acts(), Some(Vec::new()), "nothing has to be undone by others");
    assert_eq!(fixture.backend.devices[0].calls, 1, "a switch costs one call");
    assert_eq!(fixture.backend.stop_method().name, "own-calls");
}

#[test]
fn every_queue_has_its_own_result_and_a_release_resumes_all() {
    let mut fixture = Fixture::new(patched(), 3);
    fixture.adopt();
    let queues: Vec<QueueId> = (0..3).map(|_| fixture.wait_for_queue()).collect();
    fixture.kfd.break_queue(fixture.key.pid, 1);
    fixture.client().destroy_queue(2).unwrap();
    queues.iter().for_each(|queue| fixture.preempt(*queue));
    let mut results = Vec::new();
    while results.len() < 3 {
        let result = fixture.wait_for(|event| {
            if let Event::Preempted { queue } = *event {
                return Some((queue, None));
            }
            let Event::PreemptFailed { queue, fault } = *event else { return None };
            Some((queue, Some(fault)))
        });
        results.push(result);
    }
    let of = |queue: QueueId| results.iter().find(|(it, _)| *it == queue).unwrap().1;
    assert_eq!(of(queues[0]), None);
    assert_eq!(of(queues[1]), Some(Fault::Refused(5)));
    assert_eq!(of(queues[2]), Some(Fault::Gone));
    assert_eq!(fixture.is_running(0), Some(false));
    fixture.backend.release(TASK);
    fixture.backend.release_all().unwrap();
    assert_eq!(fixture.is_running(0), Some(true));
    assert_eq!(fixture.acts(), None);
}

#[test]
fn leases_are_renewed_in_time() {
    let (mut fixture, _) = Fixture::stopped(patched());
    // More than the lease, by the clock of the in-process KFD. The machine may be too slow to renew
    // in time, so several attempts are allowed.
    let is_kept = (0..10).any(|_| {
        let before = fixture.kfd.remaps();
        for _ in 0..2 {
            fixture.kfd.pass(Duration::from_millis(3_000));
            run_for(&mut fixture, StdDuration::from_millis(1_500));
        }
        fixture.is_running(0) == Some(false) && fixture.kfd.remaps() == before
    });
    assert!(is_kept);
    fixture.kfd.pass(Duration::from_millis(6_000));
    fixture.until("it is preempted again", |fixture| fixture.is_running(0) == Some(false));
}

#[test]
fn a_queue_with_a_new_serial_number_is_a_new_queue() {
    let mut fixture = Fixture::new(patched(), 1);
    let known = serial(&fixture);
    list(&fixture, known, "");
    fixture.adopt();
    let first = fixture.wait_for_queue();
    fixture.stop(first);
    list(&fixture, known, " preempted");
    // Destroyed and created again with the same id.
    fixture.client().destroy_queue(0).unwrap();
    list(&fixture, known + 1, "");
    fixture.wait_for_event(Event::QueueVanished { queue: first });
    let second = fixture.wait_for_queue();
    assert_ne!(first, second);
    // The same, with the new queue preempted by another program.
    list(&fixture, known + 2, " preempted");
    fixture.wait_for_event(Event::QueueVanished { queue: second });
}

#[test]
fn a_queue_created_again_before_the_next_scan_is_not_preempted() {
    let mut fixture = Fixture::new(patched(), 1);
    list(&fixture, serial(&fixture), "");
    fixture.adopt();
    let first = fixture.wait_for_queue();
    fixture.client().destroy_queue(0).unwrap();
    assert_eq!(fixture.client().open_queue(GPU), Ok(0));
    fixture.preempt(first);
    fixture.wait_for(|event| {
        let Event::PreemptFailed { queue, fault } = *event else { return None };
        (queue == first && fault == Fault::Gone).then_some(())
    });
    assert_eq!(fixture.is_running(0), Some(true));
}

#[test]
fn a_queue_with_the_id_of_a_preempted_one_stays_running() {
    let mut fixture = Fixture::new(patched(), 1);
    let known = serial(&fixture);
    list(&fixture, known, "");
    fixture.adopt();
    let first = fixture.wait_for_queue();
    fixture.stop(first);
    list(&fixture, known, " preempted");
    fixture.client().destroy_queue(0).unwrap();
    assert_eq!(fixture.client().open_queue(GPU), Ok(0));
    list(&fixture, serial(&fixture), "");
    fixture.wait_for_event(Event::QueueVanished { queue: first });
    // Longer than the renewal interval.
    run_for(&mut fixture, StdDuration::from_millis(2_500));
    assert_eq!(fixture.is_running(0), Some(true));
}

#[test]
fn without_the_privilege_there_are_sessions_and_a_reason() {
    let mut fixture = Fixture::with(&FakeKfd::with(patched()), 1, false);
    fixture.adopt();
    let queue = fixture.wait_for_queue();
    fixture.stop(queue);
    assert!(fixture.kfd.is_debugged(fixture.key.pid));
    let method = fixture.backend.stop_method();
    assert_eq!(method.name, "debug-trap");
    assert!(method.why_not_better.unwrap().contains("CAP_SYS_ADMIN"));
}

#[test]
fn the_in_kernel_scheduler_gets_priorities_and_no_commands() {
    let mut fixture = Fixture::new(patched(), 1);
    set_scheduler(&fixture, "N\n");
    fixture.backend.set_priority(TASK, Priority::MAX);
    fixture.adopt();
    fixture.backend.set_priority(TASK, Priority::new(12).unwrap());
    fixture.wait_for_queue();
    let pid = fixture.key.pid;
    assert_eq!(fixture.kfd.logical_priority(pid), None, "the in-kernel scheduler is off");
    set_scheduler(&fixture, "Y\n");
    let externally_scheduled = |wanted: bool| {
        move |event: &Event| {
            let Event::DeviceExternallyScheduled { externally_scheduled, .. } = event else {
                return None;
            };
            (*externally_scheduled == wanted).then_some(())
        }
    };
    fixture.wait_for(externally_scheduled(true));
    assert_eq!(fixture.kfd.logical_priority(pid), Some(12));
    assert!(matches!(
        fixture.acts().as_deref(),
        Some([GpuChange::Amd(AmdChange::Priority { .. })])
    ));
    assert_eq!(fixture.limit().unwrap().sentence, "scheduled by the kernel");
    assert_eq!(fixture.backend.stop_method().name, "kernel-scheduler");
    fixture.backend.set_priority(TASK, Priority::new(3).unwrap());
    until("the kernel has the new priority", || fixture.kfd.logical_priority(pid) == Some(3));
    set_scheduler(&fixture, "N\n");
    fixture.wait_for(externally_scheduled(false));
    assert_eq!(fixture.limit(), None);
    fixture.backend.release(TASK);
    fixture.backend.release_all().unwrap();
    assert_eq!((fixture.kfd.logical_priority(pid), fixture.acts()), (None, None));
}

/// Lets the backend take in reports for that long.
fn run_for(fixture: &mut Fixture, time: StdDuration) {
    let since = Instant::now();
    while since.elapsed() < time {
        fixture.backend.poll_event();
        std::thread::sleep(StdDuration::from_millis(5));
    }
}

fn method_name(fixture: &mut Fixture) -> &'static str {
    fixture.backend.take_reports();
    fixture.backend.stop_method_of(TASK).unwrap().name
}

#[test]
fn a_lost_list_of_queues_is_reported_and_found_again() {
    let mut fixture = Fixture::new(patched(), 1);
    list(&fixture, serial(&fixture), "");
    fixture.adopt();
    let queue = fixture.wait_for_queue();
    fs::remove_dir_all(fixture.folder.path("debug")).unwrap();
    let is_it = |text: &str| text.contains("the list of queues is gone");
    fixture.wait_for_note(|note| matches!(note, ControllerReport::Problem(text) if is_it(text)));
    assert!(
        fixture.limit().is_some_and(|limit| is_it(&limit.sentence) && !limit.is_uncontrollable)
    );
    assert_eq!(method_name(&mut fixture), "own-calls");
    // The first queue is still known, and a new one is found in sysfs.
    fixture.stop(queue);
    fixture.client().open_queue(GPU).unwrap();
    show_queue(&fixture.folder, fixture.key.pid, 1);
    let second = fixture.wait_for_queue();
    assert_eq!(fixture.backend.observe(second), Some(BUSY), "its ring is unknown");
    list(&fixture, serial(&fixture), " preempted");
    fixture.wait_for_note(|note| matches!(note, ControllerReport::Solved(text) if is_it(text)));
    assert_eq!(fixture.limit(), None);
    let is_kept = |event: &Event| (*event == Event::QueueVanished { queue: second }).then_some(());
    fixture.wait_for(is_kept);
    assert_eq!(fixture.backend.queues_of(TASK), [queue], "it is not in the list, the first one is");
}

#[test]
fn a_program_that_calls_execve_keeps_its_priority() {
    let mut fixture = Fixture::new(patched(), 1);
    set_scheduler(&fixture, "Y\n");
    list(&fixture, serial(&fixture), "");
    fixture.adopt();
    fixture.backend.set_priority(TASK, Priority::new(12).unwrap());
    let (queue, pid) = (fixture.wait_for_queue(), fixture.key.pid);
    fixture.until("it has it", |fixture| fixture.kfd.logical_priority(pid) == Some(12));
    fixture.backend.set_queue_priority(queue, Priority::new(3));
    fixture.until("so has it", |fixture| fixture.kfd.logical_priority_of(pid, 0) == Some(3));
    // The folder and the pid stay the same, as after `execve`.
    fixture.process.client = None;
    assert_eq!(fixture.kfd.logical_priority(pid), None);
    let client = fixture.kfd.client(pid);
    assert_eq!(client.open_queue(GPU), Ok(0));
    fixture.process.client = Some(client);
    list(&fixture, serial(&fixture), "");
    fixture.until("it has it again", |fixture| fixture.kfd.logical_priority(pid) == Some(12));
    // A queue's own priority ends with the queue, even if the command arrives late.
    fixture.wait_for_event(Event::QueueVanished { queue });
    fixture.backend.set_queue_priority(queue, Priority::new(4));
    fixture.backend.set_priority(TASK, Priority::new(13).unwrap());
    fixture.until("the kernel has the new priority", |fixture| {
        fixture.kfd.logical_priority(pid) == Some(13)
    });
    assert_eq!(fixture.kfd.logical_priority_of(pid, 0), None);
}

#[test]
fn without_the_calls_there_are_sessions_until_they_return() {
    let (mut fixture, _) = Fixture::stopped(patched());
    fixture.kfd.set_patched(false);
    let is_said = |text: &str| text.contains("calls of the patched KFD are refused");
    fixture.wait_for_note(|note| matches!(note, ControllerReport::Problem(text) if is_said(text)));
    let second = fixture.wait_for_queue();
    assert_eq!(method_name(&mut fixture), "debug-trap");
    assert!(fixture.kfd.is_debugged(fixture.key.pid));
    fixture.stop(second);
    assert_eq!(fixture.is_running(0), Some(false));
    fixture.kfd.set_patched(true);
    fixture.wait_for_note(|note| matches!(note, ControllerReport::Solved(text) if is_said(text)));
    let third = fixture.wait_for_queue();
    assert_eq!(method_name(&mut fixture), "own-calls");
    assert!(!fixture.kfd.is_debugged(fixture.key.pid), "the session has ended");
    fixture.stop(third);
    assert_eq!(fixture.is_running(0), Some(false));
    assert!(fixture.acts().is_some(), "whose it is stays written down");
}

#[test]
fn calls_that_change_within_milliseconds_lose_no_process() {
    let (mut fixture, _) = Fixture::stopped(patched());
    for round in 0..20 {
        fixture.backend.set_patched_calls(PatchedCalls::Absent);
        std::thread::sleep(StdDuration::from_millis(round % 7));
        fixture.backend.take_reports();
        fixture.backend.set_patched_calls(PatchedCalls::Usable);
        std::thread::sleep(StdDuration::from_millis(round % 3));
        fixture.backend.take_reports();
    }
    fixture.until("it is in the batch again", |fixture| {
        let adopted = &fixture.backend.tasks[&TASK];
        adopted.in_batch && !adopted.is_moving && !fixture.backend.queues_of(TASK).is_empty()
    });
    let queue = fixture.backend.queues_of(TASK)[0];
    fixture.stop(queue);
    assert_eq!(fixture.is_running(0), Some(false));
    assert!(!fixture.kfd.is_debugged(fixture.key.pid));
}
