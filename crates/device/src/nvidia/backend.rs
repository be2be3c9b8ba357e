//! The backend of NVIDIA devices, as the scheduler's loop uses it.
//!
//! A queue is a context: its compute group, and the copy groups that stop with it. Control calls
//! take up to a millisecond, so each device has a worker thread that makes them, one after the
//! other; the results arrive as events. A worker records every change in the journal before it
//! makes it. A process watcher finds contexts that appear later; they get the priority of their
//! process.

mod context_state;
mod controller_impl;
mod holds;
mod switch_counters;
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

use super::abi::control::PreemptionMode;
use super::process_discovery::GpuProcess;
use super::process_watcher::{DiscoveryEvent, ProcessWatcher};
use crate::controller::{
    AdoptError, Controller, ControllerReport, Numbering, PendingCompletion, Reporter,
    UnadoptedProcesses, Waker,
};
use crate::process::{ProcessHandle, ProcessKey};
use crate::undo_log::UndoLog;
use crate::worker_thread::WorkerThread;
use context_state::{ContextState, QueueState, context_states};
use holds::Holds;
use worker::{Job, Report};

/// The costs of a preempt and a resume, and the time with empty rings after which a context counts
/// as idle: measured on an H200. That time is longer than a context switch, because fetched work
/// may still wait for one.
const CAPABILITIES: Capabilities = Capabilities {
    mechanism: Mechanism::Slice,
    level: PreemptLevel::Interrupt,
    preempt_cost: Duration::from_micros(800),
    resume_cost: Duration::from_micros(500),
    quiet: Duration::from_millis(2),
    // Only with drivers on which holds were run: see `enable_holds`.
    hold: false,
    hardware_priority: false,
};

/// What a process gets beside its priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextOptions {
    /// Where in a kernel it may be preempted.
    pub mode: Option<PreemptionMode>,
    /// The interleave level of its groups.
    pub interleave: Option<u32>,
}

#[derive(Debug)]
pub struct NvidiaBackend {
    devices: Vec<Device>,
    tasks: BTreeMap<TaskId, AdoptedProcess>,
    queues: BTreeMap<QueueId, QueueState>,
    unmanaged: Option<TaskId>,
    events: VecDeque<Event>,
    notes: VecDeque<ControllerReport>,
    incoming: Receiver<Report>,
    reports: Reporter<Report>,
    undo_log: UndoLog,
    watcher: ProcessWatcher,
    numbering: Numbering,
    next_unmanaged: u64,
    /// What was found of processes that were not adopted yet.
    appeared: BTreeMap<ProcessKey, GpuProcess>,
    /// How many of those there may be before the ended ones are forgotten.
    appeared_max: usize,
    /// The watcher has inspected every process once.
    is_scanned: bool,
    holds: Option<Holds>,
    context_options: ContextOptions,
}

#[derive(Debug)]
struct Device {
    uuid: String,
    worker: WorkerThread<Job>,
}

#[derive(Debug)]
struct AdoptedProcess {
    key: ProcessKey,
    handle: ProcessHandle,
    context_options: ContextOptions,
}

impl NvidiaBackend {
    /// A backend that records its changes in that undo log, and wakes its loop for each report.
    pub fn new(undo_log: UndoLog, numbering: Numbering, waker: Waker) -> io::Result<Self> {
        let (reports, incoming) = Reporter::new(waker);
        let discoveries = reports.clone();
        let watcher = ProcessWatcher::start(move |event| {
            let report = match event {
                DiscoveryEvent::Changed(process) => Report::Changed(process),
                DiscoveryEvent::Appeared(process) => Report::Appeared(process),
                DiscoveryEvent::Scanned => Report::Scanned,
            };
            discoveries.send(report).is_ok()
        })?;
        Ok(Self {
            devices: Vec::new(),
            tasks: BTreeMap::new(),
            queues: BTreeMap::new(),
            unmanaged: None,
            events: VecDeque::new(),
            notes: VecDeque::new(),
            incoming,
            reports,
            undo_log,
            watcher,
            numbering,
            next_unmanaged: u64::MAX,
            appeared: BTreeMap::new(),
            appeared_max: 0,
            is_scanned: false,
            holds: None,
            context_options: ContextOptions::default(),
        })
    }

    /// For processes that are adopted from now on.
    pub const fn set_context_options(&mut self, context_options: ContextOptions) {
        self.context_options = context_options;
    }

