mod obstacles;
mod patched_kfd;
mod silence;

use std::fs;
use std::path::PathBuf;
use std::time::Duration as StdDuration;

use gpreempt_core::event::Fault;
use gpreempt_stage::{WorkFolder, until, until_some};

use super::*;
use crate::amd::abi::trap::RuntimeState;
use crate::amd::change::AmdChange;
use crate::amd::kfd_instance::{KfdInstance, fakes};
use crate::amd::probe::Privileges;
use crate::amd::{FakeClient, FakeKfd, KfdClientCalls, KfdProfile};
use crate::controller::{
    AdoptError, Controller, PriorityForwarding, Rescanning, StopMethodReporting,
};
use crate::journal::{GpuChange, Journal, OwnerJournal};
use crate::process::SleepingChild;

const GPU: u32 = 1001;
const TASK: TaskId = TaskId(1);

/// A real process with queues of an in-process KFD.
struct TestProcess {
    child: SleepingChild,
    /// None once the process no longer uses KFD.
    client: Option<FakeClient>,
    key: ProcessKey,
}

impl TestProcess {
    fn start(kfd: &FakeKfd, folder: &WorkFolder, queues: u32) -> Self {
        let child = SleepingChild::start();
        let key = child.key;
        let client = kfd.client(key.pid);
        // Older kernels have no such call.
        match client.runtime_enable(true) {
            Ok(()) | Err(rustix::io::Errno::NOTTY) => {}
            Err(errno) => panic!("{errno}"),
        }
        for _ in 0..queues {
            show_queue(folder, key.pid, client.open_queue(GPU).unwrap());
        }
        Self { child, client: Some(client), key }
    }

    fn client(&self) -> &FakeClient {
        self.client.as_ref().unwrap()
    }
}

/// Writes a queue into sysfs.
fn show_queue(folder: &WorkFolder, pid: u32, queue: u32) {
    let queue = folder.path(format!("sys/proc/{pid}/queues/{queue}"));
    fs::create_dir_all(&queue).unwrap();
    for (file, value) in [("gpuid", GPU), ("type", 0), ("size", 4096)] {
        fs::write(queue.join(file), value.to_string()).unwrap();
    }
}

/// A process, and a backend for it and its KFD.
struct Fixture {
    journal: PathBuf,
    kfd: FakeKfd,
    process: TestProcess,
    key: ProcessKey,
    backend: AmdBackend,
    folder: WorkFolder,
}

impl Fixture {
    fn new(rules: KfdProfile, queues: u32) -> Self {
        Self::with(&FakeKfd::with(rules), queues, true)
    }

    fn with(kfd: &FakeKfd, queues: u32, may_pause: bool) -> Self {
        let folder = WorkFolder::new("amd").unwrap();
        let node = folder.path("sys/topology/nodes/1");
        fs::create_dir_all(&node).unwrap();
        fs::write(node.join("gpu_id"), GPU.to_string()).unwrap();
        fs::write(node.join("properties"), "gfx_target_version 90402\nunique_id 5\n").unwrap();
        let process = TestProcess::start(kfd, &folder, queues);
        fakes::put(folder.root(), kfd, may_pause);
        let mut instance = KfdInstance::emulated(folder.root()).unwrap();
        instance.privileges =
            Privileges { capabilities: if may_pause { u64::MAX } else { 0 }, yama: 0 };
        let session = Journal::at(folder.path("journal")).unwrap().begin().unwrap();
        let journal = session.folder().to_owned();
        let (undo_log, waker) = (UndoLog::new(session), Waker::new().unwrap());
        let mut backend = AmdBackend::new(instance, undo_log, Numbering::of(2), waker).unwrap();
        backend.set_rescan(StdDuration::from_millis(1));
        let (kfd, key) = (kfd.clone(), process.key);
        Self { journal, kfd, process, key, backend, folder }
    }

