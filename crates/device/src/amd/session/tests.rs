use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::amd::door::ClientDoor;
use crate::amd::fake::{FakeClient, FakeKfd, Rules};

/// A process with that many queues, whose runtime runs.
fn client(kfd: &FakeKfd, pid: u32, queues: u32) -> FakeClient {
    let client = kfd.client(pid);
    client.runtime_enable(true).unwrap();
    for _ in 0..queues {
        client.open_queue(1).unwrap();
    }
    client
}

fn attach(kfd: &FakeKfd, pid: u32) -> Session {
    Session::attach(Arc::new(kfd.door(1)), pid).unwrap()
}

/// The kernels before 6.12.103.
fn old() -> FakeKfd {
    FakeKfd::with(Rules { owner_may: false, ..Rules::default() })
}

fn is_readable(session: &Session) -> bool {
    let mut fds = [PollFd::new(session, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

/// Waits for something that another thread is about to do.
fn wait_until(what: impl Fn() -> bool) {
    let since = Instant::now();
    while !what() {
        assert!(since.elapsed() < Duration::from_secs(20), "it never happened");
        thread::sleep(Duration::from_millis(1));
    }
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
fn whether_a_tracer_is_needed_is_found_out() {
    let (new, old) = (FakeKfd::new(), old());
    let (_first, _second) = (client(&new, 7, 1), client(&old, 7, 1));
    let (first, second) = (attach(&new, 7), attach(&old, 7));
    assert!(!first.needs_tracer() && second.needs_tracer());
    for kfd in [&new, &old] {
        assert_eq!(kfd.door(9).tracer_of(7), None, "nobody traces it any more");
    }
}

#[test]
fn a_queue_that_is_new_can_be_suspended_at_once() {
    let kfd = FakeKfd::new();
    let client = client(&kfd, 7, 1);
    let mut session = attach(&kfd, 7);
    let queue = client.open_queue(1).unwrap();
    assert_eq!(session.suspend(&[queue], 0).unwrap(), [Outcome::Done]);
}

#[test]
fn every_queue_has_an_outcome_of_its_own() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 2);
    let mut session = attach(&kfd, 7);
    kfd.break_queue(7, 1);
    let outcomes = session.suspend(&[0, 99, 1], 0).unwrap();
    assert_eq!(outcomes, [Outcome::Done, Outcome::Gone, Outcome::Failed]);
    // The same names again: what the kernel marked is not kept.
    assert_eq!(session.resume(&[0, 99]).unwrap(), [Outcome::Done, Outcome::Gone]);
    assert_eq!(session.suspend(&[], 0).unwrap(), []);
}

#[test]
fn a_runtime_that_begins_or_ends_never_waits_for_us() {
    for kfd in [FakeKfd::new(), old()] {
        let client = kfd.client(7);
        let mut session = attach(&kfd, 7);
        assert_eq!(session.runtime(), RuntimeState::Disabled);
        assert!(matches!(session.suspend(&[0], 0), Err(SessionError::NoRuntime(7))));
        for _ in 0..3 {
            // On this thread: it would hang here if it had to wait.
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
fn a_process_that_waits_for_a_debugger_that_died_is_freed_by_the_next() {
    let kfd = FakeKfd::new();
    let client = client(&kfd, 7, 1);
    // Somebody who does not answer in advance.
    let careless = kfd.door(5);
    let pipe = rustix::pipe::pipe().unwrap();
    as_tracer(&careless, 7, || careless.enable(7, Exceptions::WANTED, pipe.1.as_fd()))
        .unwrap()
        .unwrap();
    thread::scope(|scope| {
        let ending = scope.spawn(|| client.runtime_enable(false));
        wait_until(|| kfd.waiting(7) == 1);
        drop(careless);
        assert_eq!(kfd.waiting(7), 1, "it still waits");
        let session = attach(&kfd, 7);
        assert_eq!(ending.join().unwrap(), Ok(()));
        session.detach().unwrap();
    });
}

#[test]
fn detaching_leaves_nobody_suspended_and_nobody_waiting() {
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
fn when_we_die_everything_goes_on() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 1);
    let mut session = attach(&kfd, 7);
    session.suspend(&[0], 0).unwrap();
    assert_eq!(kfd.is_running(7, 0), Some(false));
    kfd.kill_debugger(1);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    let next = Session::attach(Arc::new(kfd.door(2)), 7).unwrap();
    // What is left of the first one does the second no harm.
    drop(session);
    assert!(kfd.is_debugged(7));
    next.detach().unwrap();
}

#[test]
fn a_process_that_ends_ends_its_session() {
    for kfd in [FakeKfd::new(), old()] {
        let client = client(&kfd, 7, 1);
        let mut session = attach(&kfd, 7);
        drop(client);
        assert!(matches!(session.suspend(&[0], 0), Err(SessionError::Over(7))));
        // A test beside this one that is just starting a program has a copy of the pipe.
        wait_until(|| is_readable(&session));
        assert!(session.handle_events().unwrap().is_over);
        assert!(matches!(session.queues(), Err(SessionError::Over(7))));
        session.detach().unwrap();
    }
}

#[test]
fn a_suspended_queue_is_destroyed_after_it_is_resumed() {
    let kfd = FakeKfd::new();
    let client = client(&kfd, 7, 2);
    let mut session = attach(&kfd, 7);
    session.handle_events().unwrap();
    session.suspend(&[0, 1], 0).unwrap();
    thread::scope(|scope| {
        let destroying = scope.spawn(|| client.destroy_queue(0));
        wait_until(|| kfd.waiting(7) == 1);
        // While it waits it is no longer there for us, but it can be resumed.
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
    kfd.trace_by_somebody(7, std::process::id());
    let refused = |result: Result<Session, AttachError>| match result {
        Err(AttachError::Debugged { pid: 7, debugger }) => debugger,
        other => panic!("{other:?}"),
    };
    let named = refused(Session::attach(Arc::new(kfd.door(1)), 7));
    assert!(named.contains(&format!("(process {})", std::process::id())), "{named}");
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 1);
    let _session = attach(&kfd, 7);
    let named = refused(Session::attach(Arc::new(kfd.door(2)), 7));
    assert!(named.contains("another program") || named.contains("probably"), "{named}");
}

#[test]
fn whoever_tries_to_take_a_session_over_does_not_stop_us() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 1);
    let mut session = attach(&kfd, 7);
    let other = kfd.door(5);
    let pipe = rustix::pipe::pipe().unwrap();
    let refused = as_tracer(&other, 7, || other.enable(7, Exceptions::WANTED, pipe.1.as_fd()));
    assert_eq!(refused.unwrap().err(), Some(Errno::ALREADY));
    assert_eq!(session.suspend(&[0], 0).unwrap(), [Outcome::Done]);
    // While it traces the process nobody else can, and it is named.
    kfd.trace_by_somebody(7, std::process::id());
    assert!(matches!(session.resume(&[0]), Err(SessionError::Traced { pid: 7, .. })));
    // When it dies the kernel ends what it takes for its session.
    drop(other);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    assert!(session.handle_events().unwrap().is_over);
}

#[test]
fn what_is_in_the_way_is_told_apart() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 1);
    let attach = |kfd: &FakeKfd, pid| Session::attach(Arc::new(kfd.door(1)), pid);
    assert!(matches!(attach(&kfd, 8), Err(AttachError::Gone(8))));
    kfd.forbid_tracing(7);
    assert!(matches!(attach(&kfd, 7), Err(AttachError::Denied { pid: 7, .. })));
    let rules = Rules { devices_know_debuggers: false, ..Rules::default() };
    let kfd = FakeKfd::with(rules);
    let _client = client(&kfd, 7, 1);
    assert!(matches!(attach(&kfd, 7), Err(AttachError::Unsupported(7))));
    let version = crate::amd::abi::version::Version { major: 1, minor: 11 };
    let kfd = FakeKfd::with(Rules { version, ..Rules::default() });
    let _client = kfd.client(7);
    assert!(matches!(attach(&kfd, 7), Err(AttachError::NoInterface)));
}

#[test]
fn a_device_with_room_for_one_says_so_and_lets_the_second_alone() {
    let kfd = FakeKfd::with(Rules { one_debugged: true, ..Rules::default() });
    let (_first, _second) = (client(&kfd, 7, 1), client(&kfd, 8, 1));
    let door = Arc::new(kfd.door(1));
    let first = Session::attach(door.clone(), 7).unwrap();
    assert!(matches!(Session::attach(door.clone(), 8), Err(AttachError::Busy(8))));
    assert!(!kfd.is_debugged(8) && kfd.is_debugged(7));
    assert_eq!(kfd.runtime(8), Some(RuntimeState::Enabled));
    first.detach().unwrap();
    Session::attach(door, 8).unwrap();
}

#[test]
fn a_list_that_is_longer_than_expected_is_read_completely() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 200);
    let mut session = attach(&kfd, 7);
    assert_eq!(session.queues().unwrap().len(), 200);
    let last: Vec<u32> = (0..200).collect();
    assert_eq!(session.suspend(&last, 0).unwrap(), [Outcome::Done; 200]);
    assert_eq!(session.devices().unwrap().len(), 1);
}

