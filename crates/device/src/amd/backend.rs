//! The AMD backend of the scheduler loop.
//!
//! A schedulable queue is a compute queue of an adopted process; copy queues are never touched. On
//! a stock kernel each process has a worker thread with a debug session; on a patched KFD one
//! thread controls all processes (`kfd_batch`). Neither needs a journal record beyond the process
//! itself, because the kernel resumes every suspended queue when this program dies. A process for
//! which no session is possible is paused as a whole, which is recorded in the journal first.

mod debug_session_loop;
mod job;
mod kfd_batch;
mod method_switch;
mod mqd_cache;
mod process_control;
mod process_pause;
mod process_watcher;
mod report;
mod ring_reader;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::Receiver;

use gpreempt_core::backend::{Backend, Capabilities, Command, Mechanism, PreemptLevel};
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;
use job::Job;
use kfd_batch::{BatchCommand, KfdBatch};
use mqd_cache::MqdCache;
use process_watcher::ProcessWatcher;
use report::{Report, StopUnit};
use ring_reader::{ReadingRound, RingReader};
use worker::Worker;

use super::abi::version::Version;
use super::kfd_instance::KfdInstance;
use super::stop_method::{PatchedCalls, StopMethodChoice};
use super::topology::{Gfx, Topology};
use crate::controller::{
    ControlLimit, Controller, ControllerReport, Numbering, PendingCompletion, Reporter, Waker,
};
use crate::process::ProcessKey;
use crate::undo_log::UndoLog;

#[derive(Debug)]
pub struct AmdBackend {
    instance: KfdInstance,
    undo_log: UndoLog,
    mqds: MqdCache,
    devices: Vec<Device>,
    tasks: BTreeMap<TaskId, AdoptedProcess>,
    queues: BTreeMap<QueueId, QueueState>,
    readers: BTreeMap<ProcessKey, RingReader>,
    round: ReadingRound,
    users: Vec<ProcessKey>,
    /// Workers of released tasks, until they have ended.
    leaving: Vec<(ProcessKey, Worker)>,
    events: VecDeque<Event>,
    notes: VecDeque<ControllerReport>,
    incoming: Receiver<Report>,
    reports: Reporter<Report>,
    numbering: Numbering,
    watcher: ProcessWatcher,
    /// Controls all processes on a patched KFD.
    batch: Option<KfdBatch>,
    /// Whether the in-kernel scheduler decides which queues run.
    is_externally_scheduled: bool,
    /// The problem to report while debugfs has no list of all queues.
    unlisted: Option<String>,
    /// The stop method without and with the in-kernel scheduler.
    methods: [StopMethodChoice; 2],
}

#[derive(Debug)]
struct Device {
    gpu_id: u32,
    uuid: String,
    cost: Duration,
    /// How many calls it takes to stop all processes except one.
    calls: u64,
}

/// A process with a task. It has a worker as soon as it uses KFD.
#[derive(Debug)]
struct AdoptedProcess {
    process: ProcessKey,
    worker: Option<Worker>,
    limit: Option<ControlLimit>,
    /// Whether `KfdBatch` controls it instead of a worker.
    in_batch: bool,
    /// Whether its controller is reverting its changes, so that the other one can start.
    is_moving: bool,
    priority: Option<Priority>,
}

#[derive(Debug)]
struct QueueState {
    task: TaskId,
    listed: StopUnit,
}

impl AmdBackend {
    /// Starts a backend for the devices of a KFD. It records changes in `undo_log` and wakes the
    /// loop when an event is ready.
    pub fn new(
        instance: KfdInstance,
        undo_log: UndoLog,
        numbering: Numbering,
        waker: Waker,
    ) -> io::Result<Self> {
        let topology = Topology::read(&instance.paths.sysfs)?;
        let (mut devices, mut events) = (Vec::new(), VecDeque::new());
        for (index, node) in topology.devices().enumerate() {
            let device = numbering.device(index);
            let capabilities = capabilities(&instance, node.gfx);
            events.push_back(Event::DeviceAppeared { device, capabilities });
            let cost = capabilities.preempt_cost;
            devices.push(Device { gpu_id: node.gpu_id, uuid: node.uuid(), cost, calls: 1 });
        }
        let (reports, incoming) = Reporter::new(waker);
        let watcher = ProcessWatcher::start(instance.clone(), reports.clone())?;
        let is_externally_scheduled =
            instance.patched_calls != PatchedCalls::Absent && instance.kernel_schedules();
        let batch = match instance.patched_calls {
            PatchedCalls::Absent => None,
            PatchedCalls::Denied | PatchedCalls::Usable => {
                let (instance, undo_log, reports) =
                    (instance.clone(), undo_log.clone(), reports.clone());
                Some(KfdBatch::start(instance, undo_log, reports, is_externally_scheduled)?)
            }
        };
        let methods = [false, true].map(|schedules| instance.stop_method_if(schedules));
        let mqds = MqdCache::of(instance.paths.debugfs.join("mqds"));
        let mut new = Self {
            instance,
            undo_log,
            mqds,
            devices,
            tasks: BTreeMap::new(),
            queues: BTreeMap::new(),
            readers: BTreeMap::new(),
            round: ReadingRound::new(),
            users: Vec::new(),
            leaving: Vec::new(),
            events,
            notes: VecDeque::new(),
            incoming,
            reports,
            numbering,
            watcher,
            batch,
            is_externally_scheduled: false,
            unlisted: None,
            methods,
        };
        if is_externally_scheduled {
            new.set_externally_scheduled(true);
        }
        Ok(new)
    }

