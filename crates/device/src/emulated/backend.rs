//! The backend of emulated devices, as the scheduler's loop uses it.
//!
//! A queue is a queue of the emulator. Control calls take as long as on real devices, so each
//! device has a worker thread that makes them, one after the other; the results arrive as events. A
//! worker records every change in the journal before it makes it. A watcher reports clients, queues
//! and the emulator itself: when that ends its devices vanish, and when there is one again they
//! appear.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use gpreempt_core::backend::{Backend, Command};
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::ring::RingView;
use gpreempt_wire::emulator::ring_page::QueuePage;
use gpreempt_wire::emulator::{DeviceInfo, QueueInfo};

use super::gauge::EmulatorGauge;
use super::queue_state::{QueueLocation, QueueState};
use super::uuid;
use super::watcher::EmulatorWatcher;
use super::worker::{self, Job, Report};
use crate::change::{GpuChange, UndoError};
use crate::controller::{
    AdoptError, Controller, ControllerReport, DeviceName, DeviceSearch, NumberedQueues, Numbering,
    PendingCompletion, QueueParking, Reporter, Waker,
};
use crate::eviction::EvictDevice;
use crate::gauge::DeviceGauge;
use crate::process::{ProcessHandle, ProcessKey};
use crate::undo_log::UndoLog;
use crate::worker_thread::WorkerThread;

/// The devices of one emulator, and the processes on them that were adopted.
#[derive(Debug)]
pub struct EmulatedBackend {
    socket: PathBuf,
    /// Identifies the emulator, while there is one.
    instance: u64,
    devices: Vec<DeviceInfo>,
    /// One for each device, and some for devices that vanished.
    workers: Vec<WorkerThread<Job>>,
    /// Workers that still have jobs for an emulator that was lost.
    unsettled: usize,
    /// Connections of processes, by the emulator's numbers.
    clients: BTreeMap<u64, ProcessKey>,
    queues: BTreeMap<u64, QueueState>,
    /// The emulator's numbers of adopted queues.
    numbers: BTreeMap<QueueId, u64>,
    tasks: BTreeMap<TaskId, ProcessKey>,
    events: VecDeque<Event>,
    notes: VecDeque<ControllerReport>,
    incoming: Receiver<Report>,
    reports: Reporter<Report>,
    undo_log: UndoLog,
    numbering: Numbering,
    watcher: EmulatorWatcher,
}

