//! Emulated devices as the scheduler's loop sees them.
//!
//! A queue is a queue of the emulator. Control calls take as long as on real devices, so each
//! device has a worker thread that makes them, one after the other; what comes of them arrives as
//! events. Before a worker changes anything it writes the journal. A watcher tells what comes and
//! goes, the emulator included: when that is gone its devices have vanished, and when there is one
//! again they appear.

mod news;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use gpreempt_core::backend::Backend;
use gpreempt_core::backend::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;
use gpreempt_wire::emulator::DeviceInfo;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::name;
use super::report::Report;
use super::target::Target;
use super::watcher::Watcher;
use super::worker::Worker;
use crate::act::{Act, UndoError};
use crate::controller::{
    AdoptError, Controller, DeviceName, Note, NumberedQueues, Numbering, QueueParking, Reporter,
    Waker,
};
use crate::ledger::Ledger;
use crate::process::{ProcessError, ProcessKey};

/// The devices of one emulator, and the processes on them that were adopted.
#[derive(Debug)]
pub struct EmulatedBackend {
    socket: PathBuf,
    /// Which emulator it is, while there is one.
    instance: u64,
    devices: Vec<DeviceInfo>,
    /// For each device one, and some for devices that are gone.
    workers: Vec<Worker>,
    /// Workers that still have to do with an emulator that was lost.
    unsettled: usize,
    /// Connections of processes, by the emulator's numbers.
    clients: BTreeMap<u64, ProcessKey>,
    /// Queues, by the emulator's numbers.
    queues: BTreeMap<u64, Target>,
    /// The emulator's numbers of queues that are adopted.
    numbers: BTreeMap<QueueId, u64>,
    tasks: BTreeMap<TaskId, ProcessKey>,
    events: VecDeque<Event>,
    notes: VecDeque<Note>,
    incoming: Receiver<Report>,
    reports: Reporter<Report>,
    ledger: Ledger,
    numbering: Numbering,
    watcher: Watcher,
}

impl EmulatedBackend {
    /// A backend for the emulator that listens at `socket`, now or later. It writes down what it
    /// does in that ledger, and wakes its loop when something has happened.
    ///
    /// # Errors
    /// If there are no more descriptors or threads.
    pub fn new(
        socket: PathBuf,
        ledger: Ledger,
        numbering: Numbering,
        waker: Waker,
    ) -> io::Result<Self> {
        let (reports, incoming) = Reporter::new(waker);
        let watcher = Watcher::start(socket.clone(), reports.clone())?;
        Ok(Self {
            socket,
            instance: 0,
            devices: Vec::new(),
            workers: Vec::new(),
            unsettled: 0,
            clients: BTreeMap::new(),
            queues: BTreeMap::new(),
            numbers: BTreeMap::new(),
            tasks: BTreeMap::new(),
            events: VecDeque::new(),
            notes: VecDeque::new(),
            incoming,
            reports,
            ledger,
            numbering,
            watcher,
        })
    }

    /// The process a queue belongs to.
    pub fn process_of(&self, queue: QueueId) -> Option<ProcessKey> {
        self.numbers.get(&queue).and_then(|number| self.queues.get(number)).map(Target::process)
    }

    /// A queue of an adopted process is for the scheduler.
    fn announce(&mut self, task: TaskId, number: u64) {
        let Some(target) = self.queues.get_mut(&number) else { return };
        let queue = self.numbering.queue();
        self.numbers.insert(queue, number);
        let (stopped, job) = target.adopt(task, queue);
        let index = target.device();
        if let Some(job) = job {
            self.workers[index].give(job);
        }
        let device = self.numbering.device(index);
        self.events.push_back(Event::QueueAppeared { queue, task, device, stopped });
    }

    fn put_back(&self, target: &mut Target) {
        let worker = &self.workers[target.device()];
        target.put_back().into_iter().for_each(|job| worker.give(job));
    }

    fn put_back_all_of(&mut self, task: TaskId) {
        let mut queues = std::mem::take(&mut self.queues);
        for target in queues.values_mut() {
            if let Some((owner, queue)) = target.owner()
                && owner == task
            {
                self.numbers.remove(&queue);
                self.put_back(target);
            }
        }
        self.queues = queues;
    }

    fn task_of(&self, process: ProcessKey) -> Option<TaskId> {
        self.tasks.iter().find(|(_, key)| **key == process).map(|(task, _)| *task)
    }

    fn target(&mut self, queue: QueueId) -> Option<&mut Target> {
        self.queues.get_mut(self.numbers.get(&queue)?)
    }
}

