//! Processes whose memory cannot be read, and KFD calls that never return.

use std::os::unix::fs::FileExt;

use super::*;
use crate::amd::abi::block::{CreateQueue, QueueType};
use crate::amd::ring_memory::slow;

/// Two words in the memory of a process that nothing else uses: the end of its stack holds strings
/// that a program only reads when it starts.
struct RingIndices {
    memory: fs::File,
    address: u64,
}

impl RingIndices {
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

    fn open_queue(&self, client: &FakeClient) -> u32 {
        let mut block: CreateQueue = zerocopy::FromZeros::new_zeroed();
        (block.gpu_id, block.percentage) = (GPU, 100);
        block.queue_type = QueueType::ComputeAql as u32;
        (block.write_pointer, block.read_pointer) = (self.address, self.address + 8);
        client.create_queue(&mut block).unwrap();
        block.queue_id
    }
}

/// Observes a queue repeatedly, as the scheduler loop does.
fn until_shown(fixture: &mut Fixture, queue: QueueId, wanted: impl Fn(RingView) -> bool) {
    until("the ring is shown", || fixture.backend.observe(queue).is_some_and(&wanted));
}

#[test]
fn rings_are_read_and_changes_are_reported_at_once() {
    let mut fixture = Fixture::new(KfdProfile::default(), 1);
    let words = RingIndices::of(fixture.key.pid);
    words.open_queue(fixture.client());
    fixture.adopt();
    let (_unshown, queue) = (fixture.wait_for_queue(), fixture.wait_for_queue());
    until_shown(&mut fixture, queue, |view| (view.put, view.get) == (0, 0));
    // An observation shows the current indices, not those of the last round.
    let is_shown_at_once = |put: u64| {
        words.set(put, put);
        fixture.backend.observe(queue).is_some_and(|view| view.put == put)
    };
    assert!((10..500).any(is_shown_at_once), "every look shows the past");
    // A read that takes too long is reported later.
    slow::set(fixture.key.pid, true);
    words.set(3, 1);
    fixture.backend.observe(queue);
    slow::set(fixture.key.pid, false);
    let is_told = |event: &Event| {
        matches!(event, Event::RingObserved { queue: which, ring }
            if *which == queue && ring.put == 3)
    };
    fixture.wait_for(|event| is_told(event).then_some(()));
    until_shown(&mut fixture, queue, |view| view == RingView { put: 3, get: 1, running: None });
    assert_eq!(fixture.limit(), None);
}

#[test]
fn unreadable_memory_counts_as_busy_and_blocks_no_other_process() {
    let mut fixture = Fixture::new(KfdProfile::default(), 1);
    let ring = RingIndices::of(fixture.key.pid);
    ring.open_queue(fixture.client());
    fixture.adopt();
    let (_unshown, queue) = (fixture.wait_for_queue(), fixture.wait_for_queue());
    until_shown(&mut fixture, queue, |view| (view.put, view.get) == (0, 0));
    let process = fixture.join(1);
    let (key, other) = (process.key, TaskId(2));
    let silent = RingIndices::of(key.pid);
    silent.open_queue(process.client());
    silent.set(7, 7);
    fixture.backend.adopt(other, key).unwrap();
    let (_unshown, second) = (fixture.wait_for_queue(), fixture.wait_for_queue());
    until_shown(&mut fixture, second, |view| (view.put, view.get) == (7, 7));

    slow::set(key.pid, true);
    let busy = RingView { put: 7, get: 7, running: Some(true) };
    until_shown(&mut fixture, second, |view| view == busy);
    fixture.wait_for_problem("its memory does not respond");
    let limit = fixture.backend.limit_of(other).unwrap();
    assert!(!limit.is_uncontrollable && limit.sentence.contains("counts as busy"), "{limit:?}");
    // The other process is read, and both are stopped.
    ring.set(9, 5);
    until_shown(&mut fixture, queue, |view| (view.put, view.get) == (9, 5));
    fixture.stop(queue);
    fixture.stop(second);
    // The memory responds again.
    slow::set(key.pid, false);
    until_shown(&mut fixture, second, |view| view.running.is_none());
    fixture.wait_for_solution("its rings");
    assert_eq!(fixture.backend.limit_of(other), None);

    // The release does not wait for a blocked process.
    slow::set(key.pid, true);
    until_shown(&mut fixture, second, |view| view == busy);
    fixture.backend.release_all().unwrap();
    assert_eq!(fixture.kfd.is_running(key.pid, 1), Some(true));
    slow::set(key.pid, false);
}

#[test]
fn a_call_that_never_returns_blocks_no_other_process() {
    let (mut fixture, queue) = Fixture::adopted(KfdProfile::default());
    let process = fixture.join(1);
    let key = process.key;
    fixture.backend.adopt(TaskId(2), key).unwrap();
    let hung = fixture.wait_for_queue();
    fixture.kfd.hang(key.pid, true);
    fixture.preempt(hung);
    fixture.stop(queue);
    let error = fixture.backend.release_all().unwrap_err().to_string();
    assert!(error.contains(&format!("process {key} does not answer")), "{error}");
    assert_eq!(fixture.is_running(0), Some(true), "the others are put back");
    // The keeper can revert it later.
    let entries = OwnerJournal::at(fixture.journal.clone()).entries().unwrap();
    assert!(entries.iter().any(|entry| entry.process == key), "{entries:?}");
    fixture.kfd.hang(key.pid, false);
}
