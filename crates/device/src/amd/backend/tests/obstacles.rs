//! What happens where something is in the way, or goes away.

use super::*;
use crate::amd::abi::block::{DESTROY_QUEUE, DestroyQueue};
use crate::amd::abi::version::Version;
use crate::amd::door::Door;
use crate::amd::session::Session;
use crate::amd::tracer::as_tracer;
use gpreempt_emu::kfd::driver::Asked;
use zerocopy::IntoBytes;

#[test]
fn a_debugger_that_leaves_makes_room_and_that_is_said() {
    let mut scene = Scene::new("amd-after", Rules::default(), 1);
    let pid = scene.key.pid;
    // Somebody like rocgdb, who has the session but no longer traces.
    let other = scene.kfd.door(77);
    let session = Session::attach(std::sync::Arc::new(other), pid).unwrap();
    scene.adopt();
    scene.wait_for_note(
        |note| matches!(note, Note::Problem(text) if text.contains("has a debugger already")),
    );
    assert!(scene.limit().is_some_and(|limit| limit.is_beyond));
    assert_eq!(scene.acts(), Some(vec![]), "it is ours, and nothing is done to it");
    session.detach().unwrap();
    let queue = scene.wait_for_queue();
    scene.wait_for_note(|note| *note == Note::Solved(format!("process {pid} ")));
    assert_eq!(scene.limit(), None);
    scene.stop(queue);
}

