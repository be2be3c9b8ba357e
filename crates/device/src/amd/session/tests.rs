use std::thread;

use gpreempt_stage::until;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::amd::{DebuggerIoctl, FakeClient, FakeKfd, KfdClientCalls, KfdProfile};

/// A process with a registered runtime.
fn client(kfd: &FakeKfd, pid: u32, queues: u32) -> FakeClient {
    let client = kfd.client(pid);
    client.runtime_enable(true).unwrap();
    for _ in 0..queues {
        client.open_queue(1).unwrap();
    }
    client
}

fn attach(kfd: &FakeKfd, pid: u32) -> DebugSession {
    DebugSession::attach(Arc::new(kfd.debugger(1)), pid).unwrap()
}

/// A KFD with a process that has a registered runtime, queues and a session.
fn attached(queues: u32) -> (FakeKfd, FakeClient, DebugSession) {
    let kfd = FakeKfd::new();
    let client = client(&kfd, 7, queues);
    let session = attach(&kfd, 7);
    (kfd, client, session)
}

/// Kernels before 6.12.103.
fn old() -> FakeKfd {
    FakeKfd::with(KfdProfile { owner_may: false, ..KfdProfile::default() })
}

fn is_readable(session: &DebugSession) -> bool {
    let mut fds = [PollFd::new(session, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn queues_are_suspended_and_resumed_in_one_call() {
    for kfd in [FakeKfd::new(), old()] {
        let _client = client(&kfd, 7, 64);
        let mut session = attach(&kfd, 7);
        assert_eq!(session.runtime(), RuntimeState::Enabled);
        let queues: Vec<u32> =
            session.queues().unwrap().iter().map(|queue| queue.queue_id).collect();
        assert_eq!(queues.len(), 64);
        let before = kfd.remaps();
        assert_eq!(session.suspend(&queues, 0).unwrap(), [Outcome::Done; 64]);
        assert_eq!(kfd.remaps() - before, 1, "64 queues of one process are one remap");
        assert!(queues.iter().all(|queue| kfd.is_running(7, *queue) == Some(false)));
        assert_eq!(session.resume(&queues).unwrap(), [Outcome::Done; 64]);
        assert!(queues.iter().all(|queue| kfd.is_running(7, *queue) == Some(true)));
        session.detach().unwrap();
        assert!(!kfd.is_debugged(7));
    }
}

#[test]
fn attach_detects_whether_calls_need_a_tracer() {
    let (new, old) = (FakeKfd::new(), old());
    let (_first, _second) = (client(&new, 7, 1), client(&old, 7, 1));
    let (first, second) = (attach(&new, 7), attach(&old, 7));
    assert!(!first.needs_tracer() && second.needs_tracer());
    for kfd in [&new, &old] {
        assert_eq!(kfd.debugger(9).tracer_of(7), None, "it is no longer traced");
    }
}

#[test]
fn a_new_queue_can_be_suspended_at_once() {
    let (_kfd, client, mut session) = attached(1);
    let queue = client.open_queue(1).unwrap();
    assert_eq!(session.suspend(&[queue], 0).unwrap(), [Outcome::Done]);
}

#[test]
fn every_queue_has_an_outcome_of_its_own() {
    let (kfd, _client, mut session) = attached(2);
    kfd.break_queue(7, 1);
    let outcomes = session.suspend(&[0, 99, 1], 0).unwrap();
    assert_eq!(outcomes, [Outcome::Done, Outcome::Gone, Outcome::Failed]);
    // The ids again: the bits that the kernel set are not kept.
    assert_eq!(session.resume(&[0, 99]).unwrap(), [Outcome::Done, Outcome::Gone]);
    assert_eq!(session.suspend(&[], 0).unwrap(), []);
}

#[test]
fn a_runtime_that_begins_or_ends_never_waits() {
    for kfd in [FakeKfd::new(), old()] {
        let client = kfd.client(7);
        let mut session = attach(&kfd, 7);
        assert_eq!(session.runtime(), RuntimeState::Disabled);
        assert!(matches!(session.suspend(&[0], 0), Err(SessionError::NoRuntime(7))));
        for _ in 0..3 {
            // This thread would hang here if it had to wait.
            client.runtime_enable(true).unwrap();
            assert!(is_readable(&session));
            let happened = session.handle_events().unwrap();
            assert_eq!(happened.runtime, Some(RuntimeState::Enabled));
            assert!(!is_readable(&session));
            let queue = client.open_queue(1).unwrap();
            assert!(session.handle_events().unwrap().queues);
            assert_eq!(session.suspend(&[queue], 0).unwrap(), [Outcome::Done]);
            client.runtime_enable(false).unwrap();
            assert_eq!(kfd.is_running(7, queue), Some(true), "the end of a runtime resumes all");
            let happened = session.handle_events().unwrap();
            assert_eq!(happened.runtime, Some(RuntimeState::Disabled));
        }
    }
}

#[test]
fn a_process_waiting_for_a_dead_debugger_is_released_by_the_next() {
    let kfd = FakeKfd::new();
    let client = client(&kfd, 7, 1);
    // A debugger that sends no replies in advance.
    let careless = kfd.debugger(5);
    let pipe = rustix::pipe::pipe().unwrap();
    as_tracer(&careless, 7, || careless.enable(7, Exceptions::WANTED, pipe.1.as_fd()))
        .unwrap()
        .unwrap();
    thread::scope(|scope| {
        let ending = scope.spawn(|| client.runtime_enable(false));
        until("the process waits", || kfd.waiting(7) == 1);
        drop(careless);
        assert_eq!(kfd.waiting(7), 1, "it still waits");
        let session = attach(&kfd, 7);
        assert_eq!(ending.join().unwrap(), Ok(()));
        session.detach().unwrap();
    });
}

#[test]
fn detaching_resumes_queues_and_releases_calls() {
    for kfd in [FakeKfd::new(), old()] {
        let client = client(&kfd, 7, 1);
        let mut session = attach(&kfd, 7);
        session.suspend(&[0], 0).unwrap();
        drop(session);
        assert_eq!(kfd.is_running(7, 0), Some(true));
        client.runtime_enable(false).unwrap();
        client.runtime_enable(true).unwrap();
    }
}

#[test]
fn the_death_of_the_debugger_resumes_every_queue() {
    let (kfd, _client, mut session) = attached(1);
    session.suspend(&[0], 0).unwrap();
    assert_eq!(kfd.is_running(7, 0), Some(false));
    kfd.kill_debugger(1);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    let next = DebugSession::attach(Arc::new(kfd.debugger(2)), 7).unwrap();
    // Dropping the first session does not affect the second.
    drop(session);
    assert!(kfd.is_debugged(7));
    next.detach().unwrap();
}

#[test]
fn the_end_of_a_process_ends_its_session() {
    for kfd in [FakeKfd::new(), old()] {
        let client = client(&kfd, 7, 1);
        let mut session = attach(&kfd, 7);
        drop(client);
        assert!(matches!(session.suspend(&[0], 0), Err(SessionError::Over(7))));
        // A test that runs in parallel and starts a program may hold a copy of the pipe.
        until("the session has an event", || is_readable(&session));
        assert!(session.handle_events().unwrap().is_over);
        assert!(matches!(session.queues(), Err(SessionError::Over(7))));
        session.detach().unwrap();
    }
}

#[test]
fn a_suspended_queue_is_destroyed_after_it_is_resumed() {
    let (kfd, client, mut session) = attached(2);
    session.handle_events().unwrap();
    session.suspend(&[0, 1], 0).unwrap();
    thread::scope(|scope| {
        let destroying = scope.spawn(|| client.destroy_queue(0));
        until("the process waits", || kfd.waiting(7) == 1);
        // While the process waits the queue cannot be suspended again, but it can be resumed.
        assert_eq!(session.suspend(&[0, 1], 0).unwrap(), [Outcome::Gone, Outcome::Done]);
        assert_eq!(session.resume(&[0]).unwrap(), [Outcome::Done]);
        assert_eq!(destroying.join().unwrap(), Ok(()));
    });
    assert!(session.handle_events().unwrap().queues);
    assert_eq!(session.queues().unwrap().len(), 1);
}

#[test]
fn one_debugger_at_a_time_and_the_other_is_named() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 1);
    kfd.trace_externally(7, std::process::id());
    let refused = |result: Result<DebugSession, AttachError>| match result {
        Err(AttachError::Debugged { pid: 7, debugger }) => debugger,
        other => panic!("{other:?}"),
    };
    let named = refused(DebugSession::attach(Arc::new(kfd.debugger(1)), 7));
    assert!(named.contains(&format!("(process {})", std::process::id())), "{named}");
    let (kfd, _client, _session) = attached(1);
    let named = refused(DebugSession::attach(Arc::new(kfd.debugger(2)), 7));
    assert!(named.contains("another program") || named.contains("probably"), "{named}");
}

#[test]
fn a_second_debugger_does_not_prevent_calls_of_the_first() {
    let (kfd, _client, mut session) = attached(1);
    let other = kfd.debugger(5);
    let pipe = rustix::pipe::pipe().unwrap();
    let refused = as_tracer(&other, 7, || other.enable(7, Exceptions::WANTED, pipe.1.as_fd()));
    assert_eq!(refused.unwrap().err(), Some(Errno::ALREADY));
    assert_eq!(session.suspend(&[0], 0).unwrap(), [Outcome::Done]);
    // While another program traces the process, this one cannot, and the error names the tracer.
    kfd.trace_externally(7, std::process::id());
    assert!(matches!(session.resume(&[0]), Err(SessionError::Traced { pid: 7, .. })));
    // When it dies the kernel ends the session that it attributes to it.
    drop(other);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    assert!(session.handle_events().unwrap().is_over);
}

#[test]
fn every_obstacle_has_its_own_error() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 1);
    let attach = |kfd: &FakeKfd, pid| DebugSession::attach(Arc::new(kfd.debugger(1)), pid);
    assert!(matches!(attach(&kfd, 8), Err(AttachError::Gone(8))));
    kfd.forbid_tracing(7);
    assert!(matches!(attach(&kfd, 7), Err(AttachError::Denied { pid: 7, .. })));
    let rules = KfdProfile { devices_know_debuggers: false, ..KfdProfile::default() };
    let kfd = FakeKfd::with(rules);
    let _client = client(&kfd, 7, 1);
    assert!(matches!(attach(&kfd, 7), Err(AttachError::Unsupported(7))));
    let version = crate::amd::abi::version::Version { major: 1, minor: 11 };
    let kfd = FakeKfd::with(KfdProfile { version, ..KfdProfile::default() });
    let _client = kfd.client(7);
    assert!(matches!(attach(&kfd, 7), Err(AttachError::NoInterface)));
}

