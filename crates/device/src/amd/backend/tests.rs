mod change_over;
mod names;
mod obstacles;
mod own_calls;
mod silence;

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command as Program, Stdio};
use std::time::{Duration as StdDuration, Instant};

use gpreempt_core::event::Fault;

use super::*;
use crate::amd::abi::trap::RuntimeState;
use crate::amd::act::AmdAct;
use crate::amd::door::ClientDoor;
use crate::amd::fake::{FakeClient, FakeKfd, Rules};
use crate::amd::probe::Powers;
use crate::amd::site::{Site, fakes};
use crate::controller::{
    AdoptError, Controller, PriorityForwarding, Rescanning, StopMethodReporting,
};
use crate::journal::{Act, Journal, Session as JournalSession};
use crate::process::ProcessInfo;

const GPU: u32 = 1001;
const TASK: TaskId = TaskId(1);

/// A process that really exists, with queues that do not, and a backend that knows both.
struct Scene {
    root: PathBuf,
    journal: PathBuf,
    kfd: FakeKfd,
    child: Child,
    client: Option<FakeClient>,
    key: ProcessKey,
    backend: AmdBackend,
}

impl Scene {
    fn new(name: &str, rules: Rules, queues: u32) -> Self {
        Self::with(name, &FakeKfd::with(rules), queues, true)
    }

    /// A process on a KFD that others may use as well.
    fn with(name: &str, kfd: &FakeKfd, queues: u32, may_pause: bool) -> Self {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let node = root.join("sys/topology/nodes/1");
        fs::create_dir_all(&node).unwrap();
        fs::write(node.join("gpu_id"), GPU.to_string()).unwrap();
        fs::write(node.join("properties"), "gfx_target_version 90402\nunique_id 5\n").unwrap();
        let child = Program::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let key = ProcessInfo::read(child.id()).unwrap().key;
        let client = kfd.client(key.pid);
        // Older kernels have no such thing.
        match client.runtime_enable(true) {
            Ok(()) | Err(rustix::io::Errno::NOTTY) => {}
            Err(errno) => panic!("{errno}"),
        }
        for _ in 0..queues {
            let queue = client.open_queue(GPU).unwrap();
            let folder = root.join(format!("sys/proc/{}/queues/{queue}", key.pid));
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [("gpuid", GPU), ("type", 0), ("size", 4096)] {
                fs::write(folder.join(file), value.to_string()).unwrap();
            }
        }
        fakes::put(&root, kfd, may_pause);
        let mut site = Site::emulated(&root).unwrap();
        site.powers = Powers { capabilities: if may_pause { u64::MAX } else { 0 }, yama: 0 };
        let session = Journal::at(root.join("journal")).unwrap().begin().unwrap();
        let journal = session.folder().to_owned();
        let (ledger, waker) = (Ledger::new(session), Waker::new().unwrap());
        let mut backend = AmdBackend::new(site, ledger, Numbering::of(2), waker).unwrap();
        backend.set_rescan(StdDuration::from_millis(1));
        let kfd = kfd.clone();
        Self { root, journal, kfd, child, client: Some(client), key, backend }
    }

    /// Another process on the same device, with a queue.
    fn join(&self) -> (Child, FakeClient) {
        let child = Program::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let client = self.kfd.client(child.id());
        client.runtime_enable(true).unwrap();
        client.open_queue(GPU).unwrap();
        fs::create_dir_all(self.root.join(format!("sys/proc/{}/queues", child.id()))).unwrap();
        (child, client)
    }

    /// What the journal says of the process.
    fn acts(&self) -> Option<Vec<Act>> {
        let entries = JournalSession::at(self.journal.clone()).entries().unwrap();
        entries.into_iter().find(|entry| entry.process == self.key).map(|entry| entry.acts)
    }

    fn limit(&mut self) -> Option<Limit> {
        self.backend.take_reports();
        self.backend.limit_of(TASK)
    }

    fn client(&self) -> &FakeClient {
        self.client.as_ref().unwrap()
    }

    fn adopt(&mut self) {
        self.backend.adopt(TASK, self.key).unwrap();
    }

    /// The next event of a kind, with those before it thrown away.
    fn wait_for<T>(&mut self, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let since = Instant::now();
        loop {
            while let Some(event) = self.backend.poll_event() {
                if let Some(found) = wanted(&event) {
                    return found;
                }
            }
            assert!(since.elapsed() < StdDuration::from_secs(20), "it never happened");
            std::thread::sleep(StdDuration::from_millis(1));
        }
    }

    fn wait_for_queue(&mut self) -> QueueId {
        self.wait_for(|event| {
            let Event::QueueAppeared { queue, stopped: false, .. } = event else { return None };
            Some(*queue)
        })
    }

    fn wait_for_note(&mut self, wanted: impl Fn(&Note) -> bool) {
        let since = Instant::now();
        loop {
            while let Some(note) = self.backend.poll_note() {
                if wanted(&note) {
                    return;
                }
            }
            assert!(since.elapsed() < StdDuration::from_secs(20), "it was never noted");
            std::thread::sleep(StdDuration::from_millis(1));
        }
    }

    fn preempt(&mut self, queue: QueueId) {
        self.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
    }

