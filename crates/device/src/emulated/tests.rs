//! The backend with an emulator whose client this process is too.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use gpreempt_core::backend::{Backend, Command, PreemptLevel};
use gpreempt_core::event::{Event, Fault};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_stage::{Emulator, Stage};
use gpreempt_wire::emulator::client::Client;

use super::{EmulatedBackend, digest, uuid};
use crate::controller::{Controller, ControllerReport, Numbering, Waker};
use crate::journal::{Journal, OwnerJournal, ProcessRecord};
use crate::process::{ProcessInfo, ProcessKey};
use crate::undo_log::UndoLog;

fn own_key() -> ProcessKey {
    ProcessInfo::read(std::process::id()).unwrap().key
}

/// Starts an emulator with that many devices.
fn start_emulator(stage: &Stage, devices: u32) -> Emulator {
    stage.emulator(&format!("--model h200 --machine tsg --devices {devices}")).unwrap()
}

/// A connection of a GPU program.
fn connect(emulator: &Emulator) -> Client {
    Client::connect(&emulator.socket(), 64).unwrap()
}

/// A backend with its journal, and the events and reports that the test has not taken yet.
struct BackendTest {
    session: PathBuf,
    backend: EmulatedBackend,
    events: VecDeque<Event>,
    reports: VecDeque<ControllerReport>,
}

impl BackendTest {
    fn new(stage: &Stage) -> Self {
        let session = Journal::at(stage.path("journal")).unwrap().begin().unwrap();
        let path = session.folder().to_owned();
        let (undo_log, numbering) = (UndoLog::new(session), Numbering::of(0));
        let waker = Waker::new().unwrap();
        let backend = EmulatedBackend::new(stage.path("gpu"), undo_log, numbering, waker).unwrap();
        let (events, reports) = (VecDeque::new(), VecDeque::new());
        Self { session: path, backend, events, reports }
    }

    fn journal(&self) -> Vec<ProcessRecord> {
        OwnerJournal::at(self.session.clone()).entries().unwrap()
    }

    /// Waits until a condition holds, and takes in events meanwhile.
    fn eventually(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        gpreempt_stage::until(what, || {
            let holds = condition(self);
            self.take_events();
            holds
        });
    }

    /// Waits for an event, past all that came before it.
    fn wait_for(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        let mut found = None;
        self.eventually("the event", |test| {
            test.take_events();
            while let Some(event) = test.events.pop_front() {
                if wanted(&event) {
                    found = Some(event);
                    return true;
                }
            }
            false
        });
        found.unwrap()
    }

    /// Waits for a report and drops it.
    fn wait_for_report(&mut self, wanted: &ControllerReport) {
        self.eventually("the note", |test| {
            test.take_reports();
            let at = test.reports.iter().position(|note| note == wanted);
            at.is_some_and(|at| test.reports.remove(at).is_some())
        });
    }

