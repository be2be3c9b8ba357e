//! NVIDIA devices as the scheduler's loop sees them.
//!
//! A queue is a context: its compute group, and the copy groups that are stopped with it. Control
//! calls take up to a millisecond, so each device has a worker thread that makes them, one after
//! the other; what comes of them arrives as events. Before a worker changes anything it writes the
//! journal. A scout notices contexts that appear later; they get the class of their process.

mod adoption;
mod holds;
mod target;
mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::Receiver;

use gpreempt_core::backend::Backend;
use gpreempt_core::backend::Command;
use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::event::{Event, Fault, SchedAttr};
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;

use super::abi::control::subdevice::PreemptionMode;
use super::node::HeldProcess;
use super::scout::{Scout, Sighting};
use super::survey::GpuProcess;
use crate::controller::{
    AdoptError, Controller, Note, Numbering, Reporter, UnadoptedProcesses, Waker,
};
use crate::ledger::Ledger;
use crate::process::ProcessKey;
use holds::Holds;
use target::{Target, targets};
use worker::{Report, Worker};

/// What a stop and a resume cost, and how long a ring must be quiet: measured on an H200. The quiet
/// time is longer than a switch, because what was fetched may still wait for one.
const CAPABILITIES: Capabilities = Capabilities {
    mechanism: Mechanism::Slice,
    level: PreemptLevel::Interrupt,
    preempt_cost: Duration::from_micros(800),
    resume_cost: Duration::from_micros(500),
    quiet: Duration::from_millis(2),
    // If the driver is one with which that was tried: see `enable_holds`.
    hold: false,
    hardware_priority: false,
};

/// What can be wished for a process beside its priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Where in a kernel it may be taken off.
    pub mode: Option<PreemptionMode>,
    /// How often its turn comes, as the driver counts.
    pub interleave: Option<u32>,
}

/// Devices, and the processes that were attached.
#[derive(Debug)]
pub struct NvidiaBackend {
    devices: Vec<Device>,
    tasks: BTreeMap<TaskId, Attached>,
    queues: BTreeMap<QueueId, Target>,
    others: Option<TaskId>,
    events: VecDeque<Event>,
    notes: VecDeque<Note>,
    incoming: Receiver<Report>,
    reports: Reporter<Report>,
    ledger: Ledger,
    scout: Scout,
    numbering: Numbering,
    next_others: u64,
    /// What was seen of processes that appeared and nobody has adopted yet.
    appeared: BTreeMap<ProcessKey, GpuProcess>,
    holds: Option<Holds>,
    /// What adopted processes get beside their priority.
    wishes: Wishes,
}

#[derive(Debug)]
struct Device {
    uuid: String,
    worker: Worker,
}

/// A process with a priority.
#[derive(Debug)]
struct Attached {
    key: ProcessKey,
    held: HeldProcess,
    wishes: Wishes,
}

impl NvidiaBackend {
    /// A backend that writes down what it does in that ledger, and wakes its loop when something
    /// has happened.
    ///
    /// # Errors
    /// If there are no more descriptors or threads.
    pub fn new(ledger: Ledger, numbering: Numbering, waker: Waker) -> io::Result<Self> {
        let (reports, incoming) = Reporter::new(waker);
        let sightings = reports.clone();
        let scout = Scout::start(true, move |sighting| {
            let report = match sighting {
                Sighting::Changed(process) => Report::Changed(process),
                Sighting::Appeared(process) => Report::Appeared(process),
            };
            sightings.send(report).is_ok()
        })?;
        Ok(Self {
            devices: Vec::new(),
            tasks: BTreeMap::new(),
            queues: BTreeMap::new(),
            others: None,
            events: VecDeque::new(),
            notes: VecDeque::new(),
            incoming,
            reports,
            ledger,
            scout,
            numbering,
            next_others: u64::MAX,
            appeared: BTreeMap::new(),
            holds: None,
            wishes: Wishes::default(),
        })
    }

    /// What processes that are adopted from now on get beside their priority.
    pub const fn set_wishes(&mut self, wishes: Wishes) {
        self.wishes = wishes;
    }