#[test]
fn a_device_with_one_debugger_slot_refuses_the_second_session() {
    let kfd = FakeKfd::with(KfdProfile { one_debugged: true, ..KfdProfile::default() });
    let (_first, _second) = (client(&kfd, 7, 1), client(&kfd, 8, 1));
    let debugger = Arc::new(kfd.debugger(1));
    let first = DebugSession::attach(debugger.clone(), 7).unwrap();
    assert!(matches!(DebugSession::attach(debugger.clone(), 8), Err(AttachError::Busy(8))));
    assert!(!kfd.is_debugged(8) && kfd.is_debugged(7));
    assert_eq!(kfd.runtime(8), Some(RuntimeState::Enabled));
    first.detach().unwrap();
    DebugSession::attach(debugger, 8).unwrap();
}

#[test]
fn a_list_that_is_longer_than_expected_is_read_completely() {
    let (_kfd, _client, mut session) = attached(200);
    assert_eq!(session.queues().unwrap().len(), 200);
    let last: Vec<u32> = (0..200).collect();
    assert_eq!(session.suspend(&last, 0).unwrap(), [Outcome::Done; 200]);
    assert_eq!(session.devices().unwrap().len(), 1);
}

#[test]
fn a_process_with_many_requests_never_waits() {
    let kfd = FakeKfd::new();
    let client = client(&kfd, 7, 1);
    // A session without a thread that handles its events.
    let _session = attach(&kfd, 7);
    let asking = thread::spawn(move || {
        for _ in 0..10 {
            client.runtime_enable(false).unwrap();
            client.runtime_enable(true).unwrap();
        }
    });
    until("no request waits", || asking.is_finished());
    asking.join().unwrap();
}

