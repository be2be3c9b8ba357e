//! Processes that do not let themselves be read, and calls about them that never return.

use std::os::unix::fs::FileExt;

use super::*;
use crate::amd::abi::block::{CreateQueue, QueueType};
use crate::amd::activity::slow;

/// Two words in the memory of a process, which nothing else uses: the end of its stack has names
/// that a program reads when it starts.
struct Words {
    memory: fs::File,
    address: u64,
}

impl Words {
    fn of(pid: u32) -> Self {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let end = stack.split(['-', ' ']).nth(1).unwrap();
        let address = u64::from_str_radix(end, 16).unwrap() - 64;
        let memory = format!("/proc/{pid}/mem");
        let memory = fs::OpenOptions::new().write(true).open(memory).unwrap();
        let words = Self { memory, address };
        words.set(0, 0);
        words
    }

    fn set(&self, put: u64, get: u64) {
        for (word, offset) in [(put, 0), (get, 8)] {
            self.memory.write_all_at(&word.to_le_bytes(), self.address + offset).unwrap();
        }
    }

    /// Makes a queue that has its indices there.
    fn open_queue(&self, client: &FakeClient) -> u32 {
        let mut block: CreateQueue = zerocopy::FromZeros::new_zeroed();
        (block.gpu_id, block.percentage) = (GPU, 100);
        block.queue_type = QueueType::ComputeAql as u32;
        (block.write_pointer, block.read_pointer) = (self.address, self.address + 8);
        client.create_queue(&mut block).unwrap();
        block.queue_id
    }
}

/// Waits until a ring shows something, as the loop does: it asks now and then.
fn until_shown(scene: &mut Scene, queue: QueueId, wanted: impl Fn(RingView) -> bool) {
    let since = Instant::now();
    while !scene.backend.observe(queue).is_some_and(&wanted) {
        assert!(since.elapsed() < StdDuration::from_secs(20), "it is never shown");
        std::thread::sleep(StdDuration::from_millis(2));
    }
}

#[test]
fn rings_are_read_and_what_changes_is_told_at_once() {
    let mut scene = Scene::new("amd-rings", Rules::default(), 1);
    let words = Words::of(scene.key.pid);
    words.open_queue(scene.client());
    scene.adopt();
    let (_unshown, queue) = (scene.wait_for_queue(), scene.wait_for_queue());
    until_shown(&mut scene, queue, |view| (view.put, view.get) == (0, 0));
    // A look shows what is there now, not what was there at the last one.
    let is_shown_at_once = |put: u64| {
        words.set(put, put);
        scene.backend.observe(queue).is_some_and(|view| view.put == put)
    };
    assert!((10..500).any(is_shown_at_once), "every look shows the past");
    // What cannot be read in time is not waited for, it is told.
    slow::set(scene.key.pid, true);
    words.set(3, 1);
    scene.backend.observe(queue);
    slow::set(scene.key.pid, false);
    let is_told = |event: &Event| {
        matches!(event, Event::RingObserved { queue: which, ring }
            if *which == queue && ring.put == 3)
    };
    scene.wait_for(|event| is_told(event).then_some(()));
    until_shown(&mut scene, queue, |view| view == RingView { put: 3, get: 1, running: None });
    assert_eq!(scene.limit(), None);
}

#[test]
fn a_process_whose_memory_does_not_answer_is_busy_and_holds_nobody_up() {
    let mut scene = Scene::new("amd-unread", Rules::default(), 1);
    let ring = Words::of(scene.key.pid);
    ring.open_queue(scene.client());
    scene.adopt();
    let (_unshown, queue) = (scene.wait_for_queue(), scene.wait_for_queue());
    until_shown(&mut scene, queue, |view| (view.put, view.get) == (0, 0));
    let (mut child, client) = scene.join();
    let (key, other) = (ProcessInfo::read(child.id()).unwrap().key, TaskId(2));
    let silent = Words::of(key.pid);
    silent.open_queue(&client);
    silent.set(7, 7);
    scene.backend.adopt(other, key).unwrap();
    let (_unshown, second) = (scene.wait_for_queue(), scene.wait_for_queue());
    until_shown(&mut scene, second, |view| (view.put, view.get) == (7, 7));

    slow::set(key.pid, true);
    let busy = RingView { put: 7, get: 7, running: Some(true) };
    until_shown(&mut scene, second, |view| view == busy);
    let words = "its memory does not answer";
    let is_said = |note: &Note| matches!(note, Note::Problem(text) if text.contains(words));
    scene.wait_for_note(is_said);
    let limit = scene.backend.limit_of(other).unwrap();
    assert!(!limit.is_beyond && limit.sentence.contains("taken to be busy"), "{limit:?}");
    // The other one is read as ever, and both are stopped as ever.
    ring.set(9, 5);
    until_shown(&mut scene, queue, |view| (view.put, view.get) == (9, 5));
    scene.stop(queue);
    scene.stop(second);
    // It comes back.
    slow::set(key.pid, false);
    until_shown(&mut scene, second, |view| view.running.is_none());
    scene.wait_for_note(|note| matches!(note, Note::Solved(text) if text.contains("its rings")));
    assert_eq!(scene.backend.limit_of(other), None);

    // Whoever does not answer is not waited for when everything ends.
    slow::set(key.pid, true);
    until_shown(&mut scene, second, |view| view == busy);
    scene.backend.release_all().unwrap();
    assert_eq!(scene.kfd.is_running(key.pid, 1), Some(true));
    slow::set(key.pid, false);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_call_that_never_returns_holds_nobody_up_either() {
    let mut scene = Scene::new("amd-hang", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    let (mut child, _client) = scene.join();
    let key = ProcessInfo::read(child.id()).unwrap().key;
    scene.backend.adopt(TaskId(2), key).unwrap();
    let hung = scene.wait_for_queue();
    scene.kfd.hang(key.pid, true);
    scene.preempt(hung);
    scene.stop(queue);
    let error = scene.backend.release_all().unwrap_err().to_string();
    assert!(error.contains(&format!("process {key} does not answer")), "{error}");
    assert_eq!(scene.is_running(0), Some(true), "the others are put back");
    // Whoever reads the journal can put it back later.
    let entries = JournalSession::at(scene.journal.clone()).entries().unwrap();
    assert!(entries.iter().any(|entry| entry.process == key), "{entries:?}");
    scene.kfd.hang(key.pid, false);
    child.kill().unwrap();
    child.wait().unwrap();
}
