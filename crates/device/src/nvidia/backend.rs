//! NVIDIA devices as the scheduler's loop sees them.
//!
//! A queue is a compute group. Stopping it stops the copy groups of the same client and device with
//! it. Control calls take up to a millisecond, so each device has a worker thread that makes them,
//! one after the other; what comes of them arrives as events. Before a worker changes anything it
//! writes the journal.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use gpreempt_core::backend::Backend;
use gpreempt_core::capability::{Capabilities, Level, Mechanism};
use gpreempt_core::command::Command;
use gpreempt_core::event::{Event, Fault, TaskTraits};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;

use super::abi::status::Status;
use super::act::{self, ActError};
use super::discover::Engine;
use super::ledger::Ledger;
use super::rm::{Handle, RmError};
use super::survey::GpuProcess;
use crate::journal::{Act, Session};
use crate::process::ProcessKey;

/// What a stop and a resume cost, and how long a ring must be quiet: measured on an H200.
const CAPABILITIES: Capabilities = Capabilities {
    mechanism: Mechanism::Slice,
    level: Level::Switch,
    preempt_cost: Duration::from_micros(800),
    resume_cost: Duration::from_micros(500),
    quiet: Duration::from_micros(300),
    hold: false,
    hardware_priority: false,
};

/// Devices, and the processes that were attached.
#[derive(Debug)]
pub struct NvidiaBackend {
    workers: Vec<Worker>,
    devices: Vec<String>,
    queues: BTreeMap<QueueId, Target>,
    events: VecDeque<Event>,
    finished: Receiver<Event>,
    reports: Sender<Event>,
    ledger: Ledger,
    next_queue: u64,
    next_task: u64,
}

/// What a queue is in reality.
#[derive(Clone, Debug)]
enum Target {
    /// A compute group and what is stopped with it.
    Group {
        process: ProcessKey,
        device: usize,
        client: Handle,
        group: Handle,
        original_us: u64,
        stop: Act,
    },
    /// Everybody we were not asked to touch. There is nothing to do for it.
    Others,
}

/// A thread that makes the control calls of one device.
#[derive(Debug)]
struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// One call and whom to tell.
#[derive(Debug)]
struct Job {
    process: ProcessKey,
    act: Act,
    undo: bool,
    /// What somebody waits for, if anybody does.
    awaited: Option<Awaited>,
}

/// A completion the scheduler waits for.
#[derive(Clone, Copy, Debug)]
enum Awaited {
    Preempt(QueueId),
    Resume(QueueId),
}

impl Awaited {
    fn event(self, result: Result<(), Fault>) -> Event {
        match (self, result) {
            (Self::Preempt(queue), Ok(())) => Event::Preempted { queue },
            (Self::Preempt(queue), Err(fault)) => Event::PreemptFailed { queue, fault },
            (Self::Resume(queue), Ok(())) => Event::Resumed { queue },
            (Self::Resume(queue), Err(fault)) => Event::ResumeFailed { queue, fault },
        }
    }
}

impl NvidiaBackend {
    /// A backend that writes down what it does in that session.
    pub fn new(session: Session) -> Self {
        let (reports, finished) = channel();
        Self {
            workers: Vec::new(),
            devices: Vec::new(),
            queues: BTreeMap::new(),
            events: VecDeque::new(),
            finished,
            reports,
            ledger: Ledger::new(session),
            next_queue: 1,
            next_task: 1,
        }
    }

    /// Attaches a process with a priority.
    ///
    /// # Errors
    /// If it cannot be looked into, or has nothing that could be scheduled.
    pub fn attach(&mut self, process: &GpuProcess, priority: Priority) -> Result<TaskId, String> {
        let clients = process.clients.as_ref().map_err(ToString::to_string)?;
        let stops = act::stops(process);
        let task = TaskId(self.next_task);
        let mut queues = Vec::new();
        for client in clients {
            for device in &client.devices {
                let Some(uuid) = device.uuid.as_deref() else { continue };
                let stop = stops.iter().find(|act| {
                    matches!(act, Act::NvidiaStop { client: c, subdevice, .. }
                        if *c == client.handle && Some(*subdevice) == device.subdevice)
                });
                let compute = device.groups.iter().filter(|group| group.engine == Engine::Compute);
                for (group, stop) in compute.zip(stop.into_iter().cycle()) {
                    let Some(original_us) = group.slice_us else { continue };
                    queues.push(Target::Group {
                        process: process.info.key,
                        device: self.device(uuid),
                        client: client.handle,
                        group: group.handle,
                        original_us,
                        stop: stop.clone(),
                    });
                }
            }
        }
        if queues.is_empty() {
            let pid = process.info.key.pid;
            return Err(format!("process {pid} has no GPU work that could be scheduled yet"));
        }
        self.next_task += 1;
        let traits = TaskTraits { priority, ..TaskTraits::default() };
        self.events.push_back(Event::TaskAppeared { task, traits });
        for target in queues {
            self.add_queue(task, target);
        }
        Ok(task)
    }

