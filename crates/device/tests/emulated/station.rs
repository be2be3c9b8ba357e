//! The loop: core's driver over the emulated backend, as the daemon runs it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpreempt_core::config::Config;
use gpreempt_core::event::{Event, SchedAttr};
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::scheduler_loop::SchedulerLoop;
use gpreempt_core::time::Instant;
use gpreempt_device::controller::{Controller, Note, Numbering, Waker};
use gpreempt_device::emulated::EmulatedBackend;
use gpreempt_device::journal::{Entry, Session};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::ledger::Ledger;
use gpreempt_device::process::ProcessInfo;
use gpreempt_stage::{Emulator, Stage, until};
use gpreempt_wire::emulator::QueueInfo;
use gpreempt_wire::emulator::control::Control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An emulated GPU in a folder of its own, with those arguments of `gpreempt-emu`.
pub(crate) fn emulator(arguments: &str) -> Emulator {
    Stage::new("device").unwrap().emulator(arguments).unwrap()
}

/// A place for a journal beside an emulator.
pub(crate) fn journal(emulator: &Emulator) -> PathBuf {
    emulator.socket().with_file_name("journal")
}

/// The only queue of a process.
pub(crate) fn queue_of(control: &mut Control, pid: u32) -> QueueInfo {
    let listing = control.list().unwrap();
    let task = listing.tasks.iter().find(|task| task.pid == pid).unwrap().task;
    *listing.queues.iter().find(|queue| queue.task == task).unwrap()
}

/// A running loop.
pub(crate) struct Station {
    pub(crate) driver: SchedulerLoop,
    pub(crate) backend: EmulatedBackend,
    pub(crate) notes: Vec<Note>,
    waker: Waker,
    session: PathBuf,
    tasks: u64,
}

impl Station {
    /// A loop with strict priorities that writes into that session.
    pub(crate) fn new(socket: &Path, session: Session) -> Self {
        let folder = session.folder().to_owned();
        let waker = Waker::new().unwrap();
        let (ledger, numbering) = (Ledger::new(session), Numbering::of(0));
        let backend = EmulatedBackend::new(socket.to_owned(), ledger, numbering, waker.clone());
        let driver = SchedulerLoop::new(Config::default()).unwrap();
        let backend = backend.unwrap();
        Self { driver, backend, notes: Vec::new(), waker, session: folder, tasks: 0 }
    }

    /// Adopts a process with a priority.
    pub(crate) fn adopt(&mut self, pid: u32, priority: u8) -> TaskId {
        self.tasks += 1;
        let task = TaskId(self.tasks);
        let priority = Priority::new(priority).unwrap();
        self.tell(Event::TaskAppeared { task, attr: SchedAttr { priority, ..Default::default() } });
        let key = ProcessInfo::read(pid).unwrap().key;
        self.backend.adopt(task, key).unwrap();
        task
    }

    /// Puts a process back as it was.
    pub(crate) fn release(&mut self, task: TaskId) {
        self.tell(Event::TaskVanished { task });
        self.backend.release(task);
    }

    /// The only queue of a task, if it is known yet.
    pub(crate) fn queue(&self, task: TaskId) -> Option<QueueView> {
        self.driver.scheduler().queues().find(|queue| queue.task == task)
    }

    /// What would be undone if we died.
    pub(crate) fn journal(&self) -> Vec<Entry> {
        Session::at(self.session.clone()).entries().unwrap()
    }

    pub(crate) fn step(&mut self) {
        let wait = self.driver.step(now(), &mut self.backend);
        while let Some(note) = self.backend.poll_note() {
            if let Note::Ended(task) = note {
                self.tell(Event::TaskVanished { task });
            }
            self.notes.push(note);
        }
        let wait = Duration::from_nanos(wait.as_nanos()).min(Duration::from_millis(5));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(&timeout));
        self.waker.clear();
    }

    /// Goes on until something is so.
    pub(crate) fn run_until(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> bool) {
        until(what, || {
            self.step();
            look(self)
        });
    }

    fn tell(&mut self, event: Event) {
        self.driver.deliver(now(), event).unwrap();
    }
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}
