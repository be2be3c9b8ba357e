//! Controls all adopted processes on a patched KFD from one thread.
//!
//! A patched call names queues of any processes, so commands that arrive together become one call
//! and one run list update per device. No process has a debug session: queues are listed in
//! debugfs, and a preempted queue can be destroyed by its process.
//!
//! The journal does not record preemptions: the kernel resumes them when this program dies, or
//! after [`calls`]' lease of 5 s when this program is stopped and does not renew them. Priorities
//! of the in-kernel scheduler outlive this program, so the journal records them.

mod calls;
mod queue_scan;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;

use super::job::{Gathered, Job, gather};
use super::report::{Report, StopUnit};
use crate::amd::KfdInstance;
use crate::amd::session::{QueueGeneration, QueueKey};
use crate::amd::stop_method::PatchedCalls;
use crate::controller::{Disconnected, Reporter};
use crate::keeper::monotonic_ns;
use crate::process::ProcessKey;
use crate::undo_log::UndoLog;
use crate::worker_thread::{Orders, WorkerThread};

#[derive(Debug)]
pub(super) enum BatchCommand {
    /// Control a process.
    Add(TaskId, ProcessKey),
    /// Revert all changes to a process, then report [`Report::Over`].
    Remove(TaskId),
    /// Preempt or resume a queue.
    Do(Job),
    Priority(TaskId, Priority),
    /// A queue has a priority of its own, or that of its process again.
    QueuePriority(TaskId, QueueKey, Option<Priority>),
}

#[derive(Debug)]
pub(super) struct KfdBatch {
    thread: WorkerThread<BatchCommand>,
    heartbeat: Heartbeat,
}

/// The time of the scheduler loop's last iteration.
#[derive(Clone, Debug)]
pub(super) struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(monotonic_ns())))
    }

    fn beat(&self) {
        self.0.store(monotonic_ns(), Ordering::Relaxed);
    }

    fn age_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.0.load(Ordering::Relaxed))
    }
}

impl KfdBatch {
    /// Starts the thread. Without the privilege for patched calls it only watches the in-kernel
    /// scheduler.
    pub(super) fn start(
        instance: KfdInstance,
        undo_log: UndoLog,
        reports: Reporter<Report>,
        schedules: bool,
    ) -> io::Result<Self> {
        let heartbeat = Heartbeat::new();
        let beats = heartbeat.clone();
        let thread = WorkerThread::start_polling("amd batch", move |commands| {
            let mut state = BatchThread::new(instance, undo_log, reports, commands, beats);
            state.schedules = schedules;
            // The thread ends when the backend drops the receiver of reports.
            let _ = state.run();
            state.put_all_back();
        })?;
        Ok(Self { thread, heartbeat })
    }

    /// Sends a command. Returns whether the thread will execute it.
    pub(super) fn send(&self, command: BatchCommand) -> bool {
        self.thread.send(command)
    }

    /// Records an iteration of the scheduler loop.
    pub(super) fn beat(&self) {
        self.heartbeat.beat();
    }

    /// Reverts all changes and ends the thread. Returns whether it ended in time: a call that hangs
    /// is not waited for, and the kernel resumes its queues when their lease ends.
    pub(super) fn stop_by(&mut self, end: Instant) -> bool {
        self.thread.has_ended_by(end)
    }
}

/// How long dropping the handle waits for the thread.
const STOP_MAX: Duration = Duration::from_secs(3);

impl Drop for KfdBatch {
    fn drop(&mut self) {
        self.stop_by(Instant::now() + STOP_MAX);
    }
}

/// How often queues are listed. The kernel sends no notification.
const LOOK: Duration = Duration::from_millis(50);

/// A queue by task and KFD queue id.
pub(super) type Name = (TaskId, u32);

#[derive(Debug)]
pub(super) struct BatchProcess {
    pub(super) process: ProcessKey,
    pub(super) listed: Option<Vec<StopUnit>>,
    pub(super) priority: Option<Priority>,
    pub(super) own_priorities: BTreeMap<u32, Priority>,
    /// Whether the kernel has a priority for it.
    pub(super) is_handed_over: bool,
    /// Its queues by id, to distinguish queues that reuse an id.
    pub(super) seen: BTreeMap<u32, Seen>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) generation: QueueGeneration,
    /// Never reused; 0 if unknown.
    pub(super) serial: u64,
}

#[derive(Debug)]
pub(super) struct BatchThread {
    pub(super) instance: KfdInstance,
    pub(super) undo_log: UndoLog,
    pub(super) reports: Reporter<Report>,
    commands: Orders<BatchCommand>,
    pub(super) heartbeat: Heartbeat,
    pub(super) processes: BTreeMap<TaskId, BatchProcess>,
    /// Preempted queues, with the number of scans that listed each as running.
    pub(super) held: BTreeMap<Name, u8>,
    /// Whether the in-kernel scheduler is on.
    pub(super) schedules: bool,
    /// Whether debugfs has the list of all queues.
    pub(super) has_list: bool,
    /// How many scans in a row found no list.
    pub(super) misses: u8,
    /// Whether a call failed with `ENOTTY` or `EPERM`.
    pub(super) is_refused: bool,
    /// When the patched calls were last probed.
    pub(super) probed: Instant,
    pub(super) renewed: Instant,
}