    fn take_reports(&mut self) {
        while let Some(note) = self.backend.poll_report() {
            self.reports.push_back(note);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.backend.poll_event() {
            self.events.push_back(event);
        }
    }

    /// Adopts this process, and returns its only queue.
    fn adopt_own(&mut self, task: TaskId) -> QueueId {
        self.backend.adopt(task, own_key()).unwrap();
        let event = self.wait_for(|event| matches!(event, Event::QueueAppeared { .. }));
        let Event::QueueAppeared { queue, .. } = event else { panic!("{event:?}") };
        self.take_reports();
        self.reports.clear();
        queue
    }

    /// Preempts a queue and waits until it is off.
    fn preempt(&mut self, queue: QueueId) {
        self.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
        self.wait_for(|event| *event == Event::Preempted { queue });
    }
}

const TASK: TaskId = TaskId(7);

#[test]
fn an_emulator_may_start_later_and_its_clients_are_reported() {
    let stage = Stage::new("backend-later").unwrap();
    let mut test = BackendTest::new(&stage);
    assert_eq!(test.backend.devices(), []);
    assert_eq!(test.backend.users(), []);
    let emulator = start_emulator(&stage, 2);
    test.wait_for(|event| matches!(event, Event::DeviceAppeared { device: DeviceId(0), .. }));
    let event =
        test.wait_for(|event| matches!(event, Event::DeviceAppeared { device: DeviceId(1), .. }));
    let Event::DeviceAppeared { capabilities, .. } = event else { panic!("{event:?}") };
    assert!(capabilities.hold);
    let names: Vec<String> = test.backend.devices().into_iter().map(|name| name.uuid).collect();
    assert!(names[0].starts_with("EMU-") && names[0].ends_with("-0") && names[1].ends_with("-1"));
    let mut client = connect(&emulator);
    test.wait_for_report(&ControllerReport::Appeared(own_key()));
    assert_eq!(test.backend.users(), [own_key()]);
    // A second connection of the same process is not reported, nor one of an adopted process.
    let second = connect(&emulator);
    test.backend.adopt(TASK, own_key()).unwrap();
    assert!(test.backend.adopt(TaskId(8), own_key()).is_err());
    client.open_queue(DeviceId(1), 4).unwrap();
    let event = test.wait_for(|event| matches!(event, Event::QueueAppeared { .. }));
    let Event::QueueAppeared { queue, task, device, stopped } = event else { panic!() };
    assert_eq!((task, device, stopped), (TASK, DeviceId(1), false));
    assert_eq!(test.backend.queues_of(TASK), [queue]);
    assert_eq!(test.backend.process_of(queue), Some(own_key()));
    test.wait_for_report(&ControllerReport::QueuesChanged { task: TASK, appeared: 1, vanished: 0 });
    drop((client, second));
    test.wait_for(|event| *event == Event::QueueVanished { queue });
    assert!(test.reports.iter().all(|note| !matches!(note, ControllerReport::Appeared(_))));
    test.backend.release_all().unwrap();
}

#[test]
fn commands_are_carried_out_and_a_release_reverts_them() {
    let stage = Stage::new("backend-commands").unwrap();
    let mut test = BackendTest::new(&stage);
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let mut ring = client.open_queue(DeviceId(0), 8).unwrap();
    let queue = test.adopt_own(TASK);
    let usage = || emulator.control().unwrap().usage(ring.id()).unwrap();
    let original = usage();
    test.preempt(queue);
    assert!(usage().is_stopped);
    assert_eq!(test.journal().len(), 1);
    let slice = Some(Duration::from_micros(1));
    test.backend.submit(Command::SetSlice { queue, slice });
    test.backend.submit(Command::PermitHold { queue });
    let priority = Priority::new(9).unwrap();
    test.backend.submit(Command::SetHardwarePriority { queue, priority });
    test.eventually("the time slice and the priority are set", |_| {
        let now = usage();
        now.slice == Duration::from_micros(1) && now.priority == priority
    });
    test.backend.submit(Command::Resume { queue });
    test.wait_for(|event| *event == Event::Resumed { queue });
    assert!(!usage().is_stopped);
    test.preempt(queue);
    test.backend.release(TASK);
    test.eventually("all changes are reverted", |_| usage() == original);
    test.eventually("the journal is empty", |test| test.journal().is_empty());
    assert_eq!(test.backend.queues_of(TASK), []);
    // It can be adopted again, with another id.
    let again = test.adopt_own(TaskId(8));
    assert_ne!(again, queue);
    ring.write(&[0; 64]);
    test.eventually("its ring is read", |test| {
        test.backend.observe(again).is_some_and(|view| view.put == 1)
    });
    test.backend.release_all().unwrap();
}

#[test]
fn a_command_for_a_queue_that_vanished_is_completed_at_once() {
    let stage = Stage::new("backend-gone").unwrap();
    let mut test = BackendTest::new(&stage);
    let queue = QueueId(99);
    test.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
    test.backend.submit(Command::Resume { queue });
    assert_eq!(test.backend.poll_event(), Some(Event::Preempted { queue }));
    assert_eq!(test.backend.poll_event(), Some(Event::Resumed { queue }));
    assert_eq!(test.backend.observe(queue), None);
}

#[test]
fn a_queue_that_ends_while_it_is_stopped_leaves_nothing_behind() {
    let stage = Stage::new("backend-ends").unwrap();
    let mut test = BackendTest::new(&stage);
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    let queue = test.adopt_own(TASK);
    test.preempt(queue);
    client.close_queue(&ring).unwrap();
    test.wait_for(|event| *event == Event::QueueVanished { queue });
    test.eventually("the journal is empty", |test| test.journal().is_empty());
    test.wait_for_report(&ControllerReport::QueuesChanged { task: TASK, appeared: 0, vanished: 1 });
    assert!(test.reports.is_empty(), "{:?}", test.reports);
}

#[test]
fn a_queue_that_closes_before_its_preempt_vanishes_once_and_is_no_problem() {
    let stage = Stage::new("backend-closes").unwrap();
    let mut test = BackendTest::new(&stage);
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    let queue = test.adopt_own(TASK);
    client.close_queue(&ring).unwrap();
    // The backend does not know yet that the queue is closed.
    test.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
    let (gone, vanished) =
        (Event::PreemptFailed { queue, fault: Fault::Gone }, Event::QueueVanished { queue });
    let mut seen = Vec::new();
    test.eventually("both are reported", |test| {
        seen.extend(test.events.drain(..));
        seen.contains(&gone) && seen.contains(&vanished)
    });
    test.wait_for_report(&ControllerReport::QueuesChanged { task: TASK, appeared: 0, vanished: 1 });
    seen.extend(test.events.drain(..).chain(std::iter::from_fn(|| test.backend.poll_event())));
    assert_eq!(seen.iter().filter(|event| **event == vanished).count(), 1, "{seen:?}");
    assert!(test.reports.is_empty(), "{:?}", test.reports);
    test.eventually("the journal is empty", |test| test.journal().is_empty());
}

#[test]
fn a_queue_that_another_program_stopped_is_off_and_recorded() {
    let stage = Stage::new("backend-stopped").unwrap();
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    emulator.control().unwrap().stop(ring.id()).unwrap();
    let mut test = BackendTest::new(&stage);
    test.wait_for_report(&ControllerReport::Appeared(own_key()));
    test.backend.adopt(TASK, own_key()).unwrap();
    test.wait_for(|event| matches!(event, Event::QueueAppeared { stopped: true, .. }));
    test.eventually("it is in the journal", |test| test.journal().len() == 1);
    test.backend.release(TASK);
    test.eventually("it runs again", |_| {
        !emulator.control().unwrap().usage(ring.id()).unwrap().is_stopped
    });
    test.eventually("the journal is empty", |test| test.journal().is_empty());
}

#[test]
fn an_emulator_that_dies_takes_its_devices_with_it_and_the_next_brings_others() {
    let stage = Stage::new("backend-dies").unwrap();
    let mut test = BackendTest::new(&stage);
    let emulator = start_emulator(&stage, 2);
    let mut client = connect(&emulator);
    client.open_queue(DeviceId(0), 4).unwrap();
    let first = test.adopt_own(TASK);
    test.preempt(first);
    drop(emulator);
    test.wait_for(|event| *event == Event::DeviceVanished { device: DeviceId(0) });
    test.wait_for(|event| *event == Event::DeviceVanished { device: DeviceId(1) });
    test.eventually("the journal is empty", |test| test.journal().is_empty());
    assert_eq!(test.backend.devices(), []);
    assert_eq!(test.backend.queues_of(TASK), []);
    let emulator = start_emulator(&stage, 1);
    test.wait_for(|event| matches!(event, Event::DeviceAppeared { device: DeviceId(0), .. }));
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    let event = test.wait_for(|event| matches!(event, Event::QueueAppeared { .. }));
    let Event::QueueAppeared { queue, task, .. } = event else { panic!() };
    assert_eq!(task, TASK, "it is still adopted");
    assert_ne!(queue, first);
    test.preempt(queue);
    assert!(emulator.control().unwrap().usage(ring.id()).unwrap().is_stopped);
    test.backend.release_all().unwrap();
    assert!(!emulator.control().unwrap().usage(ring.id()).unwrap().is_stopped);
    test.take_reports();
    let problems =
        test.reports.iter().filter(|note| matches!(note, ControllerReport::Problem(_))).count();
    assert_eq!(problems, 1, "{:?}", test.reports);
}

#[test]
fn the_end_of_a_process_is_reported_even_if_it_used_no_device() {
    let stage = Stage::new("backend-process").unwrap();
    let mut test = BackendTest::new(&stage);
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let key = ProcessInfo::read(child.id()).unwrap().key;
    let other = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
    assert!(test.backend.adopt(TASK, other).is_err());
    test.backend.adopt(TASK, key).unwrap();
    child.kill().unwrap();
    test.wait_for_report(&ControllerReport::Ended(TASK));
    child.wait().unwrap();
    assert!(test.backend.adopt(TaskId(8), key).is_err());
}

#[test]
fn the_digest_does_not_change() {
    assert_eq!(digest(b""), 0x811c_9dc5);
    assert_eq!(digest(b"a"), 0xe40c_292c);
}

#[test]
fn devices_of_two_emulators_have_different_uuids() {
    let names = ["/run/a", "/run/b"].map(|socket| uuid(Path::new(socket), 1));
    assert_ne!(names[0], names[1]);
    assert!(names.iter().all(|name| name.starts_with("EMU-") && name.ends_with("-1")));
}
