//! Suspending in the middle of a kernel, and going on.

use std::time::Duration;

use gpreempt_device::amd::abi::trap::QueueEntry;
use gpreempt_device::amd::activity::Memory;
use gpreempt_device::amd::pause::{pause, unpause};
use gpreempt_device::amd::queue::{Dump, Hardware, hardware_of, queues_of, users};
use gpreempt_device::amd::session::Outcome;
use gpreempt_device::amd::topology::Topology;

use crate::scene::{Emulator, attach, eventually};

/// Long enough to be caught in the middle.
const LONG: &str = "be --kernel-us 150000 --depth 4 --seconds 600";

/// What debugfs shows of a queue, when it is what it should be.
fn shown(
    emulator: &Emulator,
    pid: u32,
    queue: &QueueEntry,
    wanted: impl Fn(&Hardware) -> bool,
) -> Hardware {
    eventually("debugfs shows it", || {
        let text = std::fs::read(emulator.folder().join("debug/mqds")).unwrap();
        hardware_of(&Dump::parse(&text), pid, queue).filter(&wanted)
    })
}

#[test]
fn a_kernel_suspended_by_another_process_goes_on_and_loses_nothing() {
    for (name, arguments, by_list) in [
        ("new", "--compute-units 8", true),
        ("old", "--compute-units 8 --kernel 6.12.95 --xccs 2", true),
        ("mes", "--compute-units 8 --gfx 110000 --xccs 1", false),
    ] {
        let emulator = Emulator::start(name, arguments);
        let mut victim = emulator.load(LONG);
        let mut other = emulator.load("be --kernel-us 3000 --depth 2 --seconds 600");
        let pid = victim.pid();
        assert_eq!(users(&emulator.sysfs()).unwrap().len(), 2);
        let door = emulator.door();
        let Some(mut session) = attach(&door, pid) else { return };
        let queue = session.queues().unwrap()[0];
        let names = [queue.queue_id];
        let listed = queues_of(&emulator.sysfs(), pid).unwrap();
        assert_eq!((listed.len(), listed[0].gpu_id), (1, queue.gpu_id));
        let device = session.devices().unwrap()[0];
        let topology = Topology::read(&emulator.sysfs()).unwrap();
        assert_eq!(topology.device(queue.gpu_id).unwrap().gfx.0, device.gfx_version);
        let memory = Memory::open(pid).unwrap();
        let beside = Memory::open(other.pid()).unwrap();
        let Some(mut watched) = attach(&door, other.pid()) else { return };
        let bystander = watched.queues().unwrap()[0];

        for _ in 0..2 {
            eventually("it has work", || memory.observe(&queue).unwrap().has_work().then_some(()));
            let before = emulator.remaps();
            assert_eq!(session.suspend(&names, 0).unwrap(), [Outcome::Done]);
            let off = memory.observe(&queue).unwrap();
            assert_eq!(emulator.remaps() - before, u64::from(by_list));
            let hardware = shown(&emulator, pid, &queue, |hardware| !hardware.is_active);
            assert!(hardware.has_saved_waves, "{hardware:?}");
            assert_eq!((hardware.priority, hardware.write_pointer), (7, queue.write_pointer));
            let seen = beside.observe(&bystander).unwrap().get;
            eventually("the other one goes on", || {
                (beside.observe(&bystander).unwrap().get > seen + 20).then_some(())
            });
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(memory.observe(&queue).unwrap().get, off.get, "it was off all the time");
            assert_eq!(session.resume(&names).unwrap(), [Outcome::Done]);
            shown(&emulator, pid, &queue, |hardware| hardware.is_active);
            eventually("it goes on", || {
                (memory.observe(&queue).unwrap().get > off.get + 1).then_some(())
            });
        }
        // Its runtime ends while it has a debugger, which answered in advance.
        assert!(victim.finish_exact() > 2);
        eventually("the session is over", || {
            session.handle_events().is_ok_and(|happened| happened.is_over).then_some(())
        });
        watched.detach().unwrap();
        assert!(other.finish_exact() > 20);
    }
}

#[test]
fn many_queues_are_one_remap_and_many_processes_are_many() {
    let emulator = Emulator::start("remaps", "");
    let mut many = emulator.load("light --queues 64 --every-ms 600 --seconds 600");
    let mut others: Vec<_> =
        (0..7).map(|_| emulator.load("light --queues 2 --every-ms 600 --seconds 600")).collect();
    let door = emulator.door();
    let Some(session) = attach(&door, many.pid()) else { return };
    let mut sessions = vec![session];
    sessions.extend(others.iter().filter_map(|other| attach(&door, other.pid())));
    let names: Vec<Vec<u32>> = sessions
        .iter_mut()
        .map(|session| session.queues().unwrap().iter().map(|queue| queue.queue_id).collect())
        .collect();
    assert_eq!(names[0].len(), 64);
    let before = emulator.remaps();
    assert!(sessions[0].suspend(&names[0], 0).unwrap().iter().all(|o| *o == Outcome::Done));
    assert_eq!(emulator.remaps() - before, 1, "64 queues of one process");
    for (session, names) in sessions.iter_mut().zip(&names).skip(1) {
        session.suspend(names, 0).unwrap();
    }
    assert_eq!(emulator.remaps() - before, 8, "8 processes");
    for session in sessions {
        session.detach().unwrap();
    }
    many.finish_exact();
    for other in &mut others {
        other.finish_exact();
    }
}

#[test]
fn a_process_is_paused_as_a_whole_and_stays_so_until_somebody_lets_it_on() {
    let emulator = Emulator::start("pause", "--compute-units 8");
    let mut load = emulator.load("be --kernel-us 5000 --depth 2 --seconds 600");
    let memory = Memory::open(load.pid()).unwrap();
    let door = emulator.door();
    // Where the ring is, from debugfs: a pause needs no session.
    let queue = eventually("debugfs shows the queue", || {
        let text = std::fs::read(emulator.folder().join("debug/mqds")).unwrap();
        let dump = Dump::parse(&text);
        let process = dump.processes.iter().find(|process| process.pid == load.pid())?;
        let hardware = process.queues.first()?.hardware()?;
        let Hardware { read_pointer, write_pointer, .. } = hardware;
        Some(QueueEntry { read_pointer, write_pointer, ..QueueEntry::default() })
    });
    let fetched = || memory.observe(&queue).unwrap().get;
    if let Err(error) = pause(&*door, load.pid()) {
        println!("SKIPPED: {error}");
        return;
    }
    drop(door);
    let off = fetched();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(fetched(), off, "a pause outlives whoever asked for it");
    unpause(&*emulator.door(), load.pid()).unwrap();
    eventually("it goes on", || (fetched() > off + 2).then_some(()));
    assert!(load.finish_exact() > 2);
}