    /// Adopts a process that was inspected already. If it has no context yet, those that it makes
    /// later are scheduled.
    fn adopt_inspected(
        &mut self,
        task: TaskId,
        process: &GpuProcess,
        context_options: ContextOptions,
    ) -> Result<(), AdoptError> {
        let clients = process.clients.as_ref();
        let clients = clients.map_err(|error| AdoptError::Unseen(error.to_string()))?;
        self.claim(task, process.info.key, context_options)?;
        self.update_contexts(task, process);
        self.watcher.watch(process.info.key, clients.clone());
        Ok(())
    }

    fn claim(
        &mut self,
        task: TaskId,
        key: ProcessKey,
        context_options: ContextOptions,
    ) -> Result<(), AdoptError> {
        let handle = ProcessHandle::open(key.pid);
        let handle = handle.map_err(|error| AdoptError::Unreachable(key, error))?;
        key.check()?;
        self.undo_log.claim(key)?;
        self.tasks.insert(task, AdoptedProcess { key, handle, context_options });
        Ok(())
    }

    /// The process and the compute group of a queue.
    fn group_of(&self, queue: QueueId) -> Option<(ProcessKey, u32)> {
        let (process, _, group) = self.queues.get(&queue)?.context()?.identity()?;
        Some((process, group))
    }

    fn context(&mut self, queue: QueueId) -> Option<&mut ContextState> {
        self.queues.get_mut(&queue)?.context_mut()
    }

    fn device(&mut self, uuid: &str) -> usize {
        if let Some(known) = self.devices.iter().position(|device| device.uuid == uuid) {
            return known;
        }
        let index = self.devices.len();
        let worker = worker::start(uuid.to_owned(), self.undo_log.clone(), self.reports.clone());
        self.devices.push(Device { uuid: uuid.to_owned(), worker });
        let capabilities = Capabilities { hold: self.holds.is_some(), ..CAPABILITIES };
        let device = self.numbering.device(index);
        self.events.push_back(Event::DeviceAppeared { device, capabilities });
        if let Some(task) = self.unmanaged {
            self.add_queue(task, index, QueueState::Unmanaged(task));
        }
        index
    }

    fn add_queue(&mut self, task: TaskId, device: usize, state: QueueState) -> QueueId {
        let queue = self.numbering.queue();
        self.queues.insert(queue, state);
        let device = self.numbering.device(device);
        self.events.push_back(Event::QueueAppeared { queue, task, device, stopped: false });
        queue
    }

