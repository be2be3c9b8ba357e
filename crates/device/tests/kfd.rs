//! An emulated KFD in another process, with real client processes: queues suspended in the middle
//! of a kernel, debuggers and clients that are killed, processes paused as a whole.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a broken expectation fails the test")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says SKIPPED")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpreempt_device::amd::abi::trap::QueueEntry;
use gpreempt_device::amd::change::AmdChange;
use gpreempt_device::amd::pause::{pause, unpause};
use gpreempt_device::amd::queue::{Dump, Hardware, hardware_of, queues_of, users};
use gpreempt_device::amd::ring_memory::ProcessMemory;
use gpreempt_device::amd::session::{AttachError, DebugSession, Outcome};
use gpreempt_device::amd::topology::Topology;
use gpreempt_device::amd::{EmulatedKfd, KfdDebugCalls, KfdLocation};
use gpreempt_device::change::GpuChange;
use gpreempt_device::hardware::{DevicePlaces, ResumeOutcome, resume_strays};
use gpreempt_device::process::ProcessInfo;
use gpreempt_stage::{Emulator, Process, Stage, until, until_some};
use rustix::io::Errno;

fn kfd(arguments: &str) -> Emulator {
    Stage::new("device-kfd").unwrap().kfd(arguments).unwrap()
}

fn sysfs(emulator: &Emulator) -> PathBuf {
    emulator.place().join("sys")
}

fn open_kfd(emulator: &Emulator) -> Arc<dyn KfdDebugCalls> {
    Arc::new(EmulatedKfd::open(emulator.place()).unwrap())
}

/// How often the device was remapped, once the counter has been stable for 100 ms.
fn remaps(emulator: &Emulator) -> u64 {
    let file = sysfs(emulator).join("topology/nodes/1/remaps");
    let read = || std::fs::read_to_string(&file).unwrap().trim().parse::<u64>().unwrap();
    let mut last = read();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = read();
        if now == last {
            return now;
        }
        last = now;
    }
}

