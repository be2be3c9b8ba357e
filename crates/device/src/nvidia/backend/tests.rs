//! The backend with a process that has no GPU, of which it is said that it has a context.

use std::process::{Child, Command as Program, Stdio};
use std::time::Instant;

use gpreempt_core::backend::PreemptLevel;

use super::*;
use crate::journal::Journal;
use crate::nvidia::discover::{Client, Device as SeenDevice, Engine, Group};
use crate::process::ProcessInfo;

const TASK: TaskId = TaskId(1);

struct Scene {
    root: std::path::PathBuf,
    child: Child,
    backend: NvidiaBackend,
}

impl Scene {
    fn new(name: &str) -> (Self, QueueId) {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let session = Journal::at(root.clone()).unwrap().begin().unwrap();
        let (ledger, waker) = (Ledger::new(session), Waker::new().unwrap());
        let backend = NvidiaBackend::new(ledger, Numbering::of(0), waker).unwrap();
        let child = Program::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let mut scene = Self { root, child, backend };
        let group = Group {
            handle: 0x5c00_0010,
            engine: Engine::Compute,
            // Without channels nothing looks for its rings.
            channels: Vec::new(),
            slice_us: Some(2048),
            generation: None,
            context_share: None,
            compute_class: None,
            pages: Vec::new(),
        };
        let (uuid, subdevice) = (Some("GPU-1".to_owned()), Some(2));
        let device = SeenDevice { handle: 1, subdevice, uuid, groups: vec![group] };
        let devices = vec![device];
        let client = Client { handle: 0xc1d0_0001, devices, objects: 1, holds: Vec::new() };
        let info = ProcessInfo::read(scene.child.id()).unwrap();
        let process = GpuProcess { info, nodes: Vec::new(), clients: Ok(vec![client]) };
        scene.backend.adopt_seen(TASK, &process, Wishes::default()).unwrap();
        let [queue] = scene.backend.queues_of(TASK)[..] else { panic!("one context, one queue") };
        (scene, queue)
    }

    /// Everything that is reported until the answer to a command has come, and a while after.
    fn events(&mut self, is_answer: impl Fn(&Event) -> bool) -> Vec<Event> {
        let (since, mut events) = (Instant::now(), Vec::new());
        while !events.iter().any(&is_answer) {
            assert!(since.elapsed().as_secs() < 20, "no answer: {events:?}");
            events.extend(self.backend.poll_event());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for _ in 0..50 {
            events.extend(self.backend.poll_event());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        events
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_context_that_is_gone_vanishes_once_and_is_no_problem() {
    for has_ended in [false, true] {
        let (mut scene, queue) = Scene::new(&format!("nvidia-gone-{has_ended}"));
        scene.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
        if has_ended {
            scene.child.kill().unwrap();
            scene.child.wait().unwrap();
        }
        let gone = Event::PreemptFailed { queue, fault: Fault::Gone };
        let events = scene.events(|event| *event == gone);
        let count = |wanted: Event| events.iter().filter(|event| **event == wanted).count();
        assert_eq!(count(gone), 1, "{events:?}");
        let vanished = count(Event::QueueVanished { queue });
        assert!(vanished == 1 || has_ended && vanished == 0, "{events:?}");
        assert_eq!(scene.backend.queues_of(TASK), []);
        // What is still commanded is answered at once.
        scene.backend.submit(Command::Resume { queue });
        let answered = scene.events(|event| *event == Event::Resumed { queue });
        assert!(!answered.contains(&Event::QueueVanished { queue }), "{answered:?}");
        let mut notes = std::iter::from_fn(|| scene.backend.poll_note());
        assert!(notes.all(|note| !matches!(note, Note::Problem(_))));
    }
}
