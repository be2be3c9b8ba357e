//! The scheduler's loop over a real emulator with real client processes, and kill -9.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpreempt_core::config::Config;
use gpreempt_core::event::{Event, SchedAttr};
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::RunState;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::scheduler_loop::SchedulerLoop;
use gpreempt_core::time::Instant;
use gpreempt_device::controller::{Controller, ControllerReport, Numbering, Waker};
use gpreempt_device::emulated::EmulatedBackend;
use gpreempt_device::journal::{Journal, OwnerJournal, ProcessRecord};
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessInfo;
use gpreempt_device::undo_log::UndoLog;
use gpreempt_stage::{Emulator, Load, Process, Stage, until};
use gpreempt_wire::emulator::QueueInfo;
use gpreempt_wire::emulator::control::Control;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// An emulated GPU in a folder of its own, with those arguments of `gpreempt-emu`.
fn emulator(arguments: &str) -> Emulator {
    Stage::new("device").unwrap().emulator(arguments).unwrap()
}

/// The folder of a journal beside an emulator.
fn journal(emulator: &Emulator) -> PathBuf {
    emulator.socket().with_file_name("journal")
}

/// The only queue of a process.
fn queue_of(emulator: &Emulator, pid: u32) -> QueueInfo {
    emulator.queues(pid).unwrap()[0].1
}

/// The scheduler's loop over the emulated backend, as the daemon runs it.
struct TestLoop {
    driver: SchedulerLoop,
    backend: EmulatedBackend,
    reports: Vec<ControllerReport>,
    waker: Waker,
    session: PathBuf,
    tasks: u64,
}

impl TestLoop {
    /// A loop with strict priorities and that journal.
    fn new(socket: &Path, session: OwnerJournal) -> Self {
        let folder = session.folder().to_owned();
        let waker = Waker::new().unwrap();
        let (undo_log, numbering) = (UndoLog::new(session), Numbering::of(0));
        let backend = EmulatedBackend::new(socket.to_owned(), undo_log, numbering, waker.clone());
        let driver = SchedulerLoop::new(Config::default()).unwrap();
        let backend = backend.unwrap();
        Self { driver, backend, reports: Vec::new(), waker, session: folder, tasks: 0 }
    }

    fn adopt(&mut self, pid: u32, priority: u8) -> TaskId {
        self.tasks += 1;
        let task = TaskId(self.tasks);
        let priority = Priority::new(priority).unwrap();
        self.deliver(Event::TaskAppeared {
            task,
            attr: SchedAttr { priority, ..Default::default() },
        });
        let key = ProcessInfo::read(pid).unwrap().key;
        self.backend.adopt(task, key).unwrap();
        task
    }

    fn release(&mut self, task: TaskId) {
        self.deliver(Event::TaskVanished { task });
        self.backend.release(task);
    }

    /// The only queue of a task, if it is known yet.
    fn queue(&self, task: TaskId) -> Option<QueueView> {
        self.driver.scheduler().queues().find(|queue| queue.task == task)
    }

    /// What a keeper would revert if this process died.
    fn journal(&self) -> Vec<ProcessRecord> {
        OwnerJournal::at(self.session.clone()).entries().unwrap()
    }

    fn step(&mut self) {
        let wait = self.driver.step(now(), &mut self.backend);
        while let Some(note) = self.backend.poll_report() {
            if let ControllerReport::Ended(task) = note {
                self.deliver(Event::TaskVanished { task });
            }
            self.reports.push(note);
        }
        let wait = Duration::from_nanos(wait.as_nanos()).min(Duration::from_millis(5));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(&timeout));
        self.waker.clear();
    }

    /// Runs the loop until a condition holds.
    fn run_until(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> bool) {
        until(what, || {
            self.step();
            look(self)
        });
    }

    fn deliver(&mut self, event: Event) {
        self.driver.deliver(now(), event).unwrap();
    }
}

fn now() -> Instant {
    Instant::from_nanos(monotonic_ns())
}

/// Long enough to be caught in the middle.
const LOW: &str = "be --kernel-us 150000 --depth 4 --seconds 600";
/// Far shorter, with pauses in which the other load runs.
const HIGH: &str = "lc --kernels 10 --kernel-us 2000 --gap-us 0 --every-us 80000 --warmup-ms 0 \
                    --seconds 600";