    /// With an adopted process that has one queue.
    fn adopted(rules: KfdProfile) -> (Self, QueueId) {
        let mut fixture = Self::new(rules, 1);
        fixture.adopt();
        let queue = fixture.wait_for_queue();
        (fixture, queue)
    }

    /// The same with the queue stopped.
    fn stopped(rules: KfdProfile) -> (Self, QueueId) {
        let (mut fixture, queue) = Self::adopted(rules);
        fixture.stop(queue);
        (fixture, queue)
    }

    /// Starts another process with queues on the same device.
    fn join(&self, queues: u32) -> TestProcess {
        TestProcess::start(&self.kfd, &self.folder, queues)
    }

    fn acts(&self) -> Option<Vec<GpuChange>> {
        let entries = OwnerJournal::at(self.journal.clone()).entries().unwrap();
        entries.into_iter().find(|entry| entry.process == self.key).map(|entry| entry.changes)
    }

    fn limit(&mut self) -> Option<ControlLimit> {
        self.backend.take_reports();
        self.backend.limit_of(TASK)
    }

    fn client(&self) -> &FakeClient {
        self.process.client()
    }

    fn adopt(&mut self) {
        self.backend.adopt(TASK, self.key).unwrap();
    }

    /// Waits until something is so, and takes in reports meanwhile.
    fn until(&mut self, what: &str, is_so: impl Fn(&mut Self) -> bool) {
        until(what, || {
            self.backend.take_reports();
            is_so(self)
        });
    }

    /// The next matching event. Earlier ones are discarded.
    fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        until_some("the event", || {
            std::iter::from_fn(|| self.backend.poll_event()).find_map(|event| wanted(&event))
        })
    }

    fn wait_for_event(&mut self, wanted: Event) {
        self.wait_for(|event| (*event == wanted).then_some(()));
    }

    fn wait_for_queue(&mut self) -> QueueId {
        self.wait_for(|event| {
            let Event::QueueAppeared { queue, stopped: false, .. } = event else { return None };
            Some(*queue)
        })
    }

    fn wait_for_problem(&mut self, words: &str) {
        self.wait_for_note(
            |note| matches!(note, ControllerReport::Problem(text) if text.contains(words)),
        );
    }

    fn wait_for_solution(&mut self, words: &str) {
        self.wait_for_note(
            |note| matches!(note, ControllerReport::Solved(text) if text.contains(words)),
        );
    }

    fn wait_for_note(&mut self, wanted: impl Fn(&ControllerReport) -> bool) {
        until("the report", || {
            std::iter::from_fn(|| self.backend.poll_report()).any(|note| wanted(&note))
        });
    }

    fn preempt(&mut self, queue: QueueId) {
        self.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
    }

    fn stop(&mut self, queue: QueueId) {
        self.preempt(queue);
        self.wait_for_event(Event::Preempted { queue });
    }

    fn is_running(&self, queue: u32) -> Option<bool> {
        self.kfd.is_running(self.key.pid, queue)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = self.backend.release_all();
    }
}

fn old() -> KfdProfile {
    KfdProfile { owner_may: false, ..KfdProfile::default() }
}

#[test]
fn queues_of_an_adopted_process_are_stopped_together_and_resumed() {
    for rules in [KfdProfile::default(), old()] {
        let mut fixture = Fixture::new(rules, 8);
        fixture.adopt();
        let queues: Vec<QueueId> = (0..8).map(|_| fixture.wait_for_queue()).collect();
        assert_eq!(fixture.backend.queues_of(TASK), queues);
        let before = fixture.kfd.remaps();
        queues.iter().for_each(|queue| fixture.preempt(*queue));
        for _ in 0..8 {
            fixture.wait_for(|event| matches!(event, Event::Preempted { .. }).then_some(()));
        }
        assert!((0..8).all(|queue| fixture.is_running(queue) == Some(false)));
        // One, unless this thread was descheduled between two commands.
        assert!(fixture.kfd.remaps() - before < 8);
        for queue in queues {
            fixture.backend.submit(Command::Resume { queue });
            fixture.wait_for(|event| matches!(event, Event::Resumed { .. }).then_some(()));
        }
        assert!((0..8).all(|queue| fixture.is_running(queue) == Some(true)));
    }
}

