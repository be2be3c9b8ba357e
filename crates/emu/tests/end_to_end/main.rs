//! The emulator with real client processes: queues are stopped and resumed, processes are killed,
//! messages are malformed.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

mod garbage;
mod kfd;
mod memory;

use std::ffi::OsStr;
use std::time::Duration;

use gpreempt_core::id::{DeviceId, QueueId};
use gpreempt_core::time::Duration as Time;
use gpreempt_sim::prng::Prng;
use gpreempt_stage::{Emulator, Stage, until, until_some};
use gpreempt_wire::emulator::client::Client;
use gpreempt_wire::emulator::control::{Control, ControlEvent, Options};
use gpreempt_wire::emulator::ring_page::Reading;
use gpreempt_wire::emulator::{QueueInfo, TaskInfo};

fn emulator(arguments: &str) -> Emulator {
    Stage::new("emu").unwrap().emulator(arguments).unwrap()
}

fn kfd(arguments: &str) -> Emulator {
    Stage::new("emu-kfd").unwrap().kfd(arguments).unwrap()
}

/// A connection that is notified of tasks and queues.
fn watcher(emulator: &Emulator) -> Control {
    emulator.control_with(Options { watches: true, ..Options::default() }).unwrap()
}

/// The task and the only queue of a process.
fn queue_of(emulator: &Emulator, pid: u32) -> (TaskInfo, QueueInfo) {
    let queues = emulator.queues(pid).unwrap();
    assert_eq!(queues.len(), 1);
    queues[0]
}

/// Whether a kernel was fetched and has not completed.
fn has_work(reading: Reading) -> bool {
    reading.completed < reading.get
}

/// Long enough to be stopped in the middle.
const LONG: &str = "be --kernel-us 150000 --depth 4 --seconds 600";

#[test]
fn a_kernel_stopped_in_the_middle_continues_exactly() {
    for machine in ["tsg", "cwsr"] {
        let emulator = emulator(&format!("--devices 2 --machine {machine}"));
        let mut victim = emulator.load(LONG).unwrap();
        let mut other = emulator.load("be --kernel-us 3000 --seconds 600").unwrap();
        let mut control = emulator.control().unwrap();
        let (task, queue) = queue_of(&emulator, victim.pid());
        assert_eq!((task.uid, queue.device.0, queue.is_stopped), (own_uid(), 0, false));
        let page = control.page(queue.queue).unwrap();
        let (_, bystander) = queue_of(&emulator, other.pid());
        let beside = control.page(bystander.queue).unwrap();

        for _ in 0..3 {
            let before = page.read().completed;
            until("a kernel is on the device", || has_work(page.read()));
            control.stop(queue.queue).unwrap();
            let stopped = control.usage(queue.queue).unwrap();
            assert!(stopped.is_stopped && !stopped.is_resident, "{stopped:?}");
            // What completed just before the stop becomes visible shortly after it.
            let settled = until_some("the counter agrees with the device", || {
                Some(page.read()).filter(|reading| reading.completed == stopped.completed)
            });
            let seen = beside.read().completed;
            until("the other load continues", || beside.read().completed > seen + 20);
            std::thread::sleep(Duration::from_millis(400));
            assert_eq!(page.read().completed, settled.completed);
            assert_eq!(page.read().get, settled.get);
            let still = control.usage(queue.queue).unwrap();
            assert_eq!((still.busy, still.completed), (stopped.busy, stopped.completed));
            control.resume(queue.queue).unwrap();
            until("it continues", || page.read().completed > before + 1);
        }
        victim.finish_exact().unwrap();
        other.finish_exact().unwrap();
    }
}