    /// Takes a process in that was looked at already. If it has nothing on a GPU yet, what it makes
    /// later is scheduled.
    ///
    /// # Errors
    /// If it cannot be looked into or has ended.
    pub fn adopt_seen(
        &mut self,
        task: TaskId,
        process: &GpuProcess,
        wishes: Wishes,
    ) -> Result<(), AdoptError> {
        let clients = process.clients.as_ref();
        let clients = clients.map_err(|error| AdoptError::Unseen(error.to_string()))?;
        self.hold(task, process.info.key, wishes)?;
        self.regroup(task, process);
        self.scout.watch(process.info.key, clients.clone());
        Ok(())
    }

    fn hold(&mut self, task: TaskId, key: ProcessKey, wishes: Wishes) -> Result<(), AdoptError> {
        let held = HeldProcess::open(key.pid);
        let held = held.map_err(|error| AdoptError::Unreachable(key, error))?;
        key.check()?;
        self.ledger.claim(key)?;
        self.tasks.insert(task, Attached { key, held, wishes });
        Ok(())
    }

    /// The process and the compute group a queue stands for.
    pub fn group_of(&self, queue: QueueId) -> Option<(ProcessKey, u32)> {
        self.queues.get(&queue)?.group()
    }

    fn device(&mut self, uuid: &str) -> usize {
        if let Some(known) = self.devices.iter().position(|device| device.uuid == uuid) {
            return known;
        }
        let index = self.devices.len();
        let worker = Worker::start(uuid.to_owned(), self.ledger.clone(), self.reports.clone());
        self.devices.push(Device { uuid: uuid.to_owned(), worker });
        let capabilities = Capabilities { hold: self.holds.is_some(), ..CAPABILITIES };
        let device = self.numbering.device(index);
        self.events.push_back(Event::DeviceAppeared { device, capabilities });
        if let Some(task) = self.others {
            self.add_queue(task, index, Target::Others(task));
        }
        index
    }

    fn add_queue(&mut self, task: TaskId, device: usize, target: Target) -> QueueId {
        let queue = self.numbering.queue();
        self.queues.insert(queue, target);
        let device = self.numbering.device(device);
        self.events.push_back(Event::QueueAppeared { queue, task, device, stopped: false });
        queue
    }

    /// Takes in what a process has on its GPUs now. Returns how many contexts appeared and
    /// vanished.
    fn regroup(&mut self, task: TaskId, process: &GpuProcess) -> (usize, usize) {
        let mut found = targets(task, process);
        let gone: Vec<QueueId> = self
            .queues
            .iter()
            .filter(|(_, known)| known.is_of(task))
            .filter(|(_, known)| !found.iter().any(|(_, fresh)| fresh.is_same_as(known)))
            .map(|(queue, _)| *queue)
            .collect();
        for queue in &gone {
            self.vanish(*queue);
        }
        let mut moved = Vec::new();
        found.retain(|(_, fresh)| {
            let known = self.queues.iter_mut().find(|(_, known)| known.is_same_as(fresh));
            let Some((queue, known)) = known else { return true };
            if !known.has_rings_of(fresh) {
                moved.push(*queue);
            }
            for (device, job) in known.catch_up(*queue, fresh) {
                self.devices[device].worker.give(job);
            }
            false
        });
        for queue in moved {
            self.renew_hold(queue);
        }
        let appeared = found.len();
        for (uuid, mut target) in found {
            let device = self.device(&uuid);
            target.set_device(device);
            let wishes = self.tasks.get(&task).map(|attached| attached.wishes);
            let jobs = target.first_jobs(wishes.unwrap_or_default());
            let queue = self.add_queue(task, device, target);
            let rings = self.queues.get(&queue).and_then(|target| target.rings_job(queue));
            for job in jobs.into_iter().chain(rings) {
                self.devices[device].worker.give(job);
            }
        }
        (appeared, gone.len())
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.incoming.try_recv() {
            match report {
                Report::Event(event) => {
                    if let Event::PreemptFailed { queue, .. } | Event::ResumeFailed { queue, .. } =
                        event
                        && let Some(target) = self.queues.get_mut(&queue)
                    {
                        target.take_failure(matches!(event, Event::ResumeFailed { .. }));
                    }
                    self.events.push_back(event);
                    if let Event::PreemptFailed { queue, fault: Fault::Gone }
                    | Event::ResumeFailed { queue, fault: Fault::Gone } = event
                    {
                        self.take_absence(queue);
                    }
                }
                Report::Problem(problem) => self.notes.push_back(Note::Problem(problem)),
                Report::Stopped(queue, counts) => {
                    if let Some(target) = self.queues.get_mut(&queue) {
                        target.take_stop(counts);
                    }
                }
                Report::Checked(queue, counts) => {
                    if let Some(target) = self.queues.get_mut(&queue) {
                        target.take_check(counts);
                    }
                }
                Report::Hold(place, added) => self.take_hold(place, added),
                Report::Noticed(queue, notice) => self.take_notice(queue, notice),
                Report::Rings(queue, rings) => {
                    if let Some(target) = self.queues.get_mut(&queue) {
                        target.set_rings(*rings);
                    }
                }
                Report::Changed(process) => self.take_change(&process),
                Report::Appeared(process) => {
                    let key = process.info.key;
                    if !self.tasks.values().any(|attached| attached.key == key) {
                        self.appeared.retain(|key, _| key.check().is_ok());
                        self.appeared.insert(key, *process);
                        self.notes.push_back(Note::Appeared(key));
                    }
                }
            }
        }
        let ended: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, attached)| attached.held.has_ended())
            .map(|(task, _)| *task)
            .collect();
        for task in ended {
            self.release(task);
            self.notes.push_back(Note::Ended(task));
        }
    }

    /// A worker found that a context is gone. If its process lives, it may have made another one
    /// with the same names, so the scout looks at the process as if for the first time.
    fn take_absence(&mut self, queue: QueueId) {
        let Some((key, _)) = self.group_of(queue) else { return };
        self.vanish(queue);
        if self.tasks.values().any(|attached| attached.key == key && !attached.held.has_ended()) {
            self.scout.watch(key, Vec::new());
        }
    }

    /// Forgets a queue and reports that it vanished.
    fn vanish(&mut self, queue: QueueId) {
        self.drop_hold(queue);
        // If it was only overlooked, it must not stay as it is.
        let last = self.queues.remove(&queue).map(|target| target.last_jobs());
        for (device, job) in last.unwrap_or_default() {
            self.devices[device].worker.give(job);
        }
        self.events.push_back(Event::QueueVanished { queue });
    }

    fn take_change(&mut self, process: &GpuProcess) {
        let key = process.info.key;
        let task = self.tasks.iter().find(|(_, attached)| attached.key == key);
        let Some((&task, _)) = task else { return };
        let (appeared, vanished) = self.regroup(task, process);
        self.check_holds(task, process);
        if appeared + vanished > 0 {
            self.notes.push_back(Note::Regrouped { task, appeared, vanished });
        }
    }
}

