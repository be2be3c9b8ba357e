//! A patched KFD of which something is gone, and comes back.

use super::own_calls::{list, patched, serial, set_scheduler};
use super::*;
use crate::amd::own_calls::OwnCalls;

/// Waits until something is so, with the backend's loop turning.
fn until(scene: &mut Scene, what: &str, is_so: impl Fn(&mut Scene) -> bool) {
    let since = Instant::now();
    while !is_so(scene) {
        assert!(since.elapsed() < StdDuration::from_secs(20), "in vain: {what}");
        scene.backend.take_reports();
        std::thread::sleep(StdDuration::from_millis(1));
    }
}

fn way(scene: &mut Scene) -> &'static str {
    scene.backend.take_reports();
    scene.backend.way_of(TASK).unwrap().name
}

#[test]
fn a_list_of_queues_that_goes_away_is_missed_and_found_again() {
    let mut scene = Scene::new("amd-unlisted", patched(), 1);
    list(&scene, serial(&scene), "");
    scene.adopt();
    let queue = scene.wait_for_queue();
    fs::remove_dir_all(scene.root.join("debug")).unwrap();
    let is_it = |text: &str| text.contains("the list of queues is gone");
    scene.wait_for_note(|note| matches!(note, Note::Problem(text) if is_it(text)));
    assert!(scene.limit().is_some_and(|limit| is_it(&limit.sentence) && !limit.is_beyond));
    assert_eq!(way(&mut scene), "own-calls");
    // The queue is still the one it was, and one that comes now is found where names are.
    scene.stop(queue);
    scene.client().open_queue(GPU).unwrap();
    let folder = scene.root.join(format!("sys/proc/{}/queues/1", scene.key.pid));
    fs::create_dir_all(&folder).unwrap();
    for (file, value) in [("gpuid", GPU), ("type", 0), ("size", 4096)] {
        fs::write(folder.join(file), value.to_string()).unwrap();
    }
    let second = scene.wait_for_queue();
    assert_eq!(scene.backend.observe(second), Some(BUSY), "nobody knows where its ring is");
    list(&scene, serial(&scene), " preempted");
    scene.wait_for_note(|note| matches!(note, Note::Solved(text) if is_it(text)));
    assert_eq!(scene.limit(), None);
    let is_kept = |event: &Event| (*event == Event::QueueVanished { queue: second }).then_some(());
    scene.wait_for(is_kept);
    assert_eq!(scene.backend.queues_of(TASK), [queue], "it is not in the list, the first one is");
}

#[test]
fn a_program_that_replaces_itself_keeps_its_priority() {
    let mut scene = Scene::new("amd-exec", patched(), 1);
    set_scheduler(&scene, "Y\n");
    list(&scene, serial(&scene), "");
    scene.adopt();
    scene.backend.set_priority(TASK, Priority::new(12).unwrap());
    let (queue, pid) = (scene.wait_for_queue(), scene.key.pid);
    until(&mut scene, "it has it", |scene| scene.kfd.logical_priority(pid) == Some(12));
    scene.backend.set_queue_priority(queue, Priority::new(3));
    until(&mut scene, "so has it", |scene| scene.kfd.logical_priority_of(pid, 0) == Some(3));
    // Nobody sees that it is gone: its folder and its number are what they were.
    scene.client = None;
    assert_eq!(scene.kfd.logical_priority(pid), None);
    let client = scene.kfd.client(pid);
    assert_eq!(client.open_queue(GPU), Ok(0));
    scene.client = Some(client);
    list(&scene, serial(&scene), "");
    until(&mut scene, "it has it again", |scene| scene.kfd.logical_priority(pid) == Some(12));
    // What was said of a queue was said of that one; also what is said of it late.
    scene.wait_for(|event| (*event == Event::QueueVanished { queue }).then_some(()));
    scene.backend.set_queue_priority(queue, Priority::new(4));
    scene.backend.set_priority(TASK, Priority::new(13).unwrap());
    until(&mut scene, "that is told", |scene| scene.kfd.logical_priority(pid) == Some(13));
    assert_eq!(scene.kfd.logical_priority_of(pid, 0), None);
}

#[test]
fn without_the_calls_there_are_sessions_until_they_come_back() {
    let mut scene = Scene::new("amd-refused", patched(), 1);
    scene.adopt();
    let first = scene.wait_for_queue();
    scene.stop(first);
    scene.kfd.set_own_calls(false);
    let is_said = |text: &str| text.contains("calls of the patched KFD are refused");
    scene.wait_for_note(|note| matches!(note, Note::Problem(text) if is_said(text)));
    let second = scene.wait_for_queue();
    assert_eq!(way(&mut scene), "debug-trap");
    assert!(scene.kfd.is_debugged(scene.key.pid));
    scene.stop(second);
    assert_eq!(scene.is_running(0), Some(false));
    scene.kfd.set_own_calls(true);
    scene.wait_for_note(|note| matches!(note, Note::Solved(text) if is_said(text)));
    let third = scene.wait_for_queue();
    assert_eq!(way(&mut scene), "own-calls");
    assert!(!scene.kfd.is_debugged(scene.key.pid), "the session has ended");
    scene.stop(third);
    assert_eq!(scene.is_running(0), Some(false));
    assert!(scene.acts().is_some(), "whose it is stays written down");
}

#[test]
fn calls_that_come_and_go_within_milliseconds_lose_nobody() {
    let mut scene = Scene::new("amd-flip", patched(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    for round in 0..20 {
        scene.backend.set_own_calls(OwnCalls::Absent);
        std::thread::sleep(StdDuration::from_millis(round % 7));
        scene.backend.take_reports();
        scene.backend.set_own_calls(OwnCalls::Usable);
        std::thread::sleep(StdDuration::from_millis(round % 3));
        scene.backend.take_reports();
    }
    until(&mut scene, "it is in the fleet again", |scene| {
        let adopted = &scene.backend.tasks[&TASK];
        adopted.in_fleet && !adopted.is_moving && !scene.backend.queues_of(TASK).is_empty()
    });
    let queue = scene.backend.queues_of(TASK)[0];
    scene.stop(queue);
    assert_eq!(scene.is_running(0), Some(false));
    assert!(!scene.kfd.is_debugged(scene.key.pid));
}
