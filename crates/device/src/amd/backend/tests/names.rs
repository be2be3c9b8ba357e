//! The number of a queue that is gone is given to the next one.

use super::*;
use crate::amd::door::Door;
use crate::amd::tracer::as_tracer;

/// What became of a preempt.
fn answer(scene: &mut Scene, queue: QueueId) -> Result<(), Fault> {
    scene.wait_for(|event| {
        if *event == (Event::Preempted { queue }) {
            return Some(Ok(()));
        }
        let Event::PreemptFailed { queue: which, fault } = event else { return None };
        (*which == queue).then_some(Err(*fault))
    })
}

/// The queue that is there instead of one.
fn successor(scene: &mut Scene, queue: QueueId) -> QueueId {
    let since = Instant::now();
    loop {
        scene.backend.take_reports();
        if let [other] = scene.backend.queues_of(TASK)[..]
            && other != queue
        {
            return other;
        }
        assert!(since.elapsed() < StdDuration::from_secs(20), "there is none");
        std::thread::sleep(StdDuration::from_millis(1));
    }
}

#[test]
fn a_queue_that_has_the_number_of_another_is_not_stopped_in_its_place() {
    let mut scene = Scene::new("amd-number", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    // The loop has not heard of it yet when it decides.
    scene.client().destroy_queue(0).unwrap();
    assert_eq!(scene.client().open_queue(GPU), Ok(0), "the same number");
    scene.preempt(queue);
    assert_eq!(answer(&mut scene, queue), Err(Fault::Gone));
    assert_eq!(scene.is_running(0), Some(true));
    // The new one is known as a new one, and can be stopped.
    let again = successor(&mut scene, queue);
    scene.stop(again);
    assert_eq!(scene.is_running(0), Some(false));
}

#[test]
fn what_was_meant_for_a_session_is_not_done_in_the_next() {
    let mut scene = Scene::new("amd-session", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    let (other, pid) = (scene.kfd.door(79), scene.key.pid);
    as_tracer(&other, pid, || other.disable(pid)).unwrap().unwrap();
    let since = Instant::now();
    while !scene.kfd.is_debugged(pid) {
        assert!(since.elapsed() < StdDuration::from_secs(20), "it is never begun again");
        std::thread::sleep(StdDuration::from_millis(1));
    }
    scene.preempt(queue);
    assert_eq!(answer(&mut scene, queue), Err(Fault::Gone));
    assert_eq!(scene.is_running(0), Some(true));
}

#[test]
fn a_command_for_a_queue_does_not_pause_its_process() {
    let kfd = FakeKfd::with(Rules { one_debugged: true, ..Rules::default() });
    let mut first = Scene::with("amd-takes-room", &kfd, 1, true);
    first.adopt();
    first.wait_for_queue();
    let mut scene = Scene::with("amd-lacks-room", &kfd, 1, true);
    scene.client().runtime_enable(false).unwrap();
    scene.adopt();
    let queue = scene.wait_for_queue();
    // Its runtime begins, and there is no room for it: from now on it is paused as a whole.
    scene.client().runtime_enable(true).unwrap();
    let since = Instant::now();
    while scene.kfd.is_debugged(scene.key.pid) {
        assert!(since.elapsed() < StdDuration::from_secs(20), "the session never ends");
        std::thread::sleep(StdDuration::from_millis(1));
    }
    scene.preempt(queue);
    assert_eq!(answer(&mut scene, queue), Err(Fault::Gone));
    assert_eq!(scene.is_running(0), Some(true));
    let whole = successor(&mut scene, queue);
    scene.stop(whole);
    assert_eq!(scene.is_running(0), Some(false));
}