#[test]
fn every_queue_of_a_light_load_is_exact_although_one_was_stopped() {
    let emulator = emulator("--machine cwsr");
    let mut light =
        emulator.load("light --queues 3 --every-ms 5 --kernel-us 500 --seconds 600").unwrap();
    let mut control = emulator.control().unwrap();
    let queues = control.list().unwrap().queues;
    assert_eq!(queues.len(), 3);
    let pages: Vec<_> = queues.iter().map(|q| control.page(q.queue).unwrap()).collect();
    let all_beyond = |count| {
        let is_beyond = || pages.iter().all(|page| page.read().completed > count).then_some(());
        until_some("every queue continues", is_beyond);
    };
    all_beyond(3);
    control.stop(queues[1].queue).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    control.resume(queues[1].queue).unwrap();
    all_beyond(pages[0].read().completed + 3);
    let total = light.finish_exact().unwrap();
    let completed: u64 = pages.iter().map(|page| page.read().completed).sum();
    assert_eq!(total, completed);
}

#[test]
fn controllers_set_slices_and_holds_and_read_usage() {
    let emulator = emulator("--machine tsg");
    let mut first = emulator.load("be --kernel-us 20000 --seconds 600").unwrap();
    let mut second =
        emulator.load("lc --kernels 2 --kernel-us 100 --every-us 5000 --seconds 600").unwrap();
    let mut control = emulator.control().unwrap();
    let (_, be) = queue_of(&emulator, first.pid());
    let (_, lc) = queue_of(&emulator, second.pid());
    let slice = Time::from_micros(1);
    control.set_slice(be.queue, Some(slice)).unwrap();
    assert_eq!(control.usage(be.queue).unwrap().slice, slice);
    control.permit_hold(lc.queue).unwrap();
    let before = control.usage(be.queue).unwrap();
    until_some("both make progress", || {
        let (be, lc) = (control.usage(be.queue).unwrap(), control.usage(lc.queue).unwrap());
        (be.completed > before.completed + 3 && lc.completed > 20 && be.busy > before.busy)
            .then_some(())
    });
    control.forbid_hold(lc.queue).unwrap();
    control.set_slice(be.queue, None).unwrap();
    assert_eq!(control.usage(be.queue).unwrap().slice, be.slice);
    let device = &control.list().unwrap().devices[0];
    assert!(device.capabilities.hold && !device.can_tell_running, "{device:?}");
    assert!(first.finish_exact().unwrap() > 0);
    assert!(second.finish_exact().unwrap() > 0);
}

#[test]
fn an_idle_emulator_sleeps() {
    let emulator = emulator("");
    let _control = watcher(&emulator);
    let _client = Client::connect(&emulator.socket(), 64).unwrap();
    let wakes = || {
        let path = format!("/proc/{}/status", emulator.pid());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.starts_with("voluntary")).unwrap();
        line.split_whitespace().last().unwrap().parse::<u64>().unwrap()
    };
    std::thread::sleep(Duration::from_millis(50));
    let before = wakes();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(wakes(), before);
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn many_random_commands_do_not_change_results() {
    for machine in ["tsg", "cwsr --compute-units 2"] {
        let emulator = emulator(&format!("--machine {machine}"));
        let mut loads: Vec<_> = ["60 --depth 1", "400 --depth 3", "2500 --depth 8"]
            .iter()
            .map(|kernels| {
                emulator.load(&format!("be --seconds 600 --kernel-us {kernels}")).unwrap()
            })
            .collect();
        let mut control = emulator.control().unwrap();
        let queues: Vec<_> =
            loads.iter().map(|load| queue_of(&emulator, load.pid()).1.queue).collect();
        let mut random = Prng::new(1);
        for _ in 0..400 {
            let queue = *random.pick(&queues);
            match random.below(8) {
                0..3 => control.stop(queue).unwrap(),
                3..6 => control.resume(queue).unwrap(),
                6 => control.set_slice(queue, Some(Time::from_micros(1))).unwrap(),
                _ => control.permit_hold(queue).unwrap(),
            }
            if random.chance(1, 4) {
                std::thread::sleep(Duration::from_micros(random.below(1_024)));
            }
        }
        for (&queue, load) in queues.iter().zip(&mut loads) {
            control.set_slice(queue, None).unwrap();
            control.resume(queue).unwrap();
            let page = control.page(queue).unwrap();
            let before = page.read().completed;
            until("it continues", || page.read().completed > before + 20);
            assert!(load.finish_exact().unwrap() > 20);
        }
    }
}