#[test]
fn a_process_without_a_task_is_reported_and_not_touched() {
    let mut fixture = Fixture::new(KfdProfile::default(), 1);
    let key = fixture.key;
    fixture.wait_for_note(|note| *note == ControllerReport::Appeared(key));
    assert_eq!(fixture.backend.users(), [key]);
    assert!(!fixture.kfd.is_debugged(key.pid));
    let device = &fixture.backend.devices()[0];
    assert_eq!(device.uuid, "GPU-0000000000000005");
    let is_there = |event: &Event| matches!(event, Event::DeviceAppeared { .. }).then_some(());
    fixture.wait_for(is_there);
}

#[test]
fn created_and_destroyed_queues_are_reported() {
    let (mut fixture, first) = Fixture::adopted(KfdProfile::default());
    let later = fixture.client().open_queue(GPU).unwrap();
    let queue = fixture.wait_for_queue();
    fixture.stop(queue);
    assert_eq!((fixture.is_running(0), fixture.is_running(later)), (Some(true), Some(false)));
    fixture.client().destroy_queue(0).unwrap();
    fixture.wait_for_event(Event::QueueVanished { queue: first });
    // A command for a queue that is gone succeeds.
    fixture.preempt(first);
    fixture.wait_for_event(Event::Preempted { queue: first });
}

#[test]
fn the_end_of_a_runtime_resumes_its_queues() {
    let (mut fixture, queue) = Fixture::stopped(KfdProfile::default());
    fixture.client().runtime_enable(false).unwrap();
    assert_eq!(fixture.kfd.runtime(fixture.key.pid), Some(RuntimeState::Disabled));
    // The kernel resumed it, so the suspended queue is reported as gone.
    fixture.wait_for_event(Event::QueueVanished { queue });
    let again = fixture.wait_for_queue();
    fixture.preempt(again);
    let fault = fixture.wait_for(|event| {
        let Event::PreemptFailed { fault, .. } = event else { return None };
        Some(*fault)
    });
    assert_eq!(fault, Fault::Gone);
}

#[test]
fn a_released_process_runs_and_has_no_debugger() {
    let (mut fixture, _) = Fixture::stopped(KfdProfile::default());
    fixture.backend.release(TASK);
    fixture.backend.release_all().unwrap();
    assert_eq!(fixture.is_running(0), Some(true));
    assert!(!fixture.kfd.is_debugged(fixture.key.pid));
}

#[test]
fn the_end_of_a_process_is_reported() {
    let (mut fixture, queue) = Fixture::adopted(KfdProfile::default());
    fixture.process.client = None;
    fixture.wait_for_event(Event::QueueVanished { queue });
    fs::remove_dir_all(fixture.folder.path("sys/proc").join(fixture.key.pid.to_string())).unwrap();
    fixture.wait_for_note(|note| *note == ControllerReport::Ended(TASK));
    assert_eq!(fixture.backend.queues_of(TASK), []);
}

#[test]
fn a_process_with_another_debugger_is_not_touched_and_reported() {
    let mut fixture = Fixture::new(KfdProfile::default(), 1);
    fixture.kfd.trace_externally(fixture.key.pid, std::process::id());
    fixture.adopt();
    fixture.wait_for_problem("has a debugger already");
    assert_eq!(fixture.backend.queues_of(TASK), []);
    assert_eq!(fixture.is_running(0), Some(true));
    let again = fixture.backend.adopt(TaskId(2), fixture.key);
    assert!(again.is_err_and(|error| matches!(error, AdoptError::Twice(_))));
}
