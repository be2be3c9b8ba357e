//! Emulated devices as the scheduler's loop sees them.
//!
//! A queue is a queue of the emulator. Control calls take as long as on real devices, so each
//! device has a worker thread that makes them, one after the other; what comes of them arrives as
//! events. Before a worker changes anything it writes the journal. A watcher tells what comes and
//! goes, the emulator included: when that is gone its devices have vanished, and when there is one
//! again they appear.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use gpreempt_core::backend::Backend;
use gpreempt_core::command::Command;
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;
use gpreempt_emu::page::QueuePage;
use gpreempt_emu::protocol::{DeviceInfo, QueueInfo};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::name;
use super::report::Report;
use super::target::{Place, Target};
use super::watcher::Watcher;
use super::worker::{Job, Worker};
use crate::controller::{Controller, DeviceName, Note, Numbering, Reporter, Waker};
use crate::ledger::Ledger;
use crate::process::ProcessKey;

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

    fn take_reports(&mut self) {
        while let Ok(report) = self.incoming.try_recv() {
            match report {
                Report::Event(event) => self.take_event(event),
                Report::Problem(problem) => self.notes.push_back(Note::Problem(problem)),
                Report::Found { instance, devices } => self.take_emulator(instance, devices),
                Report::Lost(problem) => self.take_loss(&problem),
                Report::Unusable(why) => {
                    let problem = format!("{} cannot be used: {why}", self.name());
                    self.notes.push_back(Note::Problem(problem));
                }
                Report::Connected { client, process } => self.take_client(client, process),
                Report::Disconnected { client } => drop(self.clients.remove(&client)),
                Report::Opened { info, process, page } => self.take_queue(&info, process, *page),
                Report::Closed { queue, is_faulted } => self.take_end(queue, is_faulted),
                Report::Settled => {
                    self.unsettled = self.unsettled.saturating_sub(1);
                    if self.unsettled == 0 {
                        self.watcher.connect();
                    }
                }
                Report::Ended(process) => {
                    if let Some(task) = self.task_of(process) {
                        self.release(task);
                        self.notes.push_back(Note::Ended(task));
                    }
                }
            }
        }
    }

    fn take_event(&mut self, event: Event) {
        // Whether a queue is off also says what can be known of its ring.
        if let Event::Preempted { queue } | Event::ResumeFailed { queue, .. } = event
            && let Some(target) = self.target(queue)
        {
            target.set_off();
        }
        self.events.push_back(event);
    }

    fn take_emulator(&mut self, instance: u64, devices: Vec<DeviceInfo>) {
        self.notes.push_back(Note::Solved(self.name()));
        self.instance = instance;
        self.devices = devices;
        while self.workers.len() < self.devices.len() {
            let (ledger, reports) = (self.ledger.clone(), self.reports.clone());
            match Worker::start(self.socket.clone(), ledger, reports) {
                Ok(worker) => self.workers.push(worker),
                Err(error) => {
                    let problem = format!("some emulated devices are left alone: {error}");
                    self.notes.push_back(Note::Problem(problem));
                    self.devices.truncate(self.workers.len());
                }
            }
        }
        for (index, info) in self.devices.iter().enumerate() {
            let (device, capabilities) = (self.numbering.device(index), info.capabilities);
            self.events.push_back(Event::DeviceAppeared { device, capabilities });
        }
    }

    /// Everything is gone. What was done to it is taken back all the same: perhaps only the
    /// connection has ended.
    fn take_loss(&mut self, problem: &str) {
        let problem = format!("{} is gone: {problem}; it is looked for from now on", self.name());
        self.notes.push_back(Note::Problem(problem));
        let mut queues = std::mem::take(&mut self.queues);
        for target in queues.values_mut() {
            self.put_back(target);
        }
        self.numbers.clear();
        self.clients.clear();
        for index in 0..self.devices.len() {
            let device = self.numbering.device(index);
            self.events.push_back(Event::DeviceVanished { device });
        }
        self.devices.clear();
        for worker in &self.workers {
            worker.give(Job::Settle);
        }
        self.unsettled = self.workers.len();
        if self.unsettled == 0 {
            self.watcher.connect();
        }
    }

    /// How every problem begins that is solved when there is an emulator.
    fn name(&self) -> String {
        format!("the emulated GPU at {}", self.socket.display())
    }

    fn take_client(&mut self, client: u64, process: ProcessKey) {
        let is_news = !self.clients.values().any(|known| *known == process);
        self.clients.insert(client, process);
        if is_news && self.task_of(process).is_none() {
            self.notes.push_back(Note::Appeared(process));
        }
    }

    fn take_queue(&mut self, info: &QueueInfo, process: ProcessKey, page: QueuePage) {
        let device = usize::try_from(info.device.0).ok();
        let Some((device, about)) = device.and_then(|at| Some((at, self.devices.get(at)?))) else {
            return;
        };
        let (socket, instance, queue) = (self.socket.clone(), self.instance, info.queue);
        let place = Place { socket, instance, queue, device };
        let target = Target::new(place, info, process, page, about.can_tell_running);
        self.queues.insert(queue.0, target);
        if let Some(task) = self.task_of(process) {
            self.announce(task, queue.0);
            self.note_change(task, 1, 0);
        } else if self.notes.back() != Some(&Note::Appeared(process)) {
            self.notes.push_back(Note::Appeared(process));
        }
    }

    fn take_end(&mut self, number: u64, is_faulted: bool) {
        let Some(mut target) = self.queues.remove(&number) else { return };
        if is_faulted {
            let process = target.process();
            self.notes.push_back(Note::Problem(format!(
                "process {process}: the emulated GPU gave up a queue: something in its ring was \
                 wrong"
            )));
        }
        if let Some((task, queue)) = target.owner() {
            self.numbers.remove(&queue);
            self.events.push_back(Event::QueueVanished { queue });
            self.note_change(task, 0, 1);
        }
        // There is nothing left of it but what the journal says.
        self.put_back(&mut target);
    }

    /// Says that a task's queues changed, together with what was said before and not yet heard.
    fn note_change(&mut self, task: TaskId, more: usize, fewer: usize) {
        if let Some(Note::Regrouped { task: last, appeared, vanished }) = self.notes.back_mut()
            && *last == task
        {
            *appeared += more;
            *vanished += fewer;
            return;
        }
        self.notes.push_back(Note::Regrouped { task, appeared: more, vanished: fewer });
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

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), String> {
        if self.tasks.contains_key(&task) || self.task_of(process).is_some() {
            return Err(format!("process {process} is adopted already"));
        }
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| format!("there is no process {process}"))?;
        let descriptor = pidfd_open(pid, PidfdFlags::empty())
            .map_err(|errno| format!("process {process}: {errno}"))?;
        // From here on the number cannot be given to anybody else.
        process.check().map_err(|error| error.to_string())?;
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

    fn native(&self, queue: QueueId) -> Option<u64> {
        self.numbers.get(&queue).copied()
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

    fn release_all(&mut self) -> Result<(), String> {
        self.watcher.stop();
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.release(task));
        self.workers.iter_mut().for_each(Worker::stop);
        self.ledger.undo_all()
    }
}

#[cfg(test)]
mod tests;