#[test]
fn a_session_that_is_lost_is_begun_again() {
    let mut scene = Scene::new("amd-lost", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    // Somebody else ended it; the kernel has resumed everything.
    let (other, pid) = (scene.kfd.door(78), scene.key.pid);
    as_tracer(&other, pid, || other.disable(pid)).unwrap().unwrap();
    let again = scene.wait_for_queue();
    assert_ne!(again, queue);
    scene.stop(again);
    assert_eq!(scene.is_running(0), Some(false));
}

#[test]
fn a_process_without_room_for_a_debugger_is_paused_as_a_whole() {
    let rules = Rules { one_debugged: true, ..Rules::default() };
    let kfd = FakeKfd::with(rules);
    let mut first = Scene::with("amd-one", &kfd, 1, true);
    first.adopt();
    first.wait_for_queue();
    let mut second = Scene::with("amd-two", &kfd, 2, true);
    second.adopt();
    let queue = second.wait_for_queue();
    assert_eq!(second.backend.queues_of(TASK), [queue], "one for all that it has there");
    let limit = second.limit().unwrap();
    assert!(!limit.is_beyond && limit.sentence.contains("paused as a whole"), "{limit:?}");
    assert_eq!(second.backend.observe(queue), Some(BUSY), "its rings are not shown");
    second.stop(queue);
    assert_eq!((second.is_running(0), second.is_running(1)), (Some(false), Some(false)));
    assert!(matches!(second.acts().unwrap()[..], [Act::Amd(AmdAct::Pause { .. })]));
    second.backend.submit(Command::Resume { queue });
    second.wait_for(|event| (*event == Event::Resumed { queue }).then_some(()));
    assert_eq!(second.is_running(0), Some(true));
    assert_eq!(second.acts(), Some(vec![]));
    second.stop(queue);
    second.backend.release(TASK);
    second.backend.release_all().unwrap();
    assert_eq!((second.is_running(1), second.acts()), (Some(true), None));
}

#[test]
fn a_pause_that_we_cannot_end_is_ended_by_whoever_reads_the_journal() {
    let rules = Rules { devices_know_debuggers: false, ..Rules::default() };
    let mut scene = Scene::new("amd-keeper", rules, 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    // As if we were killed now: what is written down is all that is left.
    let entries = JournalSession::at(scene.journal.clone()).entries().unwrap();
    assert_eq!(scene.is_running(0), Some(false));
    crate::act::undo(&entries[0]).unwrap();
    assert_eq!(scene.is_running(0), Some(true));
}

/// One that is paused as a whole, and whom somebody traces: then nobody can let it on.
fn paused_and_traced(name: &str) -> Scene {
    let rules = Rules { devices_know_debuggers: false, ..Rules::default() };
    let mut scene = Scene::new(name, rules, 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    scene.kfd.trace_by_somebody(scene.key.pid, std::process::id());
    scene.backend.release(TASK);
    scene
}

fn until_put_back(scene: &mut Scene, acts: Option<&[Act]>) {
    let since = Instant::now();
    while scene.is_running(0) != Some(true) || scene.acts().as_deref() != acts {
        scene.backend.take_reports();
        assert!(since.elapsed() < StdDuration::from_secs(60), "{:?}", scene.acts());
        std::thread::sleep(StdDuration::from_millis(5));
    }
}

#[test]
fn a_tracer_that_stays_is_waited_for_and_then_the_pause_is_ended() {
    let mut scene = paused_and_traced("amd-traced");
    // For longer than it is tried in a hurry.
    let words = "has a debugger already";
    scene.wait_for_note(|note| matches!(note, Note::Problem(text) if text.contains(words)));
    std::thread::sleep(StdDuration::from_millis(200));
    assert_eq!(scene.is_running(0), Some(false));
    scene.kfd.end_tracing(scene.key.pid);
    until_put_back(&mut scene, None);
}

#[test]
fn a_pause_that_could_not_be_ended_is_ended_when_control_begins_again() {
    let mut scene = paused_and_traced("amd-left-paused");
    let task = TaskId(2);
    scene.backend.adopt(task, scene.key).unwrap();
    scene
        .wait_for_note(|note| matches!(note, Note::Problem(text) if text.contains("paused still")));
    assert!(scene.backend.limit_of(task).is_some_and(|limit| limit.is_beyond));
    assert_eq!(scene.is_running(0), Some(false));
    scene.kfd.end_tracing(scene.key.pid);
    until_put_back(&mut scene, Some(&[]));
    let queue = scene.wait_for_queue();
    scene.stop(queue);
}

#[test]
fn where_nothing_can_be_stopped_it_is_watched_and_the_reason_is_there() {
    let version = Version { major: 1, minor: 11 };
    let kfd = FakeKfd::with(Rules { version, ..Rules::default() });
    let mut scene = Scene::with("amd-watch", &kfd, 1, false);
    let mechanism = scene.wait_for(|event| {
        let Event::DeviceAppeared { capabilities, .. } = event else { return None };
        Some(capabilities.mechanism)
    });
    assert_eq!(mechanism, Mechanism::ObserveOnly);
    scene.adopt();
    let queue = scene.wait_for_queue();
    let limit = scene.limit().unwrap();
    let both = ["KFD 1.13", "CAP_CHECKPOINT_RESTORE"];
    assert!(limit.is_beyond && both.iter().all(|w| limit.sentence.contains(w)), "{limit:?}");
    scene.preempt(queue);
    let is_refused = |event: &Event| matches!(event, Event::PreemptFailed { .. }).then_some(());
    scene.wait_for(is_refused);
    assert_eq!(scene.is_running(0), Some(true));
    // With the right to pause processes, the same kernel is good enough.
    let scene = Scene::with("amd-old", &kfd, 1, true);
    assert_eq!(mechanism_of(&scene), Mechanism::Stop);
}

fn mechanism_of(scene: &Scene) -> Mechanism {
    mechanism(&scene.backend.site, Gfx(90_402))
}

#[test]
fn a_paused_process_that_gives_its_queues_back_is_let_on() {
    let version = Version { major: 1, minor: 11 };
    let mut scene = Scene::new("amd-left", Rules { version, ..Rules::default() }, 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    scene.client().destroy_queue(0).unwrap();
    let folder = scene.root.join(format!("sys/proc/{}/queues/0", scene.key.pid));
    fs::remove_dir_all(folder).unwrap();
    // Nobody will ever resume a queue that is gone.
    scene.wait_for(|event| (*event == Event::QueueVanished { queue }).then_some(()));
    let later = scene.client().open_queue(GPU).unwrap();
    assert_eq!(scene.is_running(later), Some(true), "its process is not paused any more");
}

#[test]
fn whoever_waits_to_destroy_a_stopped_queue_does_not_have_to() {
    let mut scene = Scene::new("amd-destroy", Rules::default(), 2);
    scene.adopt();
    let queues = [scene.wait_for_queue(), scene.wait_for_queue()];
    queues.into_iter().for_each(|queue| scene.stop(queue));
    // On this thread: it would hang here if nobody let it go.
    scene.client().destroy_queue(0).unwrap();
    scene.wait_for(|event| (*event == Event::QueueVanished { queue: queues[0] }).then_some(()));
    assert_eq!(scene.is_running(1), Some(false), "the other one stays off");
}

#[test]
fn a_queue_that_was_let_on_for_nothing_is_known_to_run() {
    let mut scene = Scene::new("amd-let-on", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    // Somebody waits to destroy it, and then does not any more.
    let destroy = DestroyQueue { queue_id: 0, padding: 0 };
    let asked = Asked {
        opcode: DESTROY_QUEUE,
        block: destroy.as_bytes().to_vec(),
        array: None,
        file: None,
        through: None,
    };
    let ticket = scene.kfd.begin(scene.client().caller(), asked);
    scene.kfd.interrupt(ticket);
    scene.wait_for(|event| (*event == Event::QueueVanished { queue }).then_some(()));
    let again = scene.wait_for_queue();
    assert_eq!((scene.is_running(0), scene.backend.queues_of(TASK)), (Some(true), vec![again]));
}

#[test]
fn what_happened_while_a_call_failed_is_told_when_one_works() {
    let mut scene = Scene::new("amd-missed", Rules::default(), 1);
    scene.adopt();
    scene.wait_for_queue();
    // The kernel tells of a queue once. What is asked next fails, and then the list does.
    for after in [1, 2] {
        scene.kfd.fail_once(scene.key.pid, after, rustix::io::Errno::IO);
        scene.client().open_queue(GPU).unwrap();
        scene.wait_for_queue();
        scene.wait_for_note(|note| matches!(note, Note::Problem(text) if text.contains("refused")));
    }
}

#[test]
fn a_process_that_ends_while_it_is_stopped_leaves_nothing() {
    let mut scene = Scene::new("amd-midway", Rules::default(), 4);
    scene.adopt();
    let queues: Vec<QueueId> = (0..4).map(|_| scene.wait_for_queue()).collect();
    queues.iter().for_each(|queue| scene.preempt(*queue));
    scene.client = None;
    scene.child.kill().unwrap();
    scene.child.wait().unwrap();
    // Every command is answered all the same.
    let is_answer = |event: &Event| {
        matches!(event, Event::Preempted { .. } | Event::PreemptFailed { fault: Fault::Gone, .. })
    };
    for _ in 0..4 {
        scene.wait_for(|event| is_answer(event).then_some(()));
    }
    scene.wait_for_note(|note| *note == Note::Ended(TASK));
    scene.backend.release_all().unwrap();
    assert_eq!(scene.acts(), None, "nothing of it is written down any more");
}

#[test]
fn a_process_that_is_let_go_and_taken_again_is_under_control() {
    let mut scene = Scene::new("amd-again", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    for task in 2..6 {
        scene.backend.release(TaskId(task - 1));
        scene.backend.adopt(TaskId(task), scene.key).unwrap();
        let queue = scene.wait_for_queue();
        scene.stop(queue);
    }
    assert!(matches!(scene.acts().as_deref(), Some([Act::Amd(AmdAct::Session { .. })])));
}

#[test]
fn the_cost_counts_the_processes_that_have_to_be_stopped() {
    let mut scene = Scene::new("amd-cost", Rules::default(), 1);
    scene.adopt();
    scene.wait_for_queue();
    let others: Vec<(Child, FakeClient)> = (0..3).map(|_| scene.join()).collect();
    let cost = Duration::from_millis(3);
    let is_told = |event: &Event| {
        matches!(event, Event::DeviceCost { preempt_cost, resume_cost, .. }
            if (*preempt_cost, *resume_cost) == (cost, cost))
    };
    for (task, (child, _)) in (2..).zip(&others) {
        let key = ProcessInfo::read(child.id()).unwrap().key;
        scene.backend.adopt(TaskId(task), key).unwrap();
    }
    // Four processes: three calls for whoever is the fourth.
    scene.wait_for(|event| is_told(event).then_some(()));
    for (mut child, _client) in others {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let least = Duration::from_millis(1);
    let is_back = |event: &Event| {
        matches!(event,
        Event::DeviceCost { preempt_cost, .. } if *preempt_cost == least)
    };
    scene.wait_for(|event| is_back(event).then_some(()));
}

#[test]
fn a_process_that_may_not_be_traced_is_left_alone_with_advice() {
    let mut scene = Scene::new("amd-denied", Rules::default(), 1);
    scene.kfd.forbid_tracing(scene.key.pid);
    scene.adopt();
    scene.wait_for_note(
        |note| matches!(note, Note::Problem(text) if text.contains("may not be controlled")),
    );
    let limit = scene.limit().unwrap();
    assert!(limit.is_beyond && limit.sentence.starts_with("process "), "{limit:?}");
    assert_eq!(scene.backend.queues_of(TASK), []);
    assert_eq!((scene.is_running(0), scene.kfd.is_debugged(scene.key.pid)), (Some(true), false));
}

#[test]
fn a_queue_that_the_hardware_does_not_take_off_is_a_fault_and_the_others_are_off() {
    let mut scene = Scene::new("amd-broken", Rules::default(), 2);
    scene.kfd.break_queue(scene.key.pid, 0);
    scene.adopt();
    let queues = [scene.wait_for_queue(), scene.wait_for_queue()];
    queues.iter().for_each(|queue| scene.preempt(*queue));
    scene.wait_for(|event| {
        let fault = Fault::Refused(0);
        (*event == Event::PreemptFailed { queue: queues[0], fault }).then_some(())
    });
    scene.wait_for(|event| (*event == Event::Preempted { queue: queues[1] }).then_some(()));
    assert_eq!((scene.is_running(0), scene.is_running(1)), (Some(true), Some(false)));
}