impl EmulatedBackend {
    /// A backend for the emulator that listens at `socket`, now or later. It records its changes in
    /// that undo log, and wakes its loop for each report.
    pub fn new(
        socket: PathBuf,
        undo_log: UndoLog,
        numbering: Numbering,
        waker: Waker,
    ) -> io::Result<Self> {
        let (reports, incoming) = Reporter::new(waker);
        let watcher = EmulatorWatcher::start(socket.clone(), reports.clone())?;
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
            undo_log,
            numbering,
            watcher,
        })
    }

    #[cfg(test)]
    pub(super) fn process_of(&self, queue: QueueId) -> Option<ProcessKey> {
        self.numbers.get(&queue).and_then(|number| self.queues.get(number)).map(QueueState::process)
    }

    /// Announces a queue of an adopted process to the scheduler.
    fn announce(&mut self, task: TaskId, number: u64) {
        let Some(state) = self.queues.get_mut(&number) else { return };
        let queue = self.numbering.queue();
        self.numbers.insert(queue, number);
        let (stopped, job) = state.adopt(task, queue);
        let index = state.device();
        if let Some(job) = job {
            self.workers[index].order(job);
        }
        let device = self.numbering.device(index);
        self.events.push_back(Event::QueueAppeared { queue, task, device, stopped });
    }

    fn revert(&self, state: &mut QueueState) {
        let worker = &self.workers[state.device()];
        state.revert().into_iter().for_each(|job| worker.order(job));
    }

    fn revert_all_of(&mut self, task: TaskId) {
        let mut queues = std::mem::take(&mut self.queues);
        for state in queues.values_mut() {
            if let Some((owner, queue)) = state.owner()
                && owner == task
            {
                self.numbers.remove(&queue);
                self.revert(state);
            }
        }
        self.queues = queues;
    }

    fn task_of(&self, process: ProcessKey) -> Option<TaskId> {
        self.tasks.iter().find(|(_, key)| **key == process).map(|(task, _)| *task)
    }

    fn state(&mut self, queue: QueueId) -> Option<&mut QueueState> {
        self.queues.get_mut(self.numbers.get(&queue)?)
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.incoming.try_recv() {
            match report {
                Report::Event(event) => self.take_event(event),
                Report::Problem(problem) => {
                    self.notes.push_back(ControllerReport::Problem(problem))
                }
                Report::Found { instance, devices } => self.take_emulator(instance, devices),
                Report::Lost(problem) => self.take_loss(&problem),
                Report::Unusable(why) => {
                    let problem = format!("{} cannot be used: {why}", self.name());
                    self.notes.push_back(ControllerReport::Problem(problem));
                }
                Report::Connected { client, process } => self.take_client(client, process),
                Report::Disconnected { client } => drop(self.clients.remove(&client)),
                Report::Opened { info, process, page } => self.take_queue(&info, process, *page),
                Report::Parked { queue, is_parked } => {
                    if let Some(state) = self.queues.get_mut(&queue) {
                        state.set_parked(is_parked);
                    }
                }
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
                        self.notes.push_back(ControllerReport::Ended(task));
                    }
                }
            }
        }
    }

    fn take_event(&mut self, event: Event) {
        // A queue that is off shows whether its work has ended.
        if let Event::Preempted { queue } | Event::ResumeFailed { queue, .. } = event
            && let Some(state) = self.state(queue)
        {
            state.set_off();
        }
        self.events.push_back(event);
    }

    fn take_emulator(&mut self, instance: u64, devices: Vec<DeviceInfo>) {
        self.notes.push_back(ControllerReport::Solved(self.name()));
        self.instance = instance;
        self.devices = devices;
        while self.workers.len() < self.devices.len() {
            let (undo_log, reports) = (self.undo_log.clone(), self.reports.clone());
            match worker::start(self.socket.clone(), undo_log, reports) {
                Ok(worker) => self.workers.push(worker),
                Err(error) => {
                    let problem = format!("some emulated devices are not scheduled: {error}");
                    self.notes.push_back(ControllerReport::Problem(problem));
                    self.devices.truncate(self.workers.len());
                }
            }
        }
        for (index, info) in self.devices.iter().enumerate() {
            let (device, capabilities) = (self.numbering.device(index), info.capabilities);
            self.events.push_back(Event::DeviceAppeared { device, capabilities });
        }
    }

    /// The emulator has ended. Its changes are reverted all the same: perhaps only the connection
    /// has ended.
    fn take_loss(&mut self, problem: &str) {
        let problem = format!(
            "{} has ended: {problem}; gpreempt connects again when it is back",
            self.name()
        );
        self.notes.push_back(ControllerReport::Problem(problem));
        let mut queues = std::mem::take(&mut self.queues);
        for state in queues.values_mut() {
            self.revert(state);
        }
        self.numbers.clear();
        self.clients.clear();
        for index in 0..self.devices.len() {
            let device = self.numbering.device(index);
            self.events.push_back(Event::DeviceVanished { device });
        }
        self.devices.clear();
        for worker in &self.workers {
            worker.order(Job::Settle);
        }
        self.unsettled = self.workers.len();
        if self.unsettled == 0 {
            self.watcher.connect();
        }
    }

    /// The beginning of every problem that ends when there is an emulator.
    fn name(&self) -> String {
        format!("the emulated GPU at {}", self.socket.display())
    }

    fn take_client(&mut self, client: u64, process: ProcessKey) {
        let is_news = !self.clients.values().any(|known| *known == process);
        self.clients.insert(client, process);
        if is_news && self.task_of(process).is_none() {
            self.notes.push_back(ControllerReport::Appeared(process));
        }
    }

    fn take_queue(&mut self, info: &QueueInfo, process: ProcessKey, page: QueuePage) {
        let device = usize::try_from(info.device.0).ok();
        let Some((device, about)) = device.and_then(|at| Some((at, self.devices.get(at)?))) else {
            return;
        };
        let (socket, instance, queue) = (self.socket.clone(), self.instance, info.queue);
        let location = QueueLocation { socket, instance, queue, device };
        let state = QueueState::new(location, info, process, page, about.can_tell_running);
        self.queues.insert(queue.0, state);
        if let Some(task) = self.task_of(process) {
            self.announce(task, queue.0);
            self.note_change(task, 1, 0);
        } else if self.notes.back() != Some(&ControllerReport::Appeared(process)) {
            self.notes.push_back(ControllerReport::Appeared(process));
        }
    }

    fn take_end(&mut self, number: u64, is_faulted: bool) {
        let Some(mut state) = self.queues.remove(&number) else { return };
        if is_faulted {
            let process = state.process();
            self.notes.push_back(ControllerReport::Problem(format!(
                "process {process}: the emulated GPU closed a queue: its ring contained an invalid \
                 packet"
            )));
        }
        if let Some((task, queue)) = state.owner() {
            self.numbers.remove(&queue);
            self.events.push_back(Event::QueueVanished { queue });
            self.note_change(task, 0, 1);
        }
        // Only its records in the journal are left.
        self.revert(&mut state);
    }

    /// Reports that a task's queues changed, together with the last report if that is of the same
    /// task.
    fn note_change(&mut self, task: TaskId, more: usize, fewer: usize) {
        if let Some(ControllerReport::QueuesChanged { task: last, appeared, vanished }) =
            self.notes.back_mut()
            && *last == task
        {
            *appeared += more;
            *vanished += fewer;
            return;
        }
        self.notes.push_back(ControllerReport::QueuesChanged {
            task,
            appeared: more,
            vanished: fewer,
        });
    }
}

