//! An emulated KFD in a folder of its own: its files, and sessions with the processes that use it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpreempt_device::amd::door::{Door, EmulatedDoor};
use gpreempt_device::amd::session::{AttachError, Session};
use gpreempt_stage::{Emulator, Stage};

/// An emulated KFD with those arguments of `gpreempt-emu`.
pub(crate) fn kfd(arguments: &str) -> Emulator {
    Stage::new("device-kfd").unwrap().kfd(arguments).unwrap()
}

/// Where its files are that sysfs would have.
pub(crate) fn sysfs(emulator: &Emulator) -> PathBuf {
    emulator.place().join("sys")
}

/// A connection to it, as an open `/dev/kfd` would be.
pub(crate) fn open_door(emulator: &Emulator) -> Arc<dyn Door> {
    Arc::new(EmulatedDoor::open(emulator.place()).unwrap())
}

/// How often the device was remapped, once the counter has not changed for 100 ms.
pub(crate) fn remaps(emulator: &Emulator) -> u64 {
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

/// A session with a process. None, with a word on the standard output, where the machine does not
/// allow tracing.
pub(crate) fn attach(door: &Arc<dyn Door>, pid: u32) -> Option<Session> {
    match Session::attach(Arc::clone(door), pid) {
        Ok(session) => Some(session),
        Err(AttachError::Denied { advice, .. }) => {
            println!("SKIPPED: this machine does not allow tracing: {advice}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}