    /// Takes in the contexts that a process has now. Returns how many appeared and vanished.
    fn update_contexts(&mut self, task: TaskId, process: &GpuProcess) -> (usize, usize) {
        let mut found = context_states(task, process);
        let is_same = |known: &QueueState, fresh: &ContextState| {
            let known = known.context().and_then(ContextState::identity);
            known.is_some() && known == fresh.identity()
        };
        let gone: Vec<QueueId> = self
            .queues
            .iter()
            .filter(|(_, known)| known.task() == task)
            .filter(|(_, known)| !found.iter().any(|(_, fresh)| is_same(known, fresh)))
            .map(|(queue, _)| *queue)
            .collect();
        for queue in &gone {
            self.vanish(*queue);
        }
        let mut moved = Vec::new();
        found.retain(|(_, fresh)| {
            let known = self.queues.iter_mut().find(|(_, known)| is_same(known, fresh));
            let Some((queue, known)) = known else { return true };
            let Some(known) = known.context_mut() else { return true };
            if known.ring_objects() != fresh.ring_objects() {
                moved.push(*queue);
            }
            for job in known.catch_up(*queue, fresh) {
                self.devices[known.device].worker.order(job);
            }
            false
        });
        for queue in moved {
            self.renew_hold(queue);
        }
        let appeared = found.len();
        for (uuid, mut context) in found {
            let device = self.device(&uuid);
            context.device = device;
            let options = self.tasks.get(&task).map(|adopted| adopted.context_options);
            let jobs = context.first_jobs(options.unwrap_or_default());
            let queue = self.add_queue(task, device, QueueState::Context(Box::new(context)));
            let rings = self.context(queue).and_then(|context| context.rings_job(queue));
            for job in jobs.into_iter().chain(rings) {
                self.devices[device].worker.order(job);
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
                        && let Some(context) = self.context(queue)
                    {
                        context.take_failure(matches!(event, Event::ResumeFailed { .. }));
                    }
                    self.events.push_back(event);
                    if let Event::PreemptFailed { queue, fault: Fault::Gone }
                    | Event::ResumeFailed { queue, fault: Fault::Gone } = event
                    {
                        self.take_absence(queue);
                    }
                }
                Report::Problem(problem) => {
                    self.notes.push_back(ControllerReport::Problem(problem))
                }
                Report::Stopped(queue, totals) => {
                    if let Some(context) = self.context(queue) {
                        context.take_stop(totals);
                    }
                }
                Report::Checked(queue, totals) => {
                    if let Some(context) = self.context(queue) {
                        context.switches.checked(totals);
                    }
                }
                Report::Hold(request, added) => self.take_hold(request, added),
                Report::Watcher(queue, report) => self.take_watcher_report(queue, report),
                Report::Rings(queue, rings) => {
                    if let Some(context) = self.context(queue) {
                        context.set_rings(*rings);
                    }
                }
                Report::Changed(process) => self.take_change(&process),
                Report::Scanned => self.is_scanned = true,
                Report::Appeared(process) => {
                    let key = process.info.key;
                    if !self.tasks.values().any(|adopted| adopted.key == key) {
                        self.forget_ended_when_full();
                        self.appeared.insert(key, *process);
                        self.notes.push_back(ControllerReport::Appeared(key));
                    }
                }
            }
        }
        let ended: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|(_, adopted)| adopted.handle.has_ended())
            .map(|(task, _)| *task)
            .collect();
        for task in ended {
            self.release(task);
            self.notes.push_back(ControllerReport::Ended(task));
        }
    }

    /// Forgets processes that ended before they were adopted. That reads a file for each, so it is
    /// done when their number has doubled, not for every process that appears.
    fn forget_ended_when_full(&mut self) {
        const MIN: usize = 64;
        if self.appeared.len() >= self.appeared_max {
            self.appeared.retain(|key, _| key.check().is_ok());
            self.appeared_max = (2 * self.appeared.len()).max(MIN);
        }
    }

    /// A worker found that a context no longer exists. If its process lives, it may have made
    /// another one with the same handles, so the watcher inspects it as if for the first time.
    fn take_absence(&mut self, queue: QueueId) {
        let Some((key, _)) = self.group_of(queue) else { return };
        self.vanish(queue);
        if self.tasks.values().any(|adopted| adopted.key == key && !adopted.handle.has_ended()) {
            self.watcher.watch(key, Vec::new());
        }
    }

    /// Removes a queue and reports that it vanished.
    fn vanish(&mut self, queue: QueueId) {
        self.drop_hold(queue);
        // If the inspection missed it, it must not stay changed.
        if let Some(QueueState::Context(context)) = self.queues.remove(&queue) {
            for job in context.last_jobs() {
                self.devices[context.device].worker.order(job);
            }
        }
        self.events.push_back(Event::QueueVanished { queue });
    }

    fn take_change(&mut self, process: &GpuProcess) {
        let key = process.info.key;
        let task = self.tasks.iter().find(|(_, adopted)| adopted.key == key);
        let Some((&task, _)) = task else { return };
        let (appeared, vanished) = self.update_contexts(task, process);
        self.check_holds(task, process);
        if appeared + vanished > 0 {
            self.notes.push_back(ControllerReport::QueuesChanged { task, appeared, vanished });
        }
    }
}

impl UnadoptedProcesses for NvidiaBackend {
    /// They count as busy and are never changed.
    fn set_unmanaged(&mut self, priority: Option<Priority>) {
        if let Some(task) = self.unmanaged.take() {
            self.events.push_back(Event::TaskVanished { task });
            self.queues.retain(|_, state| state.task() != task);
        }
        let Some(priority) = priority else { return };
        let task = TaskId(self.next_unmanaged);
        self.next_unmanaged -= 1;
        self.unmanaged = Some(task);
        let attr = SchedAttr { priority, ..SchedAttr::default() };
        self.events.push_back(Event::TaskAppeared { task, attr });
        for device in 0..self.devices.len() {
            self.add_queue(task, device, QueueState::Unmanaged(task));
        }
    }
}

impl Backend for NvidiaBackend {
    fn submit(&mut self, command: Command) {
        let queue = command.queue();
        let fence = self.fence_channel(queue);
        // Commands for unmanaged processes, and for queues that vanished, need no call: they are
        // completed at once.
        let context = self.queues.get_mut(&queue).and_then(QueueState::context_mut);
        let device = context.as_ref().map(|context| context.device);
        let at_once = PendingCompletion::of(&command).map(|completion| completion.event(Ok(())));
        let job = match command {
            Command::Preempt { .. } => context.map(|context| context.stop(queue, fence)),
            Command::Resume { .. } => context.map(|context| context.resume(queue, fence)),
            Command::SetSlice { slice, .. } => {
                let slice_us = slice.map(|slice| slice.as_micros().max(1));
                context.map(|context| context.set_slice(slice_us))
            }
            Command::PermitHold { .. } => return self.permit_hold(queue),
            Command::ForbidHold { .. } => return self.forbid_hold(queue),
            Command::MeasureSlowdown { always, .. } => return self.set_probed(queue, always),
            Command::SetHardwarePriority { .. } => return,
        };
        match device.zip(job) {
            Some((device, job)) => self.devices[device].worker.order(job),
            None => self.events.extend(at_once),
        }
    }