/// An emulator with both loads, and a loop.
fn begin(arguments: &str) -> (Emulator, Load, Load, TestLoop) {
    let emulator = emulator(arguments);
    let high = emulator.load(HIGH).unwrap();
    let low = emulator.load(LOW).unwrap();
    let session = Journal::at(journal(&emulator)).unwrap().begin().unwrap();
    let test_loop = TestLoop::new(&emulator.socket(), session);
    (emulator, low, high, test_loop)
}

/// Ends both loads and checks that no kernel was lost, and that no change is left.
fn finish(mut test_loop: TestLoop, mut low: Load, mut high: Load) {
    high.ask_to_end();
    test_loop.run_until("the high-priority load ends", |_| high.has_ended().unwrap());
    assert!(high.wait_exact().unwrap() > 0);
    low.ask_to_end();
    test_loop.run_until("the low-priority load ends", |_| low.has_ended().unwrap());
    assert!(low.wait_exact().unwrap() > 0);
    test_loop.backend.release_all().unwrap();
    assert_eq!(test_loop.journal(), []);
    let is_problem = |note: &ControllerReport| matches!(note, ControllerReport::Problem(_));
    assert!(!test_loop.reports.iter().any(is_problem), "{:?}", test_loop.reports);
}

/// Whether the journal records a change of a process.
fn is_changed(test_loop: &TestLoop, load: &Load) -> bool {
    test_loop.journal().iter().any(|record| record.process.pid == load.pid())
}

#[test]
fn the_low_priority_load_is_stopped_in_the_middle_of_kernels_and_resumed() {
    let (emulator, low, high, mut test_loop) =
        begin("--model mi300x --machine cwsr --compute-units 1");
    let mut control = emulator.control().unwrap();
    let low_ring = queue_of(&emulator, low.pid()).queue;
    let high_ring = queue_of(&emulator, high.pid()).queue;
    let high_page = control.page(high_ring).unwrap();
    let low_task = test_loop.adopt(low.pid(), 2);
    let high_task = test_loop.adopt(high.pid(), 12);

    let (mut in_the_middle, mut served, mut off_at) = (0, 0, None);
    test_loop.run_until(
        "it was stopped in the middle of kernels, for the other load",
        |test_loop| {
            let Some(queue) = test_loop.queue(low_task) else { return false };
            let completed = high_page.read().completed;
            match (queue.run_state == RunState::Off, off_at) {
                (true, None) => {
                    off_at = Some(completed);
                    in_the_middle += i32::from(queue.ring.running == Some(true));
                }
                (false, Some(before)) => {
                    off_at = None;
                    served += i32::from(completed > before);
                }
                (true, Some(_)) | (false, None) => {}
            }
            in_the_middle >= 3 && served >= 3
        },
    );
    let queue = test_loop.queue(low_task).unwrap();
    assert!(queue.totals.preempts >= 3, "{queue:?}");
    assert_eq!(test_loop.queue(high_task).unwrap().totals.preempts, 0);
    let before = control.usage(low_ring).unwrap().completed;
    test_loop
        .run_until("it runs again", |_| control.usage(low_ring).unwrap().completed > before + 1);

    // A load that is released while it is stopped runs again.
    test_loop.run_until("it is stopped", |test_loop| {
        test_loop.queue(low_task).is_some_and(|queue| queue.run_state == RunState::Off)
    });
    assert!(control.usage(low_ring).unwrap().is_stopped);
    assert!(is_changed(&test_loop, &low));
    test_loop.release(low_task);
    until("it is resumed", || !control.usage(low_ring).unwrap().is_stopped);
    until("the journal has no record of it", || !is_changed(&test_loop, &low));
    finish(test_loop, low, high);
}