#[test]
fn a_refused_debugger_does_not_become_the_owner() {
    let (kfd, _client, _session) = attached(1);
    let second = DebugSession::attach(Arc::new(kfd.debugger(2)), 7);
    assert!(matches!(second, Err(AttachError::Debugged { pid: 7, .. })), "{second:?}");
    let first = kfd.debugger(1);
    assert!(first.queues(7, Exceptions::NONE, 0).is_ok(), "the kernel still listens to the first");
}

#[test]
fn exactly_the_named_queues_are_suspended_and_resumed() {
    let (kfd, client, mut session) = attached(1);
    session.queues().unwrap();
    let first = session.key_of(0);
    client.destroy_queue(0).unwrap();
    assert_eq!(client.open_queue(1), Ok(0), "the same number");
    // No snapshot since then: the queue is gone, even though its id is in use.
    assert_eq!(session.suspend_named(&[first], 0).unwrap(), [Outcome::Gone]);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    let second = session.key_of(0);
    assert_ne!(second, first);
    assert_eq!(session.suspend_named(&[second, first], 0).unwrap(), [Outcome::Done, Outcome::Gone]);
    assert_eq!(session.resume_named(&[first]).unwrap(), [Outcome::Gone]);
    assert_eq!(kfd.is_running(7, 0), Some(false), "what was said of the first is not for it");
    assert_eq!(session.resume_named(&[first, second]).unwrap(), [Outcome::Gone, Outcome::Done]);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    // The id of a whole process is not a queue, so it cannot be suspended.
    let nothing = QueueKey { id: u32::MAX, ..second };
    assert_eq!(session.suspend_named(&[nothing], 0).unwrap(), [Outcome::Gone]);
    assert_eq!(session.resume(&[u32::MAX]).unwrap(), [Outcome::Gone]);
    // An event clears the mark that it shows, and the mark counts.
    client.destroy_queue(0).unwrap();
    client.open_queue(1).unwrap();
    assert!(session.handle_events().unwrap().queues);
    assert_ne!(session.key_of(0), second);
}

#[test]
fn result_bits_become_outcomes() {
    let marked = [3, 4 | QUEUE_INVALID, 5 | QUEUE_ERROR, QUEUE_INVALID | QUEUE_ERROR | 6];
    let outcomes = Outcome::of(&[3, 4, 5, 6], &marked);
    assert_eq!(outcomes, [Outcome::Done, Outcome::Gone, Outcome::Failed, Outcome::Gone]);
    // No queue can have this id.
    assert_eq!(Outcome::of(&[0], &[QUEUE_INVALID]), [Outcome::Gone]);
    assert_eq!(Outcome::of(&[u32::MAX], &[u32::MAX]), [Outcome::Gone]);
}