    pub fn process_of(&self, queue: QueueId) -> Option<ProcessKey> {
        let target = self.queues.get(&queue)?;
        self.tasks.get(&target.task).map(|adopted| adopted.process)
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.incoming.try_recv() {
            match report {
                Report::Event(event) => self.events.push_back(event),
                Report::Problem(problem) => {
                    self.notes.push_back(ControllerReport::Problem(problem))
                }
                Report::Resolved(sentence) => {
                    self.notes.push_back(ControllerReport::Solved(sentence))
                }
                Report::Solved(pid) => {
                    // The two forms in which messages about a process begin.
                    for beginning in [format!("process {pid} "), format!("process {pid}:")] {
                        self.notes.push_back(ControllerReport::Solved(beginning));
                    }
                }
                Report::Users(users) => self.take_users(users),
                Report::Queues { task, queues, fresh } => self.take_queues(task, queues, fresh),
                Report::ControlLimit(task, limit) => {
                    if let Some(adopted) = self.tasks.get_mut(&task) {
                        adopted.limit = limit;
                    }
                }
                Report::KernelSchedules(schedules) => self.set_externally_scheduled(schedules),
                Report::PatchedCalls(patched_calls) => self.set_patched_calls(patched_calls),
                Report::Unlisted(sentence) => self.set_unlisted(sentence),
                Report::Rings(process) => self.take_readings(process),
                Report::Over(task) => self.take_end(task),
            }
        }
    }

    fn take_users(&mut self, users: Vec<ProcessKey>) {
        for process in &users {
            if self.users.contains(process) {
                continue;
            }
            match self.task_of(*process) {
                Some(task) => self.begin(task),
                None => self.notes.push_back(ControllerReport::Appeared(*process)),
            }
        }
        let left = self.users.iter().filter(|process| !users.contains(process));
        let ended: Vec<TaskId> = left.filter_map(|process| self.task_of(*process)).collect();
        self.users = users;
        for task in ended {
            self.let_go(task);
            self.notes.push_back(ControllerReport::Ended(task));
        }
    }

    fn take_queues(&mut self, task: TaskId, queues: Vec<StopUnit>, fresh: bool) {
        if !self.tasks.contains_key(&task) {
            return;
        }
        let is_kept = |target: &QueueState| {
            !fresh && queues.iter().any(|listed| target.listed.is_same(listed))
        };
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let gone: Vec<QueueId> =
            own.filter(|(_, target)| !is_kept(target)).map(|(queue, _)| *queue).collect();
        let vanished = self.forget(&gone);
        let mut appeared = 0;
        for listed in queues {
            let known = self
                .queues
                .values_mut()
                .find(|target| target.task == task && target.listed.is_same(&listed));
            if let Some(target) = known {
                target.listed = listed;
                continue;
            }
            let gpu_id = listed.entry.gpu_id;
            let Some(at) = self.devices.iter().position(|device| device.gpu_id == gpu_id) else {
                continue;
            };
            let (queue, device) = (self.numbering.queue(), self.numbering.device(at));
            self.queues.insert(queue, QueueState { task, listed });
            self.events.push_back(Event::QueueAppeared { queue, task, device, stopped: false });
            appeared += 1;
        }
        self.aim_reader(task);
        if appeared + vanished > 0 {
            self.notes.push_back(ControllerReport::QueuesChanged { task, appeared, vanished });
            self.judge_costs();
        }
    }

