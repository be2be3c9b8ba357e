//! Suspending in the middle of a kernel, and going on.

use std::time::Duration;

use gpreempt_device::amd::abi::trap::QueueEntry;
use gpreempt_device::amd::activity::Memory;
use gpreempt_device::amd::pause::{pause, unpause};
use gpreempt_device::amd::queue::{Dump, Hardware, hardware_of, queues_of, users};
use gpreempt_device::amd::session::Outcome;
use gpreempt_device::amd::topology::Topology;
use gpreempt_stage::{Emulator, until_some};

use crate::driver::{attach, kfd, open_door, remaps, sysfs};

/// Long enough to be caught in the middle.
const LONG: &str = "be --kernel-us 150000 --depth 4 --seconds 600";

/// What debugfs shows of a queue, when it is what it should be.
fn shown(
    emulator: &Emulator,
    pid: u32,
    queue: &QueueEntry,
    wanted: impl Fn(&Hardware) -> bool,
) -> Hardware {
    until_some("debugfs shows it", || {
        let text = std::fs::read(emulator.place().join("debug/mqds")).unwrap();
        hardware_of(&Dump::parse(&text), pid, queue).filter(&wanted)
    })
}

#[test]
fn a_kernel_suspended_by_another_process_goes_on_and_loses_nothing() {
    for (arguments, by_list) in [
        ("--compute-units 8", true),
        ("--compute-units 8 --kernel 6.12.95 --xccs 2", true),
        ("--compute-units 8 --gfx 110000 --xccs 1", false),
    ] {
        let emulator = kfd(arguments);
        let mut victim = emulator.load(LONG).unwrap();
        let mut other = emulator.load("be --kernel-us 3000 --depth 2 --seconds 600").unwrap();
        let pid = victim.pid();
        assert_eq!(users(&sysfs(&emulator)).unwrap().len(), 2);
        let door = open_door(&emulator);
        let Some(mut session) = attach(&door, pid) else { return };
        let queue = session.queues().unwrap()[0];
        let names = [queue.queue_id];
        let listed = queues_of(&sysfs(&emulator), pid).unwrap();
        assert_eq!((listed.len(), listed[0].gpu_id), (1, queue.gpu_id));
        let device = session.devices().unwrap()[0];
        let topology = Topology::read(&sysfs(&emulator)).unwrap();
        assert_eq!(topology.device(queue.gpu_id).unwrap().gfx.0, device.gfx_version);
        let memory = Memory::open(pid).unwrap();
        let beside = Memory::open(other.pid()).unwrap();
        let Some(mut watched) = attach(&door, other.pid()) else { return };
        let bystander = watched.queues().unwrap()[0];

        for _ in 0..2 {
            until_some("it has work", || memory.observe(&queue).unwrap().has_work().then_some(()));
            let before = remaps(&emulator);
            assert_eq!(session.suspend(&names, 0).unwrap(), [Outcome::Done]);
            let off = memory.observe(&queue).unwrap();
            assert_eq!(remaps(&emulator) - before, u64::from(by_list));
            let hardware = shown(&emulator, pid, &queue, |hardware| !hardware.is_active);
            assert!(hardware.has_saved_waves, "{hardware:?}");
            assert_eq!((hardware.priority, hardware.write_pointer), (7, queue.write_pointer));
            let seen = beside.observe(&bystander).unwrap().get;
            until_some("the other one goes on", || {
                (beside.observe(&bystander).unwrap().get > seen + 20).then_some(())
            });
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(memory.observe(&queue).unwrap().get, off.get, "it was off all the time");
            assert_eq!(session.resume(&names).unwrap(), [Outcome::Done]);
            shown(&emulator, pid, &queue, |hardware| hardware.is_active);
            until_some("it goes on", || {
                (memory.observe(&queue).unwrap().get > off.get + 1).then_some(())
            });
        }
        // Its runtime ends while it has a debugger, which answered in advance.
        assert!(victim.finish_exact().unwrap() > 2);
        until_some("the session is over", || {
            session.handle_events().is_ok_and(|happened| happened.is_over).then_some(())
        });
        watched.detach().unwrap();
        assert!(other.finish_exact().unwrap() > 20);
    }
}

#[test]
fn many_queues_are_one_remap_and_many_processes_are_many() {
    let emulator = kfd("");
    let mut many = emulator.load("light --queues 64 --every-ms 600 --seconds 600").unwrap();
    let mut others: Vec<_> = (0..7)
        .map(|_| emulator.load("light --queues 2 --every-ms 600 --seconds 600").unwrap())
        .collect();
    let door = open_door(&emulator);
    let Some(session) = attach(&door, many.pid()) else { return };
    let mut sessions = vec![session];
    sessions.extend(others.iter().filter_map(|other| attach(&door, other.pid())));
    let names: Vec<Vec<u32>> = sessions
        .iter_mut()
        .map(|session| session.queues().unwrap().iter().map(|queue| queue.queue_id).collect())
        .collect();
    assert_eq!(names[0].len(), 64);
    let before = remaps(&emulator);
    assert!(sessions[0].suspend(&names[0], 0).unwrap().iter().all(|o| *o == Outcome::Done));
    assert_eq!(remaps(&emulator) - before, 1, "64 queues of one process");
    for (session, names) in sessions.iter_mut().zip(&names).skip(1) {
        session.suspend(names, 0).unwrap();
    }
    assert_eq!(remaps(&emulator) - before, 8, "8 processes");
    for session in sessions {
        session.detach().unwrap();
    }
    many.finish_exact().unwrap();
    for other in &mut others {
        other.finish_exact().unwrap();
    }
}

#[test]
fn a_process_is_paused_as_a_whole_and_stays_so_until_somebody_lets_it_on() {
    let emulator = kfd("--compute-units 8");
    let mut load = emulator.load("be --kernel-us 5000 --depth 2 --seconds 600").unwrap();
    let memory = Memory::open(load.pid()).unwrap();
    let door = open_door(&emulator);
    // Where the ring is, from debugfs: a pause needs no session.
    let queue = until_some("debugfs shows the queue", || {
        let text = std::fs::read(emulator.place().join("debug/mqds")).unwrap();
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
    unpause(&*open_door(&emulator), load.pid()).unwrap();
    until_some("it goes on", || (fetched() > off + 2).then_some(()));
    assert!(load.finish_exact().unwrap() > 2);
}
