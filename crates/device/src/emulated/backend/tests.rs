//! The backend with an emulator whose client this process is too.

mod scene;

use gpreempt_core::backend::PreemptLevel;
use gpreempt_core::event::Fault;
use gpreempt_core::id::DeviceId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;

use super::*;
use gpreempt_stage::Stage;
use scene::{Scene, connect, own_key, start_emulator};

const TASK: TaskId = TaskId(7);

#[test]
fn an_emulator_may_come_later_and_its_clients_are_noticed() {
    let stage = Stage::new("backend-later").unwrap();
    let mut scene = Scene::new(&stage);
    assert_eq!(scene.backend.devices(), []);
    assert_eq!(scene.backend.users(), []);
    let emulator = start_emulator(&stage, 2);
    scene.wait_for(|event| matches!(event, Event::DeviceAppeared { device: DeviceId(0), .. }));
    let event =
        scene.wait_for(|event| matches!(event, Event::DeviceAppeared { device: DeviceId(1), .. }));
    let Event::DeviceAppeared { capabilities, .. } = event else { panic!("{event:?}") };
    assert!(capabilities.hold);
    let names: Vec<String> = scene.backend.devices().into_iter().map(|name| name.uuid).collect();
    assert!(names[0].starts_with("EMU-") && names[0].ends_with("-0") && names[1].ends_with("-1"));
    let mut client = connect(&emulator);
    scene.wait_for_note(&Note::Appeared(own_key()));
    assert_eq!(scene.backend.users(), [own_key()]);
    // A second connection of the same process is no news, and what is adopted is none either.
    let second = connect(&emulator);
    scene.backend.adopt(TASK, own_key()).unwrap();
    assert!(scene.backend.adopt(TaskId(8), own_key()).is_err());
    client.open_queue(DeviceId(1), 4).unwrap();
    let event = scene.wait_for(|event| matches!(event, Event::QueueAppeared { .. }));
    let Event::QueueAppeared { queue, task, device, stopped } = event else { panic!() };
    assert_eq!((task, device, stopped), (TASK, DeviceId(1), false));
    assert_eq!(scene.backend.queues_of(TASK), [queue]);
    assert_eq!(scene.backend.process_of(queue), Some(own_key()));
    scene.wait_for_note(&Note::Regrouped { task: TASK, appeared: 1, vanished: 0 });
    drop((client, second));
    scene.wait_for(|event| *event == Event::QueueVanished { queue });
    assert!(scene.notes.iter().all(|note| !matches!(note, Note::Appeared(_))));
    scene.backend.release_all().unwrap();
}

#[test]
fn commands_are_carried_out_and_a_release_takes_them_back() {
    let stage = Stage::new("backend-commands").unwrap();
    let mut scene = Scene::new(&stage);
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let mut ring = client.open_queue(DeviceId(0), 8).unwrap();
    let queue = scene.adopt_own(TASK);
    let usage = || emulator.control().unwrap().usage(ring.id()).unwrap();
    let original = usage();
    scene.preempt(queue);
    assert!(usage().is_stopped);
    assert_eq!(scene.journal().len(), 1);
    let slice = Some(Duration::from_micros(1));
    scene.backend.submit(Command::SetSlice { queue, slice });
    scene.backend.submit(Command::PermitHold { queue });
    let priority = Priority::new(9).unwrap();
    scene.backend.submit(Command::SetHardwarePriority { queue, priority });
    scene.eventually("the slice and the priority are there", |_| {
        let now = usage();
        now.slice == Duration::from_micros(1) && now.priority == priority
    });
    scene.backend.submit(Command::Resume { queue });
    scene.wait_for(|event| *event == Event::Resumed { queue });
    assert!(!usage().is_stopped);
    scene.preempt(queue);
    scene.backend.release(TASK);
    scene.eventually("everything is as it was", |_| usage() == original);
    scene.eventually("the journal is empty", |scene| scene.journal().is_empty());
    assert_eq!(scene.backend.queues_of(TASK), []);
    // It can be taken in again, under another name.
    let again = scene.adopt_own(TaskId(8));
    assert_ne!(again, queue);
    ring.write(&[0; 64]);
    scene.eventually("its ring is read", |scene| {
        scene.backend.observe(again).is_some_and(|view| view.put == 1)
    });
    scene.backend.release_all().unwrap();
}

#[test]
fn a_command_for_a_queue_that_is_gone_is_answered_at_once() {
    let stage = Stage::new("backend-gone").unwrap();
    let mut scene = Scene::new(&stage);
    let queue = QueueId(99);
    scene.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
    scene.backend.submit(Command::Resume { queue });
    assert_eq!(scene.backend.poll_event(), Some(Event::Preempted { queue }));
    assert_eq!(scene.backend.poll_event(), Some(Event::Resumed { queue }));
    assert_eq!(scene.backend.observe(queue), None);
}