    /// Stands for everybody on every device that was not attached.
    pub fn attach_others(&mut self, priority: Priority) {
        let task = TaskId(self.next_task);
        self.next_task += 1;
        let traits = TaskTraits { priority, ..TaskTraits::default() };
        self.events.push_back(Event::TaskAppeared { task, traits });
        for device in 0..self.devices.len() {
            let queue = QueueId(self.next_queue);
            self.next_queue += 1;
            self.queues.insert(queue, Target::Others);
            let device = device_id(device);
            self.events.push_back(Event::QueueAppeared { queue, task, device, stopped: false });
        }
    }

    fn device(&mut self, uuid: &str) -> usize {
        if let Some(known) = self.devices.iter().position(|device| device == uuid) {
            return known;
        }
        let index = self.devices.len();
        self.devices.push(uuid.to_owned());
        self.workers.push(Worker::start(self.ledger.clone(), self.reports.clone()));
        let (device, capabilities) = (device_id(index), CAPABILITIES);
        self.events.push_back(Event::DeviceAppeared { device, capabilities });
        index
    }

    fn add_queue(&mut self, task: TaskId, target: Target) {
        let queue = QueueId(self.next_queue);
        self.next_queue += 1;
        let Target::Group { device, .. } = &target else { return };
        let device = device_id(*device);
        self.queues.insert(queue, target);
        self.events.push_back(Event::QueueAppeared { queue, task, device, stopped: false });
    }

    /// The process and the group a queue stands for.
    pub fn group_of(&self, queue: QueueId) -> Option<(ProcessKey, Handle)> {
        match self.queues.get(&queue)? {
            Target::Group { process, group, .. } => Some((*process, *group)),
            Target::Others => None,
        }
    }

    /// Ends the workers and puts everything back as it was.
    ///
    /// # Errors
    /// What could not be put back.
    pub fn detach_all(mut self) -> Result<(), String> {
        for worker in &mut self.workers {
            worker.stop();
        }
        self.ledger.undo_all()
    }
}

impl Backend for NvidiaBackend {
    fn submit(&mut self, command: Command) {
        let queue = command.queue();
        let Some(target) = self.queues.get(&queue) else { return };
        let Target::Group { process, device, client, group, original_us, stop } = target else {
            // Nobody asked us to touch the others; what is not done is done at once.
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
        let slice = |set_us: u64| Act::NvidiaSlice {
            client: *client,
            group: *group,
            original_us: *original_us,
            set_us,
        };
        let job = |act: Act, undo: bool, awaited: Option<Awaited>| Job {
            process: *process,
            act,
            undo,
            awaited,
        };
        let job = match command {
            Command::Preempt { .. } => job(stop.clone(), false, Some(Awaited::Preempt(queue))),
            Command::Resume { .. } => job(stop.clone(), true, Some(Awaited::Resume(queue))),
            Command::SetSlice { slice: Some(wanted), .. } => {
                job(slice(wanted.as_micros().max(1)), false, None)
            }
            Command::SetSlice { slice: None, .. } => job(slice(*original_us), true, None),
            Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::SetHardwarePriority { .. } => return,
        };
        self.workers[*device].give(job);
    }

    /// Whether a group has work cannot be told yet, so everybody is taken to be busy: priorities
    /// hold, and nobody is left out, at the price of turns for those who do not need them.
    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        let busy = RingView { put: 1, get: 0, running: None };
        self.queues.contains_key(&queue).then_some(busy)
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.finished.try_recv().ok())
    }
}

impl Worker {
    fn start(ledger: Ledger, reports: Sender<Event>) -> Self {
        let (jobs, incoming) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            while let Ok(job) = incoming.recv() {
                let result = ledger.perform(job.process, &job.act, job.undo);
                let result = result.map_err(|error| fault_of(&error));
                if let Some(awaited) = job.awaited
                    && reports.send(awaited.event(result)).is_err()
                {
                    return;
                }
            }
        });
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    fn give(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A worker ends only when this side does.
            let _ = jobs.send(job);
        }
    }

    fn stop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn fault_of(error: &ActError) -> Fault {
    match error {
        ActError::Look(_) | ActError::Changed(_) => Fault::Gone,
        ActError::Journal(_) => Fault::Refused(u32::MAX),
        ActError::Rm(_, RmError::Refused(Status::TIMEOUT | Status::TIMEOUT_RETRY)) => {
            Fault::TimedOut
        }
        ActError::Rm(_, RmError::Refused(status)) => Fault::Refused(status.0),
        ActError::Rm(_, RmError::Os(_)) => Fault::Refused(u32::MAX),
    }
}

fn device_id(index: usize) -> DeviceId {
    DeviceId(u32::try_from(index).unwrap_or(u32::MAX))
}
