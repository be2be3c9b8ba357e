//! kill -9 of everybody who takes part.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use gpreempt_device::amd::activity::Memory;
use gpreempt_device::amd::door::{Door, EmulatedDoor};
use gpreempt_device::amd::queue::users;
use gpreempt_device::amd::session::Session;
use gpreempt_stage::{Emulator, until_some};
use rustix::io::Errno;

use crate::driver::{attach, kfd, open_door, sysfs};

const FOLDER: &str = "GPREEMPT_TEST_FOLDER";
const PID: &str = "GPREEMPT_TEST_PID";

/// A process that debugs another. It ends with the test.
struct Debugger(Child);

impl Debugger {
    /// One that has suspended everything.
    fn start(emulator: &Emulator, pid: u32) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--quiet", "death::the_debugger_that_is_killed"])
            .env(FOLDER, emulator.place())
            .env(PID, pid.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let debugger = Self(child);
        let done = emulator.place().join("suspended");
        until_some("it has suspended everything", || done.exists().then_some(()));
        std::fs::remove_file(done).unwrap();
        debugger
    }

    fn kill(&mut self) {
        assert_eq!(self.0.try_wait().unwrap(), None, "the debugger ended by itself");
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "it goes on until it is killed, by the test that starts it"]
fn the_debugger_that_is_killed() {
    let folder = std::env::var(FOLDER).unwrap();
    let folder = Path::new(&folder);
    let pid: u32 = std::env::var(PID).unwrap().parse().unwrap();
    let door: Arc<dyn Door> = Arc::new(EmulatedDoor::open(folder).unwrap());
    let mut session = Session::attach(door, pid).unwrap();
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
    let door = open_door(&emulator);
    // Whether it works at all is tried here, and where the ring is.
    let Some(mut session) = attach(&door, load.pid()) else { return };
    let queue = session.queues().unwrap()[0];
    session.detach().unwrap();
    let memory = Memory::open(load.pid()).unwrap();
    let fetched = || memory.observe(&queue).unwrap().get;
    for _ in 0..3 {
        let mut debugger = Debugger::start(&emulator, load.pid());
        let off = fetched();
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(fetched(), off);
        debugger.kill();
        until_some("it goes on", || (fetched() > off + 2).then_some(()));
    }
    // Somebody else can begin a session.
    attach(&door, load.pid()).unwrap().detach().unwrap();
    assert!(load.finish_exact().unwrap() > 6);
}

#[test]
fn a_killed_client_is_gone_from_everywhere() {
    let mut emulator = kfd("--compute-units 8");
    let door = open_door(&emulator);
    for _ in 0..3 {
        let mut load = emulator.load("be --kernel-us 20000 --depth 2 --seconds 600").unwrap();
        let Some(mut session) = attach(&door, load.pid()) else { return };
        let queues = session.queues().unwrap();
        session.suspend(&[queues[0].queue_id], 0).unwrap();
        load.kill().unwrap();
        until_some("the session is over", || {
            session.handle_events().is_ok_and(|happened| happened.is_over).then_some(())
        });
        let own = std::process::id();
        until_some("its files are gone", || {
            (users(&sysfs(&emulator)).unwrap().iter().all(|user| *user == own)).then_some(())
        });
    }
    emulator.assert_alive();
}

#[test]
fn what_is_asked_by_the_wrong_one_is_refused() {
    let emulator = kfd("");
    let load = emulator.load("light --queues 1 --every-ms 50 --seconds 600").unwrap();
    let door = open_door(&emulator);
    let pid = load.pid();
    let pipe = rustix::pipe::pipe().unwrap();
    let wanted = gpreempt_device::amd::abi::exception::Exceptions::WANTED;
    let enable = |pid| door.enable(pid, wanted, std::os::fd::AsFd::as_fd(&pipe.1)).err();
    assert_eq!(enable(pid), Some(Errno::PERM), "not its tracer");
    assert_eq!(enable(1), Some(Errno::SRCH), "it does not use KFD");
    assert_eq!(door.disable(pid), Err(Errno::PERM));
    let pause = gpreempt_device::amd::abi::block::CriuOperation::ProcessInfo;
    assert_eq!(door.criu(pid, pause), Err(Errno::BADF), "not its tracer");
    let old = kfd("--kernel 6.1");
    let load = old.load("light --queues 1 --every-ms 50 --seconds 600").unwrap();
    let error = Session::attach(open_door(&old), load.pid()).unwrap_err().to_string();
    assert!(
        error.contains("no interface to suspend queues") || error.contains("may not"),
        "{error}"
    );
}