    fn observe(&mut self, queue: QueueId) -> Option<RingView> {
        let state = self.queues.get_mut(&queue)?;
        if let Some(context) = state.context_mut()
            && let Some(job) = context.check(queue)
        {
            self.devices[context.device].worker.order(job);
        }
        let ring = state.observe()?;
        Some(self.with_execution(queue, ring))
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.take_reports();
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests {
    //! A process without a GPU, for which the test makes up a context.

    use std::time::Instant;

    use gpreempt_core::backend::PreemptLevel;

    use gpreempt_stage::WorkFolder;

    use super::*;
    use crate::journal::Journal;
    use crate::nvidia::rm_objects::{Client, Device as FoundDevice, Engine, Group};
    use crate::process::{ProcessInfo, SleepingChild};

    const TASK: TaskId = TaskId(1);

    struct BackendTest {
        _folder: WorkFolder,
        child: SleepingChild,
        backend: NvidiaBackend,
    }

    impl BackendTest {
        fn new(name: &str) -> (Self, QueueId) {
            let folder = WorkFolder::new(name).unwrap();
            let session = Journal::at(folder.path("journal")).unwrap().begin().unwrap();
            let (undo_log, waker) = (UndoLog::new(session), Waker::new().unwrap());
            let backend = NvidiaBackend::new(undo_log, Numbering::of(0), waker).unwrap();
            let mut test = Self { _folder: folder, child: SleepingChild::start(), backend };
            let group = Group {
                handle: 0x5c00_0010,
                engine: Engine::Compute,
                // Without channels the backend opens no rings.
                channels: Vec::new(),
                slice_us: Some(2048),
                generation: None,
                context_share: None,
                compute_class: None,
                pages: Vec::new(),
            };
            let (uuid, subdevice) = (Some("GPU-1".to_owned()), Some(2));
            let device = FoundDevice { handle: 1, subdevice, uuid, groups: vec![group] };
            let devices = vec![device];
            let client = Client { handle: 0xc1d0_0001, devices, objects: 1, holds: Vec::new() };
            let info = ProcessInfo::read(test.child.key.pid).unwrap();
            let process = GpuProcess { info, nodes: Vec::new(), clients: Ok(vec![client]) };
            test.backend.adopt_inspected(TASK, &process, ContextOptions::default()).unwrap();
            let [queue] = test.backend.queues_of(TASK)[..] else {
                panic!("one context, one queue")
            };
            (test, queue)
        }

        /// All events until a command is answered, and for a while after.
        fn events(&mut self, is_answer: impl Fn(&Event) -> bool) -> Vec<Event> {
            let (since, mut events) = (Instant::now(), Vec::new());
            while !events.iter().any(&is_answer) {
                assert!(since.elapsed().as_secs() < 20, "no answer: {events:?}");
                events.extend(self.backend.poll_event());
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            for _ in 0..50 {
                events.extend(self.backend.poll_event());
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            events
        }
    }

    #[test]
    fn a_context_that_no_longer_exists_vanishes_once_and_is_no_problem() {
        for has_ended in [false, true] {
            let (mut test, queue) = BackendTest::new(&format!("nvidia-gone-{has_ended}"));
            test.backend.submit(Command::Preempt { queue, level: PreemptLevel::Interrupt });
            if has_ended {
                test.child.kill();
            }
            let gone = Event::PreemptFailed { queue, fault: Fault::Gone };
            let events = test.events(|event| *event == gone);
            let count = |wanted: Event| events.iter().filter(|event| **event == wanted).count();
            assert_eq!(count(gone), 1, "{events:?}");
            let vanished = count(Event::QueueVanished { queue });
            assert!(vanished == 1 || has_ended && vanished == 0, "{events:?}");
            assert_eq!(test.backend.queues_of(TASK), []);
            // Further commands are answered at once.
            test.backend.submit(Command::Resume { queue });
            let answered = test.events(|event| *event == Event::Resumed { queue });
            assert!(!answered.contains(&Event::QueueVanished { queue }), "{answered:?}");
            let mut notes = std::iter::from_fn(|| test.backend.poll_report());
            assert!(notes.all(|note| !matches!(note, ControllerReport::Problem(_))));
        }
    }
}
