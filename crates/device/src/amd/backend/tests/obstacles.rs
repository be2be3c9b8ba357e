//! Processes that cannot be controlled or stop being controllable, and queue ids that are reused.

use gpreempt_emu::kfd::driver::IoctlRequest;
use zerocopy::IntoBytes;

use super::*;
use crate::amd::KfdDebugCalls;
use crate::amd::abi::block::{DESTROY_QUEUE, DestroyQueue};
use crate::amd::abi::version::Version;
use crate::amd::session::DebugSession;
use crate::amd::tracer::as_tracer;

#[test]
fn control_begins_when_the_other_debugger_ends() {
    let mut fixture = Fixture::new(KfdProfile::default(), 1);
    let pid = fixture.key.pid;
    // A debugger like rocgdb that has the session but no longer traces.
    let other = fixture.kfd.debugger(77);
    let session = DebugSession::attach(std::sync::Arc::new(other), pid).unwrap();
    fixture.adopt();
    fixture.wait_for_problem("has a debugger already");
    assert!(fixture.limit().is_some_and(|limit| limit.is_uncontrollable));
    assert_eq!(fixture.acts(), Some(vec![]), "it is recorded, and nothing is changed");
    session.detach().unwrap();
    let queue = fixture.wait_for_queue();
    fixture.wait_for_note(|note| *note == ControllerReport::Solved(format!("process {pid} ")));
    assert_eq!(fixture.limit(), None);
    fixture.stop(queue);
}

#[test]
fn a_lost_session_is_started_again() {
    let (mut fixture, queue) = Fixture::stopped(KfdProfile::default());
    // Another program ended the session; the kernel has resumed every queue.
    let (other, pid) = (fixture.kfd.debugger(78), fixture.key.pid);
    as_tracer(&other, pid, || other.disable(pid)).unwrap().unwrap();
    let again = fixture.wait_for_queue();
    assert_ne!(again, queue);
    fixture.stop(again);
    assert_eq!(fixture.is_running(0), Some(false));
}

#[test]
fn a_process_without_a_debugger_slot_is_paused_as_a_whole() {
    let rules = KfdProfile { one_debugged: true, ..KfdProfile::default() };
    let kfd = FakeKfd::with(rules);
    let mut first = Fixture::with(&kfd, 1, true);
    first.adopt();
    first.wait_for_queue();
    let mut second = Fixture::with(&kfd, 2, true);
    second.adopt();
    let queue = second.wait_for_queue();
    assert_eq!(second.backend.queues_of(TASK), [queue], "one for all that it has there");
    let limit = second.limit().unwrap();
    assert!(!limit.is_uncontrollable && limit.sentence.contains("paused as a whole"), "{limit:?}");
    assert_eq!(second.backend.observe(queue), Some(BUSY), "its rings are not shown");
    second.stop(queue);
    assert_eq!((second.is_running(0), second.is_running(1)), (Some(false), Some(false)));
    assert!(matches!(second.acts().unwrap()[..], [GpuChange::Amd(AmdChange::Pause { .. })]));
    second.backend.submit(Command::Resume { queue });
    second.wait_for_event(Event::Resumed { queue });
    assert_eq!(second.is_running(0), Some(true));
    assert_eq!(second.acts(), Some(vec![]));
    second.stop(queue);
    second.backend.release(TASK);
    second.backend.release_all().unwrap();
    assert_eq!((second.is_running(1), second.acts()), (Some(true), None));
}

#[test]
fn the_journal_suffices_to_end_a_pause() {
    let rules = KfdProfile { devices_know_debuggers: false, ..KfdProfile::default() };
    let (fixture, _) = Fixture::stopped(rules);
    // As if this program were killed now: only the journal is left.
    let entries = OwnerJournal::at(fixture.journal.clone()).entries().unwrap();
    assert_eq!(fixture.is_running(0), Some(false));
    crate::change::undo(&entries[0]).unwrap();
    assert_eq!(fixture.is_running(0), Some(true));
}

/// A paused process with a tracer: no program can unpause it.
fn paused_and_traced() -> Fixture {
    let rules = KfdProfile { devices_know_debuggers: false, ..KfdProfile::default() };
    let (mut fixture, _) = Fixture::stopped(rules);
    fixture.kfd.trace_externally(fixture.key.pid, std::process::id());
    fixture.backend.release(TASK);
    fixture
}