impl BatchThread {
    pub(super) fn new(
        instance: KfdInstance,
        undo_log: UndoLog,
        reports: Reporter<Report>,
        commands: Orders<BatchCommand>,
        heartbeat: Heartbeat,
    ) -> Self {
        Self {
            instance,
            undo_log,
            reports,
            commands,
            heartbeat,
            processes: BTreeMap::new(),
            held: BTreeMap::new(),
            schedules: false,
            has_list: false,
            misses: 0,
            is_refused: false,
            probed: Instant::now(),
            renewed: Instant::now(),
        }
    }

    /// Runs until the handle is dropped.
    pub(super) fn run(&mut self) -> Result<(), Disconnected> {
        let mut looked = Instant::now();
        loop {
            let left = LOOK.saturating_sub(looked.elapsed());
            let before = self.processes.len();
            if self.commands.wait(left) {
                let jobs = self.gather()?;
                self.carry_out(&jobs)?;
                if jobs.is_over {
                    return Ok(());
                }
            }
            // A new process is listed immediately.
            if looked.elapsed() >= LOOK || self.processes.len() > before {
                looked = Instant::now();
                self.look()?;
            }
            self.renew()?;
            self.look_at_calls()?;
        }
    }

    /// Executes commands about processes, and gathers commands about queues.
    fn gather(&mut self) -> Result<Gathered, Disconnected> {
        let (commands, is_over) = gather(&self.commands);
        let mut jobs = Vec::new();
        for command in commands {
            match command {
                BatchCommand::Do(job) => jobs.push(job),
                BatchCommand::Add(task, process) => self.add(task, process),
                BatchCommand::Remove(task) => self.remove(task)?,
                BatchCommand::Priority(task, priority) => self.set_priority(task, priority)?,
                BatchCommand::QueuePriority(task, queue, priority) => {
                    self.set_queue_priority(task, queue, priority)?;
                }
            }
        }
        Ok(Gathered::new(jobs, is_over))
    }

    fn carry_out(&mut self, jobs: &Gathered) -> Result<(), Disconnected> {
        if !jobs.stops.is_empty() {
            let results = self.preempt(&self.names(&jobs.stops));
            self.answer(&jobs.stops, &results)?;
        }
        if !jobs.resumes.is_empty() {
            let results = self.resume(&self.names(&jobs.resumes));
            self.answer(&jobs.resumes, &results)?;
        }
        Ok(())
    }

    fn answer(
        &self,
        jobs: &[Job],
        results: &BTreeMap<Name, Result<(), Fault>>,
    ) -> Result<(), Disconnected> {
        for job in jobs {
            let result = results.get(&(job.task, job.key.id)).copied();
            let result = result.filter(|_| self.is_named(job.task, job.key));
            let result = result.unwrap_or(Err(Fault::Gone));
            self.reports.send(Report::Event(job.awaited.event(result)))?;
        }
        Ok(())
    }

    fn add(&mut self, task: TaskId, process: ProcessKey) {
        // An earlier controller may have removed the record.
        let _ = self.undo_log.claim(process);
        let batched = BatchProcess {
            process,
            listed: None,
            priority: None,
            own_priorities: BTreeMap::new(),
            is_handed_over: false,
            seen: BTreeMap::new(),
        };
        self.processes.insert(task, batched);
    }

    /// Reverts all changes to a process.
    fn remove(&mut self, task: TaskId) -> Result<(), Disconnected> {
        let names: Vec<Name> = self.held.keys().filter(|name| name.0 == task).copied().collect();
        self.resume(&names);
        let Some(batched) = self.processes.remove(&task) else { return Ok(()) };
        self.held.retain(|name, _| name.0 != task);
        let _ = self.reports.send(Report::Solved(batched.process.pid));
        if let Err(problem) = self.undo_log.undo_process(batched.process) {
            self.reports.send(Report::Problem(problem.to_string()))?;
        }
        self.reports.send(Report::Over(task))
    }

    /// Reverts all changes, even if the backend is gone.
    pub(super) fn put_all_back(&mut self) {
        let names: Vec<Name> = self.held.keys().copied().collect();
        self.resume(&names);
        let tasks: Vec<TaskId> = self.processes.keys().copied().collect();
        for task in tasks {
            let _ = self.remove(task);
        }
    }

    /// The queues of jobs, without those whose id was reused.
    fn names(&self, jobs: &[Job]) -> Vec<Name> {
        let current = jobs.iter().filter(|job| self.is_named(job.task, job.key));
        current.map(|job| (job.task, job.key.id)).collect()
    }

    /// The serial number of a queue; 0 if unknown.
    pub(super) fn serial(&self, (task, queue): Name) -> u64 {
        let seen = self.processes.get(&task).and_then(|batched| batched.seen.get(&queue));
        seen.map_or(0, |seen| seen.serial)
    }

    /// Whether the queue with this id is still the same.
    pub(super) fn is_named(&self, task: TaskId, name: QueueKey) -> bool {
        let seen = self.processes.get(&task).and_then(|batched| batched.seen.get(&name.id));
        seen.is_some_and(|seen| seen.generation == name.generation)
    }

    pub(super) fn may_act(&self) -> bool {
        self.instance.patched_calls == PatchedCalls::Usable
    }
}