#[test]
fn a_queue_that_ends_while_it_is_stopped_leaves_nothing_behind() {
    let stage = Stage::new("backend-ends").unwrap();
    let mut scene = Scene::new(&stage);
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    let queue = scene.adopt_own(TASK);
    scene.preempt(queue);
    client.close_queue(&ring).unwrap();
    scene.wait_for(|event| *event == Event::QueueVanished { queue });
    scene.eventually("the journal is empty", |scene| scene.journal().is_empty());
    scene.wait_for_note(&Note::Regrouped { task: TASK, appeared: 0, vanished: 1 });
    assert!(scene.notes.is_empty(), "{:?}", scene.notes);
}

#[test]
fn a_queue_that_closes_before_its_preempt_vanishes_once_and_is_no_problem() {
    let stage = Stage::new("backend-closes").unwrap();
    let mut scene = Scene::new(&stage);
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    let queue = scene.adopt_own(TASK);
    client.close_queue(&ring).unwrap();
    // The backend has not taken in yet that the queue is closed.
    scene.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
    let (gone, vanished) =
        (Event::PreemptFailed { queue, fault: Fault::Gone }, Event::QueueVanished { queue });
    let mut seen = Vec::new();
    scene.eventually("both are reported", |scene| {
        seen.extend(scene.events.drain(..));
        seen.contains(&gone) && seen.contains(&vanished)
    });
    scene.wait_for_note(&Note::Regrouped { task: TASK, appeared: 0, vanished: 1 });
    seen.extend(scene.events.drain(..).chain(std::iter::from_fn(|| scene.backend.poll_event())));
    assert_eq!(seen.iter().filter(|event| **event == vanished).count(), 1, "{seen:?}");
    assert!(scene.notes.is_empty(), "{:?}", scene.notes);
    scene.eventually("the journal is empty", |scene| scene.journal().is_empty());
}

#[test]
fn what_somebody_stopped_before_is_off_and_ours_from_then_on() {
    let stage = Stage::new("backend-stopped").unwrap();
    let emulator = start_emulator(&stage, 1);
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    emulator.control().unwrap().stop(ring.id()).unwrap();
    let mut scene = Scene::new(&stage);
    scene.wait_for_note(&Note::Appeared(own_key()));
    scene.backend.adopt(TASK, own_key()).unwrap();
    scene.wait_for(|event| matches!(event, Event::QueueAppeared { stopped: true, .. }));
    scene.eventually("it is in the journal", |scene| scene.journal().len() == 1);
    scene.backend.release(TASK);
    scene.eventually("it goes on", |_| {
        !emulator.control().unwrap().usage(ring.id()).unwrap().is_stopped
    });
    scene.eventually("the journal is empty", |scene| scene.journal().is_empty());
}

#[test]
fn an_emulator_that_dies_takes_its_devices_with_it_and_the_next_brings_others() {
    let stage = Stage::new("backend-dies").unwrap();
    let mut scene = Scene::new(&stage);
    let emulator = start_emulator(&stage, 2);
    let mut client = connect(&emulator);
    client.open_queue(DeviceId(0), 4).unwrap();
    let first = scene.adopt_own(TASK);
    scene.preempt(first);
    drop(emulator);
    scene.wait_for(|event| *event == Event::DeviceVanished { device: DeviceId(0) });
    scene.wait_for(|event| *event == Event::DeviceVanished { device: DeviceId(1) });
    scene.eventually("the journal is empty", |scene| scene.journal().is_empty());
    assert_eq!(scene.backend.devices(), []);
    assert_eq!(scene.backend.queues_of(TASK), []);
    let emulator = start_emulator(&stage, 1);
    scene.wait_for(|event| matches!(event, Event::DeviceAppeared { device: DeviceId(0), .. }));
    let mut client = connect(&emulator);
    let ring = client.open_queue(DeviceId(0), 4).unwrap();
    let event = scene.wait_for(|event| matches!(event, Event::QueueAppeared { .. }));
    let Event::QueueAppeared { queue, task, .. } = event else { panic!() };
    assert_eq!(task, TASK, "it is still adopted");
    assert_ne!(queue, first);
    scene.preempt(queue);
    assert!(emulator.control().unwrap().usage(ring.id()).unwrap().is_stopped);
    scene.backend.release_all().unwrap();
    assert!(!emulator.control().unwrap().usage(ring.id()).unwrap().is_stopped);
    scene.take_notes();
    let problems = scene.notes.iter().filter(|note| matches!(note, Note::Problem(_))).count();
    assert_eq!(problems, 1, "{:?}", scene.notes);
}

#[test]
fn the_end_of_a_process_is_noticed_whether_it_came_to_a_device_or_not() {
    let stage = Stage::new("backend-process").unwrap();
    let mut scene = Scene::new(&stage);
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let key = crate::process::ProcessInfo::read(child.id()).unwrap().key;
    let other = ProcessKey { start_ticks: key.start_ticks + 1, ..key };
    assert!(scene.backend.adopt(TASK, other).is_err());
    scene.backend.adopt(TASK, key).unwrap();
    child.kill().unwrap();
    scene.wait_for_note(&Note::Ended(TASK));
    child.wait().unwrap();
    assert!(scene.backend.adopt(TaskId(8), key).is_err());
}