/// A session with a process. None, after printing SKIPPED, if the machine does not permit tracing.
fn attach(debugger: &Arc<dyn KfdDebugCalls>, pid: u32) -> Option<DebugSession> {
    match DebugSession::attach(Arc::clone(debugger), pid) {
        Ok(session) => Some(session),
        Err(AttachError::Denied { advice, .. }) => {
            println!("SKIPPED: this machine does not allow tracing: {advice}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Long enough to be suspended in the middle.
const LONG: &str = "be --kernel-us 150000 --depth 4 --seconds 600";

/// Waits until debugfs shows a queue in a state.
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
fn a_kernel_suspended_by_another_process_continues_exactly() {
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
        let debugger = open_kfd(&emulator);
        let Some(mut session) = attach(&debugger, pid) else { return };
        let queue = session.queues().unwrap()[0];
        let names = [queue.queue_id];
        let listed = queues_of(&sysfs(&emulator), pid).unwrap();
        assert_eq!((listed.len(), listed[0].gpu_id), (1, queue.gpu_id));
        let device = session.devices().unwrap()[0];
        let topology = Topology::read(&sysfs(&emulator)).unwrap();
        assert_eq!(topology.device(queue.gpu_id).unwrap().gfx.0, device.gfx_version);
        let memory = ProcessMemory::open(pid).unwrap();
        let beside = ProcessMemory::open(other.pid()).unwrap();
        let Some(mut watched) = attach(&debugger, other.pid()) else { return };
        let bystander = watched.queues().unwrap()[0];

        for _ in 0..2 {
            until("it has work", || memory.observe(&queue).unwrap().has_work());
            let before = remaps(&emulator);
            assert_eq!(session.suspend(&names, 0).unwrap(), [Outcome::Done]);
            let off = memory.observe(&queue).unwrap();
            assert_eq!(remaps(&emulator) - before, u64::from(by_list));
            let hardware = shown(&emulator, pid, &queue, |hardware| !hardware.is_active);
            assert!(hardware.has_saved_waves, "{hardware:?}");
            assert_eq!((hardware.priority, hardware.write_pointer), (7, queue.write_pointer));
            let seen = beside.observe(&bystander).unwrap().get;
            until("the other process continues", || {
                beside.observe(&bystander).unwrap().get > seen + 20
            });
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(memory.observe(&queue).unwrap().get, off.get, "it was off all the time");
            assert_eq!(session.resume(&names).unwrap(), [Outcome::Done]);
            shown(&emulator, pid, &queue, |hardware| hardware.is_active);
            until("it continues", || memory.observe(&queue).unwrap().get > off.get + 1);
        }
        // Its runtime ends while it has a debugger, which sent its replies in advance.
        assert!(victim.finish_exact().unwrap() > 2);
        until("the session is over", || {
            session.handle_events().is_ok_and(|happened| happened.is_over)
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
    let debugger = open_kfd(&emulator);
    let Some(session) = attach(&debugger, many.pid()) else { return };
    let mut sessions = vec![session];
    sessions.extend(others.iter().filter_map(|other| attach(&debugger, other.pid())));
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
fn a_paused_process_stays_paused_until_it_is_unpaused() {
    let emulator = kfd("--compute-units 8");
    let mut load = emulator.load("be --kernel-us 5000 --depth 2 --seconds 600").unwrap();
    let memory = ProcessMemory::open(load.pid()).unwrap();
    let debugger = open_kfd(&emulator);
    // A pause needs no session, so the ring is found in debugfs.
    let queue = until_some("debugfs shows the queue", || {
        let text = std::fs::read(emulator.place().join("debug/mqds")).unwrap();
        let dump = Dump::parse(&text);
        let process = dump.processes.iter().find(|process| process.pid == load.pid())?;
        let hardware = process.queues.first()?.hardware()?;
        let Hardware { read_pointer, write_pointer, .. } = hardware;
        Some(QueueEntry { read_pointer, write_pointer, ..QueueEntry::default() })
    });
    let fetched = || memory.observe(&queue).unwrap().get;
    if let Err(error) = pause(&*debugger, load.pid()) {
        println!("SKIPPED: {error}");
        return;
    }
    drop(debugger);
    let off = fetched();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(fetched(), off, "a pause outlives the process that asked for it");
    unpause(&*open_kfd(&emulator), load.pid()).unwrap();
    until("it continues", || fetched() > off + 2);
    assert!(load.finish_exact().unwrap() > 2);
}

const FOLDER: &str = "GPREEMPT_TEST_FOLDER";
const PID: &str = "GPREEMPT_TEST_PID";

/// Starts a process that suspends all queues of another.
fn start_debugger(emulator: &Emulator, pid: u32) -> Process {
    let pid = pid.to_string();
    let env: [(&str, &dyn AsRef<OsStr>); 2] = [(FOLDER, &emulator.place()), (PID, &pid)];
    let debugger = emulator.stage().start_test("the_debugger_that_is_killed", &env).unwrap();
    let done = emulator.place().join("suspended");
    until("it has suspended everything", || done.exists());
    std::fs::remove_file(done).unwrap();
    debugger
}

#[test]
#[ignore = "another test starts this as a process and kills it"]
fn the_debugger_that_is_killed() {
    let folder = std::env::var(FOLDER).unwrap();
    let folder = Path::new(&folder);
    let pid: u32 = std::env::var(PID).unwrap().parse().unwrap();
    let debugger: Arc<dyn KfdDebugCalls> = Arc::new(EmulatedKfd::open(folder).unwrap());
    let mut session = DebugSession::attach(debugger, pid).unwrap();
    let names: Vec<u32> = session.queues().unwrap().iter().map(|queue| queue.queue_id).collect();
    session.suspend(&names, 0).unwrap();
    std::fs::write(folder.join("suspended"), "").unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_debugger_leaves_nothing_suspended() {
    let emulator = kfd("--compute-units 8");
    let mut load = emulator.load("be --kernel-us 20000 --depth 2 --seconds 600").unwrap();
    let debugger = open_kfd(&emulator);
    // The first attempt shows whether sessions are possible, and where the ring is.
    let Some(mut session) = attach(&debugger, load.pid()) else { return };
    let queue = session.queues().unwrap()[0];
    session.detach().unwrap();
    let memory = ProcessMemory::open(load.pid()).unwrap();
    let fetched = || memory.observe(&queue).unwrap().get;
    for _ in 0..3 {
        let mut debugger = start_debugger(&emulator, load.pid());
        let off = fetched();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(fetched(), off);
        debugger.kill_and_wait().unwrap();
        until("it continues", || fetched() > off + 2);
    }
    // A session can be started again.
    attach(&debugger, load.pid()).unwrap().detach().unwrap();
    assert!(load.finish_exact().unwrap() > 6);
}

#[test]
fn a_killed_client_leaves_no_session_and_no_files() {
    let mut emulator = kfd("--compute-units 8");
    let debugger = open_kfd(&emulator);
    for _ in 0..3 {
        let mut load = emulator.load("be --kernel-us 20000 --depth 2 --seconds 600").unwrap();
        let Some(mut session) = attach(&debugger, load.pid()) else { return };
        let queues = session.queues().unwrap();
        session.suspend(&[queues[0].queue_id], 0).unwrap();
        load.kill().unwrap();
        until("the session is over", || {
            session.handle_events().is_ok_and(|happened| happened.is_over)
        });
        let own = std::process::id();
        until("its files are gone", || {
            users(&sysfs(&emulator)).unwrap().iter().all(|user| *user == own)
        });
    }
    emulator.assert_alive();
}

#[test]
fn calls_from_the_wrong_process_are_refused() {
    let emulator = kfd("");
    let load = emulator.load("light --queues 1 --every-ms 50 --seconds 600").unwrap();
    let debugger = open_kfd(&emulator);
    let pid = load.pid();
    let pipe = rustix::pipe::pipe().unwrap();
    let wanted = gpreempt_device::amd::abi::exception::Exceptions::WANTED;
    let enable = |pid| debugger.enable(pid, wanted, std::os::fd::AsFd::as_fd(&pipe.1)).err();
    assert_eq!(enable(pid), Some(Errno::PERM), "not its tracer");
    assert_eq!(enable(1), Some(Errno::SRCH), "it does not use KFD");
    assert_eq!(debugger.disable(pid), Err(Errno::PERM));
    let pause = gpreempt_device::amd::abi::block::CriuOperation::ProcessInfo;
    assert_eq!(debugger.criu(pid, pause), Err(Errno::BADF), "not its tracer");
    let old = kfd("--kernel 6.1");
    let load = old.load("light --queues 1 --every-ms 50 --seconds 600").unwrap();
    let error = DebugSession::attach(open_kfd(&old), load.pid()).unwrap_err().to_string();
    assert!(
        error.contains("no interface to suspend queues") || error.contains("may not"),
        "{error}"
    );
}

#[test]
fn a_paused_process_without_a_journal_is_found_and_resumed() {
    let mut emulator = kfd("--compute-units 8");
    let mut load = emulator.load("be --kernel-us 4000 --groups 4").unwrap();
    if attach(&open_kfd(&emulator), load.pid()).is_none() {
        return;
    }
    let instance = KfdLocation::emulated(emulator.place());
    let paths = DevicePlaces { amd: vec![instance.clone()], ..DevicePlaces::default() };
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let pause = GpuChange::Amd(AmdChange::Pause { site: instance });
    until("it runs", || paths.read(key).stopped.is_empty());
    assert_eq!(resume_strays(key, &[], || paths.read(key)).unwrap(), ResumeOutcome::Running);
    pause.on_device().perform(key, false).unwrap();
    until("it is paused", || paths.read(key).stopped == [pause.clone()]);
    // A pause that its owner recorded stays.
    let own = [pause.clone()];
    assert_eq!(resume_strays(key, &own, || paths.read(key)).unwrap(), ResumeOutcome::Running);
    assert!(paths.stopped().contains(&(key, pause)));
    assert_eq!(resume_strays(key, &[], || paths.read(key)).unwrap(), ResumeOutcome::Resumed);
    load.finish_exact().unwrap();
    emulator.assert_alive();
}