#[test]
fn a_process_that_asks_again_and_again_does_not_wait_for_us() {
    let kfd = FakeKfd::new();
    let client = client(&kfd, 7, 1);
    // A session that nobody looks after, as if we were about to be killed.
    let _session = attach(&kfd, 7);
    let asking = thread::spawn(move || {
        for _ in 0..10 {
            client.runtime_enable(false).unwrap();
            client.runtime_enable(true).unwrap();
        }
    });
    wait_until(|| asking.is_finished());
    asking.join().unwrap();
}

#[test]
fn whoever_is_refused_does_not_become_the_owner() {
    let kfd = FakeKfd::new();
    let _client = client(&kfd, 7, 1);
    let _session = attach(&kfd, 7);
    let second = Session::attach(Arc::new(kfd.door(2)), 7);
    assert!(matches!(second, Err(AttachError::Debugged { pid: 7, .. })), "{second:?}");
    let first = kfd.door(1);
    assert!(first.queues(7, Exceptions::NONE, 0).is_ok(), "the kernel still listens to the first");
}

#[test]
fn exactly_those_queues_that_are_meant_are_moved() {
    let kfd = FakeKfd::new();
    let client = kfd.client(7);
    client.runtime_enable(true).unwrap();
    client.open_queue(1).unwrap();
    let mut session = Session::attach(Arc::new(kfd.door(1)), 7).unwrap();
    session.queues().unwrap();
    let first = session.name(0);
    client.destroy_queue(0).unwrap();
    assert_eq!(client.open_queue(1), Ok(0), "the same number");
    // Nobody has looked since: the one that was meant is gone, whatever has its number.
    assert_eq!(session.suspend_named(&[first], 0).unwrap(), [Outcome::Gone]);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    let second = session.name(0);
    assert_ne!(second, first);
    assert_eq!(session.suspend_named(&[second, first], 0).unwrap(), [Outcome::Done, Outcome::Gone]);
    assert_eq!(session.resume_named(&[first]).unwrap(), [Outcome::Gone]);
    assert_eq!(kfd.is_running(7, 0), Some(false), "what was said of the first is not for it");
    assert_eq!(session.resume_named(&[first, second]).unwrap(), [Outcome::Gone, Outcome::Done]);
    assert_eq!(kfd.is_running(7, 0), Some(true));
    // What stands for a whole process is no queue, and nobody is told that it was stopped.
    let nothing = QueueName { id: u32::MAX, ..second };
    assert_eq!(session.suspend_named(&[nothing], 0).unwrap(), [Outcome::Gone]);
    assert_eq!(session.resume(&[u32::MAX]).unwrap(), [Outcome::Gone]);
    // A mark that an event shows is wiped by it, and counts.
    client.destroy_queue(0).unwrap();
    client.open_queue(1).unwrap();
    assert!(session.handle_events().unwrap().queues);
    assert_ne!(session.name(0), second);
}