impl Backend for EmulatedBackend {
    fn submit(&mut self, command: Command) {
        let queue = command.queue();
        let Some(state) = self.state(queue) else {
            // A queue that vanished needs no call: the command is completed at once.
            self.events.extend(PendingCompletion::of(&command).map(|it| it.event(Ok(()))));
            return;
        };
        let job = match command {
            Command::MeasureSlowdown { always, .. } => return state.set_measured(always),
            Command::Preempt { .. } => state.stop(queue),
            Command::Resume { .. } => state.resume(queue),
            Command::SetSlice { slice, .. } => state.set_slice(slice),
            Command::PermitHold { .. } => state.set_hold(true),
            Command::ForbidHold { .. } => state.set_hold(false),
            Command::SetHardwarePriority { priority, .. } => state.set_priority(priority),
        };
        let device = state.device();
        self.workers[device].order(job);
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        let state = self.state(queue)?;
        let (ring, time) = (state.observe(), state.take_busy());
        self.events.extend(time.map(|time| Event::SlowdownMeasured { queue, time }));
        Some(ring)
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
        let handle = ProcessHandle::open(process.pid)
            .map_err(|error| AdoptError::Unreachable(process, error))?;
        // The pidfd is open, so this checks the process that it is of.
        process.check()?;
        self.tasks.insert(task, process);
        self.watcher.watch(process, handle);
        self.notes.retain(|note| *note != ControllerReport::Appeared(process));
        let own = self.queues.iter().filter(|(_, state)| state.process() == process);
        let numbers: Vec<u64> = own.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.announce(task, number));
        Ok(())
    }

    fn release(&mut self, task: TaskId) {
        let Some(process) = self.tasks.remove(&task) else { return };
        self.watcher.forget(process);
        self.revert_all_of(task);
    }

    fn users(&mut self) -> Vec<ProcessKey> {
        self.take_reports();
        let users: BTreeSet<ProcessKey> = self.clients.values().copied().collect();
        self.notes
            .retain(|note| !matches!(note, ControllerReport::Appeared(key) if users.contains(key)));
        users.into_iter().collect()
    }

    fn devices(&self) -> Vec<DeviceName> {
        let name = |index: usize| DeviceName {
            id: self.numbering.device(index),
            uuid: uuid(&self.socket, index),
        };
        (0..self.devices.len()).map(name).collect()
    }

    fn queues_of(&self, task: TaskId) -> Vec<QueueId> {
        let owners = self.queues.values().filter_map(QueueState::owner);
        owners.filter(|(owner, _)| *owner == task).map(|(_, queue)| queue).collect()
    }

    fn device_search(&self, process: ProcessKey) -> DeviceSearch {
        let own = self.queues.values().filter(|state| state.process() == process);
        let devices: BTreeSet<usize> = own.map(QueueState::device).collect();
        let uuids = devices.into_iter().map(|device| uuid(&self.socket, device)).collect();
        Box::new(|| uuids)
    }

    fn poll_report(&mut self) -> Option<ControllerReport> {
        self.take_reports();
        self.notes.pop_front()
    }

    fn release_all(&mut self) -> Result<(), UndoError> {
        self.watcher.stop();
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.release(task));
        self.workers.iter_mut().for_each(WorkerThread::stop);
        self.undo_log.undo_all(|change| matches!(change, GpuChange::Emulated(_)))
    }

    fn gauge(&self) -> Option<Box<dyn DeviceGauge>> {
        Some(Box::new(EmulatorGauge::new(self.socket.clone())))
    }

    fn evict_device(&self) -> Option<EvictDevice> {
        let (socket, instance) = (self.socket.clone(), self.instance);
        (instance != 0).then_some(EvictDevice::Emulated { socket, instance })
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
        let Some(state) = self.state(queue) else { return };
        let (job, device) = (state.park(parked), state.device());
        self.workers[device].order(job);
    }

    fn is_at_rest(&self, queue: QueueId) -> bool {
        let state = self.numbers.get(&queue).and_then(|number| self.queues.get(number));
        state.is_none_or(QueueState::is_at_rest)
    }
}
