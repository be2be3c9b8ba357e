//! Ends that nobody announces: of clients, of whoever controls, of the emulator.

use std::process::{Command, Stdio};

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::time::Duration;
use gpreempt_stage::until_some;
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::emulator::control::{Control, ControlEvent, Options};

use crate::queues::{emulator, has_work, queue_of, watcher};

const LONG: &str = "be --kernel-us 100000 --depth 4 --seconds 600";

#[test]
fn a_killed_client_takes_its_queue_with_it_and_nothing_else() {
    let mut emulator = emulator("--devices 2");
    let mut watcher = watcher(&emulator);
    let mut survivor = emulator.load("be --kernel-us 2000 --seconds 600").unwrap();
    for round in 0..6 {
        let mut victim = emulator.load(LONG).unwrap();
        let (task, queue) = queue_of(&mut watcher, victim.pid());
        let page = watcher.page(queue.queue).unwrap();
        until_some("its kernel is on the device", || has_work(page.read()).then_some(()));
        if round % 2 == 0 {
            watcher.stop(queue.queue).unwrap();
        }
        victim.kill().unwrap();
        let gone = [
            ControlEvent::QueueVanished { queue: queue.queue, is_faulted: false },
            ControlEvent::TaskVanished(task.task),
        ];
        for expected in gone {
            until_some("its end is announced", || {
                let event = watcher.poll_event().unwrap();
                event.filter(|event| *event == expected)
            });
        }
        assert!(watcher.stop(queue.queue).is_err());
    }
    let listing = watcher.list().unwrap();
    assert_eq!((listing.devices.len(), listing.tasks.len(), listing.queues.len()), (2, 1, 1));
    assert!(survivor.finish_exact().unwrap() > 0);
    emulator.assert_alive();
}

/// Runs in a process of its own: stops a queue, says so, and waits to be killed.
#[test]
#[ignore = "another test starts this as a process"]
fn controller_process() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let releases = variable("RELEASES") == "yes";
    let options = Options { releases, ..Options::default() };
    let mut control = Control::connect(variable("SOCKET").as_ref(), options).unwrap();
    control.stop(QueueId(variable("QUEUE").parse().unwrap())).unwrap();
    std::fs::write(variable("STOPPED"), "").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[test]
fn a_stop_outlives_whoever_asked_for_it_unless_told_otherwise() {
    let emulator = emulator("");
    let mut load = emulator.load(LONG).unwrap();
    let mut control = emulator.control().unwrap();
    let (_, queue) = queue_of(&mut control, load.pid());
    let page = control.page(queue.queue).unwrap();
    for releases in ["no", "yes"] {
        let stopped = emulator.socket().with_extension(releases);
        let mut controller = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "kill::controller_process"])
            .env("SOCKET", emulator.socket())
            .env("QUEUE", queue.queue.0.to_string())
            .env("STOPPED", &stopped)
            .env("RELEASES", releases)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until_some("the controller has stopped the queue", || stopped.exists().then_some(()));
        controller.kill().unwrap();
        controller.wait().unwrap();
        let before = page.read().completed;
        if releases == "no" {
            std::thread::sleep(std::time::Duration::from_millis(400));
            assert!(control.usage(queue.queue).unwrap().is_stopped);
            assert_eq!(page.read().completed, before);
            // A new controller adopts what it finds.
            assert!(queue_of(&mut control, load.pid()).1.is_stopped);
            control.resume(queue.queue).unwrap();
        }
        until_some("the queue goes on", || (page.read().completed > before + 2).then_some(()));
    }
    load.finish_exact().unwrap();
}

#[test]
fn clients_notice_that_the_emulator_is_gone_and_the_next_one_takes_its_place() {
    let mut emulator = emulator("");
    let mut load = emulator.load(LONG).unwrap();
    let mut watcher = watcher(&emulator);
    let instance = watcher.instance();
    emulator.replace().unwrap();
    let end = until_some("the watcher is told", || watcher.poll_event().err());
    assert!(matches!(end, gpreempt_wire::emulator::EmuError::Gone), "{end}");
    let (_, ended) = load.finish().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.err.contains("gone"), "{}", ended.err);
    assert_ne!(emulator.control().unwrap().instance(), instance);
    assert!(Client::connect(&emulator.socket(), 64).is_ok());
}

#[test]
fn whoever_waits_in_short_pieces_notices_as_well() {
    let mut emulator = emulator("");
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let queue = client.open_queue(DeviceId(0), 16).unwrap();
    let piece = Duration::from_millis(5);
    assert!(!queue.wait(1, piece).unwrap(), "nothing was submitted, and nobody is gone");
    emulator.replace().unwrap();
    let end = until_some("it is told", || queue.wait(1, piece).err());
    assert!(matches!(end, gpreempt_wire::emulator::EmuError::Gone), "{end}");
}