    /// Preempts a queue and waits until it is off.
    fn stop(&mut self, queue: QueueId) {
        self.preempt(queue);
        self.wait_for(|event| (*event == Event::Preempted { queue }).then_some(()));
    }

    fn is_running(&self, queue: u32) -> Option<bool> {
        self.kfd.is_running(self.key.pid, queue)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.backend.release_all();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn old() -> Rules {
    Rules { owner_may: false, ..Rules::default() }
}

#[test]
fn queues_of_an_adopted_process_are_stopped_together_and_resumed() {
    for rules in [Rules::default(), old()] {
        let mut scene = Scene::new("amd-together", rules, 8);
        scene.adopt();
        let queues: Vec<QueueId> = (0..8).map(|_| scene.wait_for_queue()).collect();
        assert_eq!(scene.backend.queues_of(TASK), queues);
        let before = scene.kfd.remaps();
        queues.iter().for_each(|queue| scene.preempt(*queue));
        for _ in 0..8 {
            scene.wait_for(|event| matches!(event, Event::Preempted { .. }).then_some(()));
        }
        assert!((0..8).all(|queue| scene.is_running(queue) == Some(false)));
        // One, unless this thread was held up between two commands.
        assert!(scene.kfd.remaps() - before < 8);
        for queue in queues {
            scene.backend.submit(Command::Resume { queue });
            scene.wait_for(|event| matches!(event, Event::Resumed { .. }).then_some(()));
        }
        assert!((0..8).all(|queue| scene.is_running(queue) == Some(true)));
    }
}

#[test]
fn a_process_that_nobody_adopted_is_announced_and_left_alone() {
    let mut scene = Scene::new("amd-stranger", Rules::default(), 1);
    let key = scene.key;
    scene.wait_for_note(|note| *note == Note::Appeared(key));
    assert_eq!(scene.backend.users(), [key]);
    assert!(!scene.kfd.is_debugged(key.pid));
    let device = &scene.backend.devices()[0];
    assert_eq!(device.uuid, "GPU-0000000000000005");
    let is_there = |event: &Event| matches!(event, Event::DeviceAppeared { .. }).then_some(());
    scene.wait_for(is_there);
}

#[test]
fn queues_that_come_and_go_are_told() {
    let mut scene = Scene::new("amd-come", Rules::default(), 1);
    scene.adopt();
    let first = scene.wait_for_queue();
    let later = scene.client().open_queue(GPU).unwrap();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    assert_eq!((scene.is_running(0), scene.is_running(later)), (Some(true), Some(false)));
    scene.client().destroy_queue(0).unwrap();
    scene.wait_for(|event| (*event == Event::QueueVanished { queue: first }).then_some(()));
    // What is told to something that is gone is done.
    scene.preempt(first);
    scene.wait_for(|event| (*event == Event::Preempted { queue: first }).then_some(()));
}

#[test]
fn a_runtime_that_ends_takes_its_stopped_queues_along() {
    let mut scene = Scene::new("amd-runtime", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    scene.client().runtime_enable(false).unwrap();
    assert_eq!(scene.kfd.runtime(scene.key.pid), Some(RuntimeState::Disabled));
    // The kernel resumed it, so the one that was off is not there any more.
    scene.wait_for(|event| (*event == Event::QueueVanished { queue }).then_some(()));
    let again = scene.wait_for_queue();
    scene.preempt(again);
    let fault = scene.wait_for(|event| {
        let Event::PreemptFailed { fault, .. } = event else { return None };
        Some(*fault)
    });
    assert_eq!(fault, Fault::Gone);
}

#[test]
fn a_released_process_runs_and_has_no_debugger() {
    let mut scene = Scene::new("amd-release", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.stop(queue);
    scene.backend.release(TASK);
    scene.backend.release_all().unwrap();
    assert_eq!(scene.is_running(0), Some(true));
    assert!(!scene.kfd.is_debugged(scene.key.pid));
}

#[test]
fn a_process_that_ends_is_noted() {
    let mut scene = Scene::new("amd-end", Rules::default(), 1);
    scene.adopt();
    let queue = scene.wait_for_queue();
    scene.client = None;
    scene.wait_for(|event| (*event == Event::QueueVanished { queue }).then_some(()));
    fs::remove_dir_all(scene.root.join("sys/proc").join(scene.key.pid.to_string())).unwrap();
    scene.wait_for_note(|note| *note == Note::Ended(TASK));
    assert_eq!(scene.backend.queues_of(TASK), []);
}

#[test]
fn a_process_with_another_debugger_is_left_alone_and_that_is_said() {
    let mut scene = Scene::new("amd-debugged", Rules::default(), 1);
    scene.kfd.trace_by_somebody(scene.key.pid, std::process::id());
    scene.adopt();
    scene.wait_for_note(
        |note| matches!(note, Note::Problem(text) if text.contains("has a debugger already")),
    );
    assert_eq!(scene.backend.queues_of(TASK), []);
    assert_eq!(scene.is_running(0), Some(true));
    let again = scene.backend.adopt(TaskId(2), scene.key);
    assert!(again.is_err_and(|error| matches!(error, AdoptError::Twice(_))));
}