#[test]
fn with_time_slices_the_high_priority_load_runs_in_the_middle_of_a_kernel() {
    let (emulator, low, high, mut test_loop) = begin("--machine tsg --compute-units 1");
    let mut control = emulator.control().unwrap();
    let low_queue = queue_of(&emulator, low.pid());
    let high_queue = queue_of(&emulator, high.pid());
    let low_page = control.page(low_queue.queue).unwrap();
    let high_page = control.page(high_queue.queue).unwrap();
    let low_task = test_loop.adopt(low.pid(), 2);
    test_loop.adopt(high.pid(), 12);
    test_loop.run_until("it has a shorter time slice", |_| {
        control.usage(low_queue.queue).unwrap().slice < low_queue.slice
    });
    assert!(is_changed(&test_loop, &low));
    let mut begin = (low_page.read(), high_page.read());
    test_loop.run_until("a request is served during a kernel", |_| {
        let now = (low_page.read(), high_page.read());
        if now.0.completed != begin.0.completed {
            begin = now;
        }
        now.0.completed < now.0.get && now.1.completed >= begin.1.completed + 5
    });
    test_loop.release(low_task);
    until("it has its original time slice", || {
        control.usage(low_queue.queue).unwrap().slice == low_queue.slice
    });
    until("the journal has no record of it", || !is_changed(&test_loop, &low));
    finish(test_loop, low, high);
}

const SOCKET: &str = "GPREEMPT_TEST_SOCKET";
const JOURNAL: &str = "GPREEMPT_TEST_JOURNAL";
const PIDS: &str = "GPREEMPT_TEST_PIDS";

/// Starts a process that runs the loop.
fn start_owner(emulator: &Emulator, low: u32, high: u32) -> Process {
    let (socket, journal) = (emulator.socket(), journal(emulator));
    let pids = format!("{low} {high}");
    let env: [(&str, &dyn AsRef<OsStr>); 3] =
        [(SOCKET, &socket), (JOURNAL, &journal), (PIDS, &pids)];
    emulator.stage().start_test("the_loop_that_is_killed", &env).unwrap()
}

/// A keeper that runs until its pipe ends and its changes are reverted.
fn start_keeper(session: &OwnerJournal) -> Child {
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_gpreempt-keeper"))
        .arg(session.folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    keeper
}

#[test]
#[ignore = "it runs until the test that starts it kills it"]
fn the_loop_that_is_killed() {
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let journal = Journal::at(std::env::var_os(JOURNAL).unwrap().into()).unwrap();
    let session = journal.begin().unwrap();
    let mut keeper = start_keeper(&session);
    let mut test_loop = TestLoop::new(&socket, session);
    let pids = std::env::var(PIDS).unwrap();
    let (low, high) = pids.split_once(' ').unwrap();
    test_loop.adopt(low.parse().unwrap(), 2);
    test_loop.adopt(high.parse().unwrap(), 12);
    test_loop.run_until("the keeper ends first", |_| keeper.try_wait().unwrap().is_some());
    keeper.wait().unwrap();
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn the_keeper_reverts_the_changes_of_a_killed_loop() {
    for machine in
        ["--model mi300x --machine cwsr --compute-units 1", "--machine tsg --compute-units 1"]
    {
        let emulator = emulator(machine);
        let mut high = emulator.load("be --kernel-us 3000 --depth 8 --seconds 600").unwrap();
        let mut low = emulator.load("be --kernel-us 150000 --depth 4 --seconds 600").unwrap();
        let mut control = emulator.control().unwrap();
        let queue = queue_of(&emulator, low.pid());
        let mut state = || {
            let usage = control.usage(queue.queue).unwrap();
            (usage.is_stopped, usage.slice)
        };
        let original = (false, queue.slice);
        // Twice, because the first one must leave nothing that hinders the next.
        for _ in 0..2 {
            assert_eq!(state(), original);
            let mut owner = start_owner(&emulator, low.pid(), high.pid());
            until("it is stopped, or has a shorter time slice", || state() != original);
            owner.kill_and_wait().unwrap();
            until("the keeper has reverted it", || state() == original);
            until("the journal is removed", || is_empty(&journal(&emulator)));
        }
        let completed = |control: &mut Control| control.usage(queue.queue).unwrap().completed;
        let mut control = emulator.control().unwrap();
        let before = completed(&mut control);
        until("it runs again", || completed(&mut control) > before);
        for load in [&mut low, &mut high] {
            load.ask_to_end();
            assert!(load.wait_exact().unwrap() > 0);
        }
    }
}