fn until_put_back(fixture: &mut Fixture, acts: Option<&[GpuChange]>) {
    fixture.until("it runs, and its changes are undone", |fixture| {
        fixture.is_running(0) == Some(true) && fixture.acts().as_deref() == acts
    });
}

#[test]
fn a_pause_ends_after_a_tracer_has_left() {
    let mut fixture = paused_and_traced();
    // Longer than a worker retries while a caller waits.
    fixture.wait_for_problem("has a debugger already");
    std::thread::sleep(StdDuration::from_millis(200));
    assert_eq!(fixture.is_running(0), Some(false));
    fixture.kfd.end_tracing(fixture.key.pid);
    until_put_back(&mut fixture, None);
}

#[test]
fn a_leftover_pause_ends_when_control_begins_again() {
    let mut fixture = paused_and_traced();
    let task = TaskId(2);
    fixture.backend.adopt(task, fixture.key).unwrap();
    fixture.wait_for_problem("paused still");
    assert!(fixture.backend.limit_of(task).is_some_and(|limit| limit.is_uncontrollable));
    assert_eq!(fixture.is_running(0), Some(false));
    fixture.kfd.end_tracing(fixture.key.pid);
    until_put_back(&mut fixture, Some(&[]));
    let queue = fixture.wait_for_queue();
    fixture.stop(queue);
}

#[test]
fn a_process_that_cannot_be_stopped_is_observed_and_has_a_limit() {
    let version = Version { major: 1, minor: 11 };
    let kfd = FakeKfd::with(KfdProfile { version, ..KfdProfile::default() });
    let mut fixture = Fixture::with(&kfd, 1, false);
    let mechanism = fixture.wait_for(|event| {
        let Event::DeviceAppeared { capabilities, .. } = event else { return None };
        Some(capabilities.mechanism)
    });
    assert_eq!(mechanism, Mechanism::ObserveOnly);
    fixture.adopt();
    let queue = fixture.wait_for_queue();
    let limit = fixture.limit().unwrap();
    let both = ["KFD 1.13", "CAP_CHECKPOINT_RESTORE"];
    assert!(
        limit.is_uncontrollable && both.iter().all(|w| limit.sentence.contains(w)),
        "{limit:?}"
    );
    fixture.preempt(queue);
    let is_refused = |event: &Event| matches!(event, Event::PreemptFailed { .. }).then_some(());
    fixture.wait_for(is_refused);
    assert_eq!(fixture.is_running(0), Some(true));
    // With the privilege to pause processes the same kernel suffices.
    let fixture = Fixture::with(&kfd, 1, true);
    assert_eq!(mechanism_of(&fixture), Mechanism::Stop);
}

fn mechanism_of(fixture: &Fixture) -> Mechanism {
    mechanism(&fixture.backend.instance, Gfx(90_402))
}

#[test]
fn a_paused_process_without_queues_is_unpaused() {
    let version = Version { major: 1, minor: 11 };
    let (mut fixture, queue) = Fixture::stopped(KfdProfile { version, ..KfdProfile::default() });
    fixture.client().destroy_queue(0).unwrap();
    let folder = fixture.folder.path(format!("sys/proc/{}/queues/0", fixture.key.pid));
    fs::remove_dir_all(folder).unwrap();
    // No command will resume a queue that is gone.
    fixture.wait_for_event(Event::QueueVanished { queue });
    let later = fixture.client().open_queue(GPU).unwrap();
    assert_eq!(fixture.is_running(later), Some(true), "its process is not paused any more");
}

#[test]
fn a_blocked_destroy_completes() {
    let mut fixture = Fixture::new(KfdProfile::default(), 2);
    fixture.adopt();
    let queues = [fixture.wait_for_queue(), fixture.wait_for_queue()];
    queues.into_iter().for_each(|queue| fixture.stop(queue));
    // This thread would hang here if the queue stayed suspended.
    fixture.client().destroy_queue(0).unwrap();
    fixture.wait_for_event(Event::QueueVanished { queue: queues[0] });
    assert_eq!(fixture.is_running(1), Some(false), "the other one stays off");
}