impl Backend for EmulatedBackend {
    fn submit(&mut self, command: Command) {
        let queue = command.queue();
        let Some(target) = self.target(queue) else {
            // Of what went away nothing can run any more: what is not done is done at once.
            match command {
                Command::Preempt { .. } => self.events.push_back(Event::Preempted { queue }),
                Command::Resume { .. } => self.events.push_back(Event::Resumed { queue }),
                Command::SetSlice { .. }
                | Command::PermitHold { .. }
                | Command::ForbidHold { .. }
                | Command::SetHardwarePriority { .. } => {}
            }
            return;
        };
        let job = match command {
            Command::Preempt { .. } => target.stop(queue),
            Command::Resume { .. } => target.resume(queue),
            Command::SetSlice { slice, .. } => target.set_slice(slice),
            Command::PermitHold { .. } => target.set_hold(true),
            Command::ForbidHold { .. } => target.set_hold(false),
            Command::SetHardwarePriority { priority, .. } => target.set_priority(priority),
        };
        let device = target.device();
        self.workers[device].give(job);
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        self.target(queue).map(Target::observe)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.take_reports();
        self.events.pop_front()
    }
}

impl Controller for EmulatedBackend {
    fn kind(&self) -> &'static str {
        "emulated"
    }

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), AdoptError> {
        if self.tasks.contains_key(&task) || self.task_of(process).is_some() {
            return Err(AdoptError::Twice(process));
        }
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(ProcessError::Gone(process.pid))?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| AdoptError::Unreachable(process, errno.into()))?;
        // From here on the number cannot be given to another process.
        process.check()?;
        self.tasks.insert(task, process);
        self.watcher.hold(process, descriptor);
        self.notes.retain(|note| *note != Note::Appeared(process));
        let own = self.queues.iter().filter(|(_, target)| target.process() == process);
        let numbers: Vec<u64> = own.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.announce(task, number));
        Ok(())
    }

    fn release(&mut self, task: TaskId) {
        let Some(process) = self.tasks.remove(&task) else { return };
        self.watcher.forget(process);
        self.put_back_all_of(task);
    }

    fn users(&mut self) -> Vec<ProcessKey> {
        self.take_reports();
        let users: BTreeSet<ProcessKey> = self.clients.values().copied().collect();
        self.notes.retain(|note| !matches!(note, Note::Appeared(key) if users.contains(key)));
        users.into_iter().collect()
    }

    fn devices(&self) -> Vec<DeviceName> {
        let name = |index: usize| DeviceName {
            id: self.numbering.device(index),
            uuid: name::uuid(&self.socket, index),
        };
        (0..self.devices.len()).map(name).collect()
    }

    fn queues_of(&self, task: TaskId) -> Vec<QueueId> {
        let owners = self.queues.values().filter_map(Target::owner);
        owners.filter(|(owner, _)| *owner == task).map(|(_, queue)| queue).collect()
    }

    fn uuids_of(&self, process: ProcessKey) -> Vec<String> {
        let own = self.queues.values().filter(|target| target.process() == process);
        let devices: BTreeSet<usize> = own.map(Target::device).collect();
        devices.into_iter().map(|device| name::uuid(&self.socket, device)).collect()
    }

    fn poll_note(&mut self) -> Option<Note> {
        self.take_reports();
        self.notes.pop_front()
    }

    fn release_all(&mut self) -> Result<(), UndoError> {
        self.watcher.stop();
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.release(task));
        self.workers.iter_mut().for_each(Worker::stop);
        self.ledger.undo_all(|act| matches!(act, Act::Emulated(_)))
    }

    fn numbered_queues(&self) -> Option<&dyn NumberedQueues> {
        Some(self)
    }

    fn parking(&self) -> Option<&dyn QueueParking> {
        Some(self)
    }

    fn parking_mut(&mut self) -> Option<&mut dyn QueueParking> {
        Some(self)
    }
}

impl NumberedQueues for EmulatedBackend {
    fn native(&self, queue: QueueId) -> Option<u64> {
        self.numbers.get(&queue).copied()
    }
}

impl QueueParking for EmulatedBackend {
    fn can_park(&self, queue: QueueId) -> bool {
        self.numbers.contains_key(&queue)
    }

    fn park(&mut self, queue: QueueId, parked: bool) {
        let Some(target) = self.target(queue) else { return };
        let (job, device) = (target.park(parked), target.device());
        self.workers[device].give(job);
    }

    fn is_at_rest(&self, queue: QueueId) -> bool {
        let target = self.numbers.get(&queue).and_then(|number| self.queues.get(number));
        target.is_none_or(Target::is_at_rest)
    }
}

#[cfg(test)]
mod tests;
