//! An emulator on a thread of this process, and a backend that knows where it listens.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpreempt_core::capability::Level;
use gpreempt_emu::server::{Options as ServerOptions, Server};
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::emulator::control::{Control, Options};
use rustix::event::{EventfdFlags, eventfd};

use super::super::*;
use crate::journal::{Entry, Journal, Session};
use crate::process::ProcessInfo;

/// Longer than anything takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn own_key() -> ProcessKey {
    ProcessInfo::read(std::process::id()).unwrap().key
}

/// Where the emulator of a test listens.
fn socket(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gpreempt-emulated-{}-{test}", std::process::id()))
}

/// A running emulator. It ends with the test.
pub(super) struct Emulator {
    socket: PathBuf,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    pub(super) fn start(name: &str, devices: u32) -> Self {
        let socket = socket(name);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let theirs = stop.try_clone().unwrap();
        let model = DeviceModel::built_in("h200").unwrap();
        let machine = MachineKind::Tsg;
        let options = ServerOptions { socket: socket.clone(), model, machine, devices };
        let thread = std::thread::spawn(move || {
            let mut server = Server::bind(options).unwrap();
            server.run(std::os::fd::AsFd::as_fd(&theirs)).unwrap();
        });
        Self { socket, stop, thread: Some(thread) }
    }

    pub(super) fn client(&self) -> Client {
        self.patiently(|socket| Client::connect(socket, 64).ok())
    }

    pub(super) fn control(&self) -> Control {
        self.patiently(|socket| Control::connect(socket, Options::default()).ok())
    }

    fn patiently<T>(&self, connect: impl Fn(&Path) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(connected) = connect(&self.socket) {
                return connected;
            }
            assert!(begin.elapsed() < PATIENCE, "the emulator does not listen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A backend with its journal, and what it said that nobody has looked at.
pub(super) struct Scene {
    folder: PathBuf,
    session: PathBuf,
    pub(super) backend: EmulatedBackend,
    pub(super) events: VecDeque<Event>,
    pub(super) notes: VecDeque<Note>,
}

impl Scene {
    pub(super) fn new(name: &str) -> Self {
        let socket = socket(name);
        let folder = socket.with_extension("journal");
        let _ = std::fs::remove_dir_all(&folder);
        let session = Journal::at(folder.clone()).unwrap().begin().unwrap();
        let path = session.folder().to_owned();
        let (ledger, numbering) = (Ledger::new(session), Numbering::of(0));
        let waker = Waker::new().unwrap();
        let backend = EmulatedBackend::new(socket, ledger, numbering, waker).unwrap();
        let (events, notes) = (VecDeque::new(), VecDeque::new());
        Self { folder, session: path, backend, events, notes }
    }

    pub(super) fn journal(&self) -> Vec<Entry> {
        Session::at(self.session.clone()).entries().unwrap()
    }

    /// Waits until something is so.
    pub(super) fn eventually(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> bool) {
        let begin = Instant::now();
        while !look(self) {
            assert!(begin.elapsed() < PATIENCE, "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
            self.take_events();
        }
    }

    /// Waits for an event, past all that came before it.
    pub(super) fn wait_for(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        let mut found = None;
        self.eventually("the event", |scene| {
            scene.take_events();
            while let Some(event) = scene.events.pop_front() {
                if wanted(&event) {
                    found = Some(event);
                    return true;
                }
            }
            false
        });
        found.unwrap()
    }

    /// Waits for a note and forgets it.
    pub(super) fn wait_for_note(&mut self, wanted: &Note) {
        self.eventually("the note", |scene| {
            scene.take_notes();
            let at = scene.notes.iter().position(|note| note == wanted);
            at.is_some_and(|at| scene.notes.remove(at).is_some())
        });
    }

    pub(super) fn take_notes(&mut self) {
        while let Some(note) = self.backend.poll_note() {
            self.notes.push_back(note);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.backend.poll_event() {
            self.events.push_back(event);
        }
    }

    /// Adopts this process, and returns its only queue.
    pub(super) fn adopt_own(&mut self, task: TaskId) -> QueueId {
        self.backend.adopt(task, own_key()).unwrap();
        let event = self.wait_for(|event| matches!(event, Event::QueueAppeared { .. }));
        let Event::QueueAppeared { queue, .. } = event else { panic!("{event:?}") };
        self.take_notes();
        self.notes.clear();
        queue
    }

    /// Preempts a queue and waits until it is off.
    pub(super) fn preempt(&mut self, queue: QueueId) {
        self.backend.submit(Command::Preempt { queue, level: Level::Switch });
        self.wait_for(|event| *event == Event::Preempted { queue });
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