#[test]
fn a_queue_resumed_for_an_interrupted_destroy_is_reported_as_new() {
    let (mut fixture, queue) = Fixture::stopped(KfdProfile::default());
    // A thread begins to destroy the queue and is interrupted.
    let destroy = DestroyQueue { queue_id: 0, padding: 0 };
    let asked = IoctlRequest {
        opcode: DESTROY_QUEUE,
        block: destroy.as_bytes().to_vec(),
        array: None,
        file: None,
        through: None,
    };
    let ticket = fixture.kfd.begin(fixture.client().caller(), asked);
    fixture.kfd.interrupt(ticket);
    fixture.wait_for_event(Event::QueueVanished { queue });
    let again = fixture.wait_for_queue();
    assert_eq!((fixture.is_running(0), fixture.backend.queues_of(TASK)), (Some(true), vec![again]));
}

#[test]
fn events_of_a_failed_call_are_reported_later() {
    let (mut fixture, _) = Fixture::adopted(KfdProfile::default());
    // The kernel reports a queue once. The next call fails, and then the listing.
    for after in [1, 2] {
        fixture.kfd.fail_once(fixture.key.pid, after, rustix::io::Errno::IO);
        fixture.client().open_queue(GPU).unwrap();
        fixture.wait_for_queue();
        fixture.wait_for_problem("refused");
    }
}

#[test]
fn a_process_that_ends_while_stopped_leaves_no_record() {
    let mut fixture = Fixture::new(KfdProfile::default(), 4);
    fixture.adopt();
    let queues: Vec<QueueId> = (0..4).map(|_| fixture.wait_for_queue()).collect();
    queues.iter().for_each(|queue| fixture.preempt(*queue));
    fixture.process.client = None;
    fixture.process.child.kill();
    // Every command still completes.
    let is_answer = |event: &Event| {
        matches!(event, Event::Preempted { .. } | Event::PreemptFailed { fault: Fault::Gone, .. })
    };
    for _ in 0..4 {
        fixture.wait_for(|event| is_answer(event).then_some(()));
    }
    fixture.wait_for_note(|note| *note == ControllerReport::Ended(TASK));
    fixture.backend.release_all().unwrap();
    assert_eq!(fixture.acts(), None, "nothing of it is written down any more");
}

#[test]
fn a_released_process_can_be_adopted_again() {
    let (mut fixture, _) = Fixture::stopped(KfdProfile::default());
    for task in 2..6 {
        fixture.backend.release(TaskId(task - 1));
        fixture.backend.adopt(TaskId(task), fixture.key).unwrap();
        let queue = fixture.wait_for_queue();
        fixture.stop(queue);
    }
    assert!(matches!(fixture.acts().as_deref(), Some([GpuChange::Amd(AmdChange::Session { .. })])));
}

#[test]
fn the_switch_cost_counts_the_processes_to_stop() {
    let (mut fixture, _) = Fixture::adopted(KfdProfile::default());
    let others: Vec<TestProcess> = (0..3).map(|_| fixture.join(1)).collect();
    let cost = Duration::from_millis(3);
    let is_told = |event: &Event| {
        matches!(event, Event::DeviceCost { preempt_cost, resume_cost, .. }
            if (*preempt_cost, *resume_cost) == (cost, cost))
    };
    for (task, other) in (2..).zip(&others) {
        fixture.backend.adopt(TaskId(task), other.key).unwrap();
    }
    // Four processes: stopping all except one takes three calls.
    fixture.wait_for(|event| is_told(event).then_some(()));
    drop(others);
    let least = Duration::from_millis(1);
    let is_back = |event: &Event| {
        matches!(event,
        Event::DeviceCost { preempt_cost, .. } if *preempt_cost == least)
    };
    fixture.wait_for(|event| is_back(event).then_some(()));
}

