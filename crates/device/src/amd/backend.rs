//! AMD devices as the scheduler's loop sees them.
//!
//! A queue is a queue for kernels of an adopted process; those for copies are left alone. Each
//! process has a worker thread with its session. Nothing is written in the journal, because there
//! is nothing to undo: when we die, the kernel resumes what we suspended.

mod report;
mod scout;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use gpreempt_core::backend::Backend;
use gpreempt_core::capability::{Capabilities, Level, Mechanism};
use gpreempt_core::command::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;

use super::abi::trap::QueueEntry;
use super::activity::Memory;
use super::door::Door;
use super::probe::Places;
use super::queue::{Kind, queues_of};
use super::topology::{Gfx, Topology};
use crate::controller::{Awaited, Controller, DeviceName, Note, Numbering, Reporter, Waker};
use crate::process::ProcessKey;
use report::Report;
use scout::Scout;
use worker::{Job, Worker};

/// The AMD devices of this machine, and the processes on them that were adopted.
#[derive(Debug)]
pub struct AmdBackend {
    door: Arc<dyn Door>,
    places: Places,
    devices: Vec<Device>,
    tasks: BTreeMap<TaskId, Adopted>,
    queues: BTreeMap<QueueId, Target>,
    users: Vec<ProcessKey>,
    /// Workers of tasks that were released, until they have ended.
    leaving: Vec<Worker>,
    events: VecDeque<Event>,
    notes: VecDeque<Note>,
    incoming: Receiver<Report>,
    reports: Reporter<Report>,
    numbering: Numbering,
    scout: Scout,
}

#[derive(Debug)]
struct Device {
    gpu_id: u32,
    uuid: String,
}

/// A process with a task. It has a worker as soon as it uses KFD.
#[derive(Debug)]
struct Adopted {
    process: ProcessKey,
    worker: Option<Worker>,
    memory: Option<Memory>,
}

/// A queue.
#[derive(Debug)]
struct Target {
    task: TaskId,
    entry: QueueEntry,
}

impl AmdBackend {
    /// A backend for the devices behind a door. It wakes its loop when something has happened.
    ///
    /// # Errors
    /// If the devices are not shown, or there are no more descriptors or threads.
    pub fn new(
        door: Arc<dyn Door>,
        places: Places,
        numbering: Numbering,
        waker: Waker,
    ) -> io::Result<Self> {
        let topology = Topology::read(&places.sysfs)?;
        let (mut devices, mut events) = (Vec::new(), VecDeque::new());
        for (index, node) in topology.devices().enumerate() {
            let (device, capabilities) = (numbering.device(index), capabilities(node.gfx));
            events.push_back(Event::DeviceAppeared { device, capabilities });
            devices.push(Device { gpu_id: node.gpu_id, uuid: node.uuid() });
        }
        let (reports, incoming) = Reporter::new(waker);
        let scout = Scout::start(places.sysfs.clone(), reports.clone())?;
        Ok(Self {
            door,
            places,
            devices,
            tasks: BTreeMap::new(),
            queues: BTreeMap::new(),
            users: Vec::new(),
            leaving: Vec::new(),
            events,
            notes: VecDeque::new(),
            incoming,
            reports,
            numbering,
            scout,
        })
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.incoming.try_recv() {
            match report {
                Report::Event(event) => self.events.push_back(event),
                Report::Problem(problem) => self.notes.push_back(Note::Problem(problem)),
                Report::Users(users) => self.take_users(users),
                Report::Queues { task, queues, fresh } => self.take_queues(task, &queues, fresh),
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
                None => self.notes.push_back(Note::Appeared(*process)),
            }
        }
        let left = self.users.iter().filter(|process| !users.contains(process));
        let ended: Vec<TaskId> = left.filter_map(|process| self.task_of(*process)).collect();
        self.users = users;
        for task in ended {
            self.release(task);
            self.notes.push_back(Note::Ended(task));
        }
    }

    /// Begins a session with the process of a task.
    fn begin(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        let pid = adopted.process.pid;
        adopted.memory = Memory::open(pid).ok();
        // Opened before it was made sure: from here on it leads to nobody else.
        if adopted.process.check().is_err() {
            return;
        }
        match Worker::start(self.door.clone(), task, pid, self.reports.clone()) {
            Ok(worker) => adopted.worker = Some(worker),
            Err(error) => {
                let problem = format!("process {pid} cannot be controlled: {error}");
                self.notes.push_back(Note::Problem(problem));
            }
        }
    }

    fn take_queues(&mut self, task: TaskId, entries: &[QueueEntry], fresh: bool) {
        if !self.tasks.contains_key(&task) {
            return;
        }
        let is_kept =
            |target: &Target| !fresh && entries.iter().any(|entry| is_same(&target.entry, entry));
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let gone: Vec<QueueId> =
            own.filter(|(_, target)| !is_kept(target)).map(|(queue, _)| *queue).collect();
        let vanished = self.forget(&gone);
        let mut appeared = 0;
        for entry in entries {
            let is_known = self
                .queues
                .values()
                .any(|target| target.task == task && is_same(&target.entry, entry));
            let at = self.devices.iter().position(|device| device.gpu_id == entry.gpu_id);
            let (false, Kind::Compute, Some(at)) =
                (is_known, Kind::of_snapshot(entry.queue_type), at)
            else {
                continue;
            };
            let (queue, device) = (self.numbering.queue(), self.numbering.device(at));
            self.queues.insert(queue, Target { task, entry: *entry });
            self.events.push_back(Event::QueueAppeared { queue, task, device, stopped: false });
            appeared += 1;
        }
        if appeared + vanished > 0 {
            self.notes.push_back(Note::Regrouped { task, appeared, vanished });
        }
    }

