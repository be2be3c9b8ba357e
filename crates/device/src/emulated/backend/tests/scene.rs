//! A backend on a stage, and an emulator whose client this process is too.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpreempt_core::backend::PreemptLevel;
use gpreempt_stage::{Emulator, Stage};
use gpreempt_wire::emulator::client::Client;

use super::super::*;
use crate::journal::{Entry, Journal, Session};
use crate::process::ProcessInfo;

/// Longer than anything takes, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn own_key() -> ProcessKey {
    ProcessInfo::read(std::process::id()).unwrap().key
}

/// Starts an emulator with that many devices.
pub(super) fn start_emulator(stage: &Stage, devices: u32) -> Emulator {
    stage.emulator(&format!("--model h200 --machine tsg --devices {devices}")).unwrap()
}

/// A connection of a program that computes.
pub(super) fn connect(emulator: &Emulator) -> Client {
    Client::connect(&emulator.socket(), 64).unwrap()
}

/// A backend with its journal, and the events and notes that the test has not taken yet.
pub(super) struct Scene {
    session: PathBuf,
    pub(super) backend: EmulatedBackend,
    pub(super) events: VecDeque<Event>,
    pub(super) notes: VecDeque<Note>,
}

impl Scene {
    pub(super) fn new(stage: &Stage) -> Self {
        let session = Journal::at(stage.path("journal")).unwrap().begin().unwrap();
        let path = session.folder().to_owned();
        let (ledger, numbering) = (Ledger::new(session), Numbering::of(0));
        let waker = Waker::new().unwrap();
        let backend = EmulatedBackend::new(stage.path("gpu"), ledger, numbering, waker).unwrap();
        let (events, notes) = (VecDeque::new(), VecDeque::new());
        Self { session: path, backend, events, notes }
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
        self.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
        self.wait_for(|event| *event == Event::Preempted { queue });
    }
}