#[test]
fn a_process_that_may_not_be_traced_is_not_touched_and_has_a_limit() {
    let mut fixture = Fixture::new(KfdProfile::default(), 1);
    fixture.kfd.forbid_tracing(fixture.key.pid);
    fixture.adopt();
    fixture.wait_for_problem("may not be controlled");
    let limit = fixture.limit().unwrap();
    assert!(limit.is_uncontrollable && limit.sentence.starts_with("process "), "{limit:?}");
    assert_eq!(fixture.backend.queues_of(TASK), []);
    assert_eq!(
        (fixture.is_running(0), fixture.kfd.is_debugged(fixture.key.pid)),
        (Some(true), false)
    );
}

#[test]
fn a_queue_that_the_hardware_does_not_suspend_fails_alone() {
    let mut fixture = Fixture::new(KfdProfile::default(), 2);
    fixture.kfd.break_queue(fixture.key.pid, 0);
    fixture.adopt();
    let queues = [fixture.wait_for_queue(), fixture.wait_for_queue()];
    queues.iter().for_each(|queue| fixture.preempt(*queue));
    fixture.wait_for(|event| {
        let fault = Fault::Refused(0);
        (*event == Event::PreemptFailed { queue: queues[0], fault }).then_some(())
    });
    fixture.wait_for_event(Event::Preempted { queue: queues[1] });
    assert_eq!((fixture.is_running(0), fixture.is_running(1)), (Some(true), Some(false)));
}

/// The result of a preempt.
fn answer(fixture: &mut Fixture, queue: QueueId) -> Result<(), Fault> {
    fixture.wait_for(|event| {
        if *event == (Event::Preempted { queue }) {
            return Some(Ok(()));
        }
        let Event::PreemptFailed { queue: which, fault } = event else { return None };
        (*which == queue).then_some(Err(*fault))
    })
}

/// The queue that replaces another one.
fn successor(fixture: &mut Fixture, queue: QueueId) -> QueueId {
    until_some("another queue", || {
        fixture.backend.take_reports();
        let [other] = fixture.backend.queues_of(TASK)[..] else { return None };
        (other != queue).then_some(other)
    })
}

#[test]
fn a_queue_with_a_reused_id_is_not_stopped_for_the_old_one() {
    let (mut fixture, queue) = Fixture::adopted(KfdProfile::default());
    // The backend has not seen the change when the command arrives.
    fixture.client().destroy_queue(0).unwrap();
    assert_eq!(fixture.client().open_queue(GPU), Ok(0), "the same number");
    fixture.preempt(queue);
    assert_eq!(answer(&mut fixture, queue), Err(Fault::Gone));
    assert_eq!(fixture.is_running(0), Some(true));
    // The new queue is reported as new and can be stopped.
    let again = successor(&mut fixture, queue);
    fixture.stop(again);
    assert_eq!(fixture.is_running(0), Some(false));
}

#[test]
fn a_command_for_an_ended_session_fails() {
    let (mut fixture, queue) = Fixture::adopted(KfdProfile::default());
    let (other, pid) = (fixture.kfd.debugger(79), fixture.key.pid);
    as_tracer(&other, pid, || other.disable(pid)).unwrap().unwrap();
    until("a session begins again", || fixture.kfd.is_debugged(pid));
    fixture.preempt(queue);
    assert_eq!(answer(&mut fixture, queue), Err(Fault::Gone));
    assert_eq!(fixture.is_running(0), Some(true));
}

#[test]
fn a_command_for_a_queue_does_not_pause_the_whole_process() {
    let kfd = FakeKfd::with(KfdProfile { one_debugged: true, ..KfdProfile::default() });
    let mut first = Fixture::with(&kfd, 1, true);
    first.adopt();
    first.wait_for_queue();
    let mut fixture = Fixture::with(&kfd, 1, true);
    fixture.client().runtime_enable(false).unwrap();
    fixture.adopt();
    let queue = fixture.wait_for_queue();
    // The runtime begins, but there is no debugger slot: the process is paused as a whole from now
    // on.
    fixture.client().runtime_enable(true).unwrap();
    until("the session ends", || !fixture.kfd.is_debugged(fixture.key.pid));
    fixture.preempt(queue);
    assert_eq!(answer(&mut fixture, queue), Err(Fault::Gone));
    assert_eq!(fixture.is_running(0), Some(true));
    let whole = successor(&mut fixture, queue);
    fixture.stop(whole);
    assert_eq!(fixture.is_running(0), Some(false));
}
