//! Stopping in the middle of a kernel, and going on.

use std::time::Duration;

use gpreempt_core::time::Duration as Time;
use gpreempt_stage::until_some;

use crate::queues::{emulator, has_work, queue_of, watcher};

/// Long enough to be caught in the middle.
const LONG: &str = "be --kernel-us 150000 --depth 4 --seconds 600";

#[test]
fn a_kernel_stopped_in_the_middle_goes_on_and_loses_nothing() {
    for machine in ["tsg", "cwsr"] {
        let emulator = emulator(&format!("--devices 2 --machine {machine}"));
        let mut victim = emulator.load(LONG).unwrap();
        let mut other = emulator.load("be --kernel-us 3000 --seconds 600").unwrap();
        let mut control = emulator.control().unwrap();
        let (task, queue) = queue_of(&mut control, victim.pid());
        assert_eq!((task.uid, queue.device.0, queue.is_stopped), (own_uid(), 0, false));
        let page = control.page(queue.queue).unwrap();
        let (_, bystander) = queue_of(&mut control, other.pid());
        let beside = control.page(bystander.queue).unwrap();

        for _ in 0..3 {
            let before = page.read().completed;
            until_some("a kernel is on the device", || has_work(page.read()).then_some(()));
            control.stop(queue.queue).unwrap();
            let stopped = control.usage(queue.queue).unwrap();
            assert!(stopped.is_stopped && !stopped.is_resident, "{stopped:?}");
            // What completed just before the stop becomes visible shortly after it.
            let settled = until_some("the counter agrees with the device", || {
                Some(page.read()).filter(|reading| reading.completed == stopped.completed)
            });
            let seen = beside.read().completed;
            until_some("the other one goes on", || {
                (beside.read().completed > seen + 20).then_some(())
            });
            std::thread::sleep(Duration::from_millis(400));
            assert_eq!(page.read().completed, settled.completed);
            assert_eq!(page.read().get, settled.get);
            let still = control.usage(queue.queue).unwrap();
            assert_eq!((still.busy, still.completed), (stopped.busy, stopped.completed));
            control.resume(queue.queue).unwrap();
            until_some("it goes on", || (page.read().completed > before + 1).then_some(()));
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
        until_some("every queue goes on", is_beyond);
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
fn slices_holds_and_usage_can_be_reached() {
    let emulator = emulator("--machine tsg");
    let mut first = emulator.load("be --kernel-us 20000 --seconds 600").unwrap();
    let mut second =
        emulator.load("lc --kernels 2 --kernel-us 100 --every-us 5000 --seconds 600").unwrap();
    let mut control = emulator.control().unwrap();
    let (_, be) = queue_of(&mut control, first.pid());
    let (_, lc) = queue_of(&mut control, second.pid());
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
    let _client = gpreempt_wire::emulator::client::Client::connect(&emulator.socket(), 64).unwrap();
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
fn a_storm_of_commands_changes_nothing_but_the_time_it_takes() {
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
            loads.iter().map(|load| queue_of(&mut control, load.pid()).1.queue).collect();
        let mut random = 1_u64;
        for _ in 0..400 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let queue = queues[usize::try_from(random >> 33).unwrap() % queues.len()];
            match (random >> 40) % 8 {
                0..3 => control.stop(queue).unwrap(),
                3..6 => control.resume(queue).unwrap(),
                6 => control.set_slice(queue, Some(Time::from_micros(1))).unwrap(),
                _ => control.permit_hold(queue).unwrap(),
            }
            if (random >> 50).is_multiple_of(4) {
                std::thread::sleep(Duration::from_micros(random >> 54));
            }
        }
        for (&queue, load) in queues.iter().zip(&mut loads) {
            control.set_slice(queue, None).unwrap();
            control.resume(queue).unwrap();
            let page = control.page(queue).unwrap();
            let before = page.read().completed;
            until_some("it goes on", || (page.read().completed > before + 20).then_some(()));
            assert!(load.finish_exact().unwrap() > 20);
        }
    }
}