impl UnadoptedProcesses for NvidiaBackend {
    /// They are taken to be busy and are never touched.
    fn set_others(&mut self, priority: Option<Priority>) {
        if let Some(task) = self.others.take() {
            self.events.push_back(Event::TaskVanished { task });
            self.queues.retain(|_, target| !target.is_of(task));
        }
        let Some(priority) = priority else { return };
        let task = TaskId(self.next_others);
        self.next_others -= 1;
        self.others = Some(task);
        let attr = SchedAttr { priority, ..SchedAttr::default() };
        self.events.push_back(Event::TaskAppeared { task, attr });
        for device in 0..self.devices.len() {
            self.add_queue(task, device, Target::Others(task));
        }
    }
}

impl Backend for NvidiaBackend {
    fn submit(&mut self, command: Command) {
        let queue = command.queue();
        // Nobody asked us to touch the others, and of what went away nothing can run any more:
        // what is not done is done at once.
        let (job, at_once) = match (command, self.queues.get_mut(&queue)) {
            (Command::Preempt { .. }, target) => {
                (target.and_then(|target| target.stop(queue)), Some(Event::Preempted { queue }))
            }
            (Command::Resume { .. }, target) => {
                (target.and_then(|target| target.resume(queue)), Some(Event::Resumed { queue }))
            }
            (Command::SetSlice { slice, .. }, target) => {
                let slice_us = slice.map(|slice| slice.as_micros().max(1));
                (target.and_then(|target| target.set_slice(slice_us)), None)
            }
            (Command::PermitHold { .. }, _) => return self.permit_hold(queue),
            (Command::ForbidHold { .. }, _) => return self.forbid_hold(queue),
            (Command::SetHardwarePriority { .. }, _) => return,
        };
        match job {
            Some((device, job)) => self.devices[device].worker.give(job),
            None => self.events.extend(at_once),
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        let target = self.queues.get_mut(&queue)?;
        if let Some((device, job)) = target.check(queue) {
            self.devices[device].worker.give(job);
        }
        target.observe()
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.take_reports();
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests;