#[test]
fn a_killed_client_closes_its_queue_and_no_other() {
    let mut emulator = emulator("--devices 2");
    let mut watcher = watcher(&emulator);
    let mut survivor = emulator.load("be --kernel-us 2000 --seconds 600").unwrap();
    for round in 0..6 {
        let mut victim = emulator.load(LONG).unwrap();
        let (task, queue) = queue_of(&emulator, victim.pid());
        let page = watcher.page(queue.queue).unwrap();
        until("its kernel is on the device", || has_work(page.read()));
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

/// Runs in a process of its own: stops a queue and waits to be killed.
#[test]
#[ignore = "another test starts this as a process"]
fn controller_process() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let releases = variable("RELEASES") == "yes";
    let options = Options { releases, ..Options::default() };
    let mut control = Control::connect(variable("SOCKET").as_ref(), options).unwrap();
    control.stop(QueueId(variable("QUEUE").parse().unwrap())).unwrap();
    std::fs::write(variable("STOPPED"), "").unwrap();
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_stop_outlives_its_controller_unless_it_releases() {
    let emulator = emulator("");
    let mut load = emulator.load(LONG).unwrap();
    let mut control = emulator.control().unwrap();
    let (_, queue) = queue_of(&emulator, load.pid());
    let page = control.page(queue.queue).unwrap();
    for releases in ["no", "yes"] {
        let stopped = emulator.socket().with_extension(releases);
        let (socket, number) = (emulator.socket(), queue.queue.0.to_string());
        let env: [(&str, &dyn AsRef<OsStr>); 4] = [
            ("SOCKET", &socket),
            ("QUEUE", &number),
            ("STOPPED", &stopped),
            ("RELEASES", &releases),
        ];
        let mut controller = emulator.stage().start_test("controller_process", &env).unwrap();
        until("the controller has stopped the queue", || stopped.exists());
        controller.kill_and_wait().unwrap();
        let before = page.read().completed;
        if releases == "no" {
            std::thread::sleep(Duration::from_millis(400));
            assert!(control.usage(queue.queue).unwrap().is_stopped);
            assert_eq!(page.read().completed, before);
            // A new controller sees the stopped queue.
            assert!(queue_of(&emulator, load.pid()).1.is_stopped);
            control.resume(queue.queue).unwrap();
        }
        until("the queue continues", || page.read().completed > before + 2);
    }
    load.finish_exact().unwrap();
}

#[test]
fn clients_notice_the_end_of_the_emulator_and_connect_to_the_next() {
    let mut emulator = emulator("");
    let mut load = emulator.load(LONG).unwrap();
    let mut watcher = watcher(&emulator);
    let instance = watcher.instance();
    emulator.replace().unwrap();
    let end = until_some("the watcher notices", || watcher.poll_event().err());
    assert!(matches!(end, gpreempt_wire::emulator::EmuError::Gone), "{end}");
    let (_, ended) = load.finish().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.err.contains("the emulated GPU has ended"), "{}", ended.err);
    assert_ne!(emulator.control().unwrap().instance(), instance);
    assert!(Client::connect(&emulator.socket(), 64).is_ok());
}

#[test]
fn a_client_that_polls_notices_the_end_of_the_emulator() {
    let mut emulator = emulator("");
    let mut client = Client::connect(&emulator.socket(), 64).unwrap();
    let queue = client.open_queue(DeviceId(0), 16).unwrap();
    let piece = Time::from_millis(5);
    assert!(!queue.wait(1, piece).unwrap(), "nothing was submitted, and the emulator runs");
    emulator.replace().unwrap();
    let end = until_some("the client notices", || queue.wait(1, piece).err());
    assert!(matches!(end, gpreempt_wire::emulator::EmuError::Gone), "{end}");
}
