//! Emulators of a test, and the queues of processes that use them.

use gpreempt_stage::{Emulator, Stage};
use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::emulator::ring_page::Reading;
use gpreempt_wire::emulator::{QueueInfo, TaskInfo};

/// An emulated GPU in a folder of its own.
pub(crate) fn emulator(arguments: &str) -> Emulator {
    Stage::new("emu").unwrap().emulator(arguments).unwrap()
}

/// An emulated KFD in a folder of its own.
pub(crate) fn kfd(arguments: &str) -> Emulator {
    Stage::new("emu-kfd").unwrap().kfd(arguments).unwrap()
}

/// A connection that is notified of what comes and goes.
pub(crate) fn watcher(emulator: &Emulator) -> Control {
    emulator.control_with(Options { watches: true, ..Options::default() }).unwrap()
}

/// The task and the only queue of a process.
pub(crate) fn queue_of(control: &mut Control, pid: u32) -> (TaskInfo, QueueInfo) {
    let listing = control.list().unwrap();
    let task = *listing.tasks.iter().find(|task| task.pid == pid).unwrap();
    let mut queues = listing.queues.iter().filter(|queue| queue.task == task.task);
    let queue = *queues.next().unwrap();
    assert_eq!(queues.next(), None);
    (task, queue)
}

/// Whether a kernel is on the device or on its way: fetched and not complete.
pub(crate) fn has_work(reading: Reading) -> bool {
    reading.completed < reading.get
}