    /// Says that queues are gone. Returns how many.
    fn forget(&mut self, gone: &[QueueId]) -> usize {
        for queue in gone {
            self.queues.remove(queue);
            self.events.push_back(Event::QueueVanished { queue: *queue });
        }
        gone.len()
    }

    /// A session is over, because its process has ended or could not be controlled.
    fn take_end(&mut self, task: TaskId) {
        let gone = self.queues_of(task);
        self.forget(&gone);
        if let Some(adopted) = self.tasks.get_mut(&task) {
            self.leaving.extend(adopted.worker.take());
            self.leaving.retain(|worker| !worker.has_ended());
        }
    }

    fn task_of(&self, process: ProcessKey) -> Option<TaskId> {
        self.tasks.iter().find(|(_, adopted)| adopted.process == process).map(|(task, _)| *task)
    }

    /// Passes a command on, if there is anybody to carry it out.
    fn give(&self, queue: QueueId, awaited: Awaited) -> bool {
        let Some(target) = self.queues.get(&queue) else { return false };
        let worker = self.tasks.get(&target.task).and_then(|adopted| adopted.worker.as_ref());
        let job = Job { queue: target.entry.queue_id, awaited };
        worker.is_some_and(|worker| worker.give(job))
    }
}

/// What a stop and a resume cost. Nobody has measured it: these are guesses, higher where a call
/// moves every queue of the device.
const fn capabilities(gfx: Gfx) -> Capabilities {
    let cost = if gfx.moves_single_queues() { 300 } else { 1000 };
    Capabilities {
        mechanism: if gfx.knows_debuggers() { Mechanism::Stop } else { Mechanism::Watch },
        level: Level::Switch,
        preempt_cost: Duration::from_micros(cost),
        resume_cost: Duration::from_micros(cost),
        // What was fetched may still run.
        quiet: Duration::from_millis(2),
        hold: false,
        hardware_priority: false,
    }
}

/// Whether two entries are of one queue: names are given again.
fn is_same(one: &QueueEntry, other: &QueueEntry) -> bool {
    let key = |entry: &QueueEntry| (entry.queue_id, entry.gpu_id, entry.ring_base);
    key(one) == key(other)
}

impl Backend for AmdBackend {
    fn submit(&mut self, command: Command) {
        let queue = command.queue();
        // Of what went away nothing can run any more: what is not done is done at once.
        let (awaited, otherwise) = match command {
            Command::Preempt { .. } => (Awaited::Preempt(queue), Event::Preempted { queue }),
            Command::Resume { .. } => (Awaited::Resume(queue), Event::Resumed { queue }),
            Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::SetHardwarePriority { .. } => return,
        };
        if !self.give(queue, awaited) {
            self.events.push_back(otherwise);
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        let target = self.queues.get(&queue)?;
        self.tasks.get(&target.task)?.memory.as_ref()?.observe(&target.entry)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.take_reports();
        self.events.pop_front()
    }
}

impl Controller for AmdBackend {
    fn kind(&self) -> &'static str {
        "amd"
    }

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), String> {
        if self.tasks.contains_key(&task) || self.task_of(process).is_some() {
            return Err(format!("process {process} is adopted already"));
        }
        process.check().map_err(|error| error.to_string())?;
        self.tasks.insert(task, Adopted { process, worker: None, memory: None });
        self.notes.retain(|note| *note != Note::Appeared(process));
        // A session with a process that does not use KFD would make it use KFD.
        if self.users.contains(&process) {
            self.begin(task);
        }
        Ok(())
    }

    fn release(&mut self, task: TaskId) {
        let Some(mut adopted) = self.tasks.remove(&task) else { return };
        self.queues.retain(|_, target| target.task != task);
        if let Some(mut worker) = adopted.worker.take() {
            worker.end();
            self.leaving.push(worker);
        }
    }

    fn users(&mut self) -> Vec<ProcessKey> {
        self.take_reports();
        let users: BTreeSet<ProcessKey> = self.users.iter().copied().collect();
        self.notes.retain(|note| !matches!(note, Note::Appeared(key) if users.contains(key)));
        users.into_iter().collect()
    }

    fn devices(&self) -> Vec<DeviceName> {
        let name = |(index, device): (usize, &Device)| DeviceName {
            id: self.numbering.device(index),
            uuid: device.uuid.clone(),
        };
        self.devices.iter().enumerate().map(name).collect()
    }

    fn queues_of(&self, task: TaskId) -> Vec<QueueId> {
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        own.map(|(queue, _)| *queue).collect()
    }

    fn uuids_of(&self, process: ProcessKey) -> Vec<String> {
        let queues = queues_of(&self.places.sysfs, process.pid).unwrap_or_default();
        let used = |device: &&Device| queues.iter().any(|queue| queue.gpu_id == device.gpu_id);
        self.devices.iter().filter(used).map(|device| device.uuid.clone()).collect()
    }

    fn set_rescan(&mut self, every: std::time::Duration) {
        self.scout.set_every(every);
    }

    fn poll_note(&mut self) -> Option<Note> {
        self.take_reports();
        self.notes.pop_front()
    }

    fn release_all(&mut self) -> Result<(), String> {
        self.scout.stop();
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.release(task));
        self.leaving.iter_mut().for_each(Worker::join);
        self.leaving.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