    /// Reports the cost of stopping all processes except one: one call per process, which the
    /// kernel executes one after the other.
    fn judge_costs(&mut self) {
        for index in 0..self.devices.len() {
            let device = &mut self.devices[index];
            let here = |target: &&QueueState| target.listed.entry.gpu_id == device.gpu_id;
            let tasks: BTreeSet<TaskId> =
                self.queues.values().filter(here).map(|target| target.task).collect();
            let calls = u64::try_from(tasks.len().saturating_sub(1)).unwrap_or(u64::MAX).max(1);
            // A patched KFD stops all of them in one call.
            let calls = if self.instance.patched_calls == PatchedCalls::Usable { 1 } else { calls };
            if device.calls == calls {
                continue;
            }
            device.calls = calls;
            let cost = device.cost.times(calls);
            self.events.push_back(Event::DeviceCost {
                device: self.numbering.device(index),
                preempt_cost: cost,
                resume_cost: cost,
            });
        }
    }

    /// Reports that queues are gone, and returns how many.
    fn forget(&mut self, gone: &[QueueId]) -> usize {
        for queue in gone {
            self.queues.remove(queue);
            self.events.push_back(Event::QueueVanished { queue: *queue });
        }
        gone.len()
    }

    /// The controller of a process has ended: the process has ended, or its stop method changes.
    fn take_end(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        let is_moving = std::mem::take(&mut adopted.is_moving);
        if adopted.worker.is_none() && !is_moving {
            return;
        }
        let (process, worker) = (adopted.process, adopted.worker.take());
        self.leaving.extend(worker.map(|worker| (process, worker)));
        self.forget(&self.queues_of(task));
        self.aim_reader(task);
        self.judge_costs();
        self.leaving.retain(|(_, worker)| !worker.has_ended());
        if is_moving {
            self.begin(task);
        }
    }

    fn task_of(&self, process: ProcessKey) -> Option<TaskId> {
        self.tasks.iter().find(|(_, adopted)| adopted.process == process).map(|(task, _)| *task)
    }

    /// Passes a command to the controller of the queue. Returns whether there is one.
    fn give(&self, queue: QueueId, awaited: PendingCompletion) -> bool {
        let Some(target) = self.queues.get(&queue) else { return false };
        let adopted = self.tasks.get(&target.task);
        let listed = &target.listed;
        let (task, gpu_id) = (target.task, listed.entry.gpu_id);
        let job = Job { task, key: listed.key(), gpu_id, awaited };
        if adopted.is_some_and(|adopted| adopted.in_batch) {
            return self.batch.as_ref().is_some_and(|batch| batch.send(BatchCommand::Do(job)));
        }
        let worker = adopted.and_then(|adopted| adopted.worker.as_ref());
        worker.is_some_and(|worker| worker.give(job))
    }
}

/// The costs of a stop and a resume are estimates that no measurement backs, higher where a call
/// remaps every queue of the device.
fn capabilities(instance: &KfdInstance, gfx: Gfx) -> Capabilities {
    let cost = if gfx.moves_single_queues() { 300 } else { 1000 };
    Capabilities {
        mechanism: mechanism(instance, gfx),
        level: PreemptLevel::Interrupt,
        preempt_cost: Duration::from_micros(cost),
        resume_cost: Duration::from_micros(cost),
        // A fetched packet may still run.
        quiet: Duration::from_millis(2),
        hold: false,
        hardware_priority: false,
    }
}

fn mechanism(instance: &KfdInstance, gfx: Gfx) -> Mechanism {
    let abilities = instance.kfd.version().map(Version::abilities);
    let can_suspend = abilities.is_ok_and(|can| can.suspend) && gfx.knows_debuggers();
    let can_pause = abilities.is_ok_and(|can| can.pause) && instance.privileges.may_checkpoint();
    let can_call = instance.patched_calls == PatchedCalls::Usable;
    if can_call || can_suspend || can_pause { Mechanism::Stop } else { Mechanism::ObserveOnly }
}

/// The view of a ring that cannot be read: the queue counts as busy all the time.
const BUSY: RingView = RingView { put: 1, get: 0, running: Some(true) };

impl Backend for AmdBackend {
    fn submit(&mut self, command: Command) {
        let Some(awaited) = PendingCompletion::of(&command) else { return };
        // A queue without a controller is gone and cannot run, so the command succeeds at once.
        if !self.give(command.queue(), awaited) {
            self.events.push_back(awaited.event(Ok(())));
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        self.look_at(queue)
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(batch) = &self.batch {
            batch.beat();
        }
        self.take_reports();
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests;
