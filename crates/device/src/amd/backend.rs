//! AMD devices as the scheduler's loop sees them.
//!
//! A queue is a queue for kernels of an adopted process; those for copies are left alone. Each
//! process has a worker thread with its session, or a patched KFD has one thread for all of them
//! (`fleet`). Nothing is written in the journal for that but
//! whose process it is: when we die, the kernel resumes what we suspended. Where a process cannot
//! be had in this way it is paused as a whole, which is written down.

mod adoption;
mod backoff;
mod change_over;
mod fleet;
mod hold_session;
mod mqds;
mod report;
mod rings;
mod scout;
mod step_back;
mod whole;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::Receiver;

use gpreempt_core::backend::Backend;
use gpreempt_core::backend::Command;
use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::event::Event;
use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Duration;

use super::abi::version::Version;
use super::own_calls::OwnCalls;
use super::site::Site;
use super::topology::{Gfx, Topology};
use super::way::InUse;
use crate::controller::{Awaited, Limit, Note, Numbering, Reporter, Waker};
use crate::ledger::Ledger;
use crate::process::ProcessKey;
use fleet::{Fleet, Order};
use mqds::Dumps;
use report::{Listed, Report};
use rings::{RingReader, Round};
use scout::Scout;
use worker::{Job, Worker};

/// The AMD devices of this machine, and the processes on them that were adopted.
#[derive(Debug)]
pub struct AmdBackend {
    site: Site,
    ledger: Ledger,
    /// What debugfs shows, for the workers.
    dumps: Dumps,
    devices: Vec<Device>,
    tasks: BTreeMap<TaskId, Adopted>,
    queues: BTreeMap<QueueId, Target>,
    /// Who reads the rings of which process.
    readers: BTreeMap<ProcessKey, RingReader>,
    round: Round,
    users: Vec<ProcessKey>,
    /// Workers of tasks that were released, until they have ended.
    leaving: Vec<(ProcessKey, Worker)>,
    events: VecDeque<Event>,
    notes: VecDeque<Note>,
    incoming: Receiver<Report>,
    reports: Reporter<Report>,
    numbering: Numbering,
    scout: Scout,
    /// All processes at once, on a patched KFD.
    fleet: Option<Fleet>,
    /// Whether the kernel schedules, and we do not.
    is_externally_scheduled: bool,
    /// What is said while the list of all queues is gone.
    unlisted: Option<String>,
    /// In which way queues are stopped, if the kernel does not schedule and if it does.
    ways: [InUse; 2],
}

#[derive(Debug)]
struct Device {
    gpu_id: u32,
    uuid: String,
    /// What a call costs.
    cost: Duration,
    /// How many it takes to stop everybody but one process.
    calls: u64,
}

/// A process with a task. It has a worker as soon as it uses KFD.
#[derive(Debug)]
struct Adopted {
    process: ProcessKey,
    worker: Option<Worker>,
    limit: Option<Limit>,
    /// Whether it is controlled together with the others.
    in_fleet: bool,
    /// Whether it is let go of, to be controlled in another way.
    is_moving: bool,
    priority: Option<Priority>,
}

/// A queue, or all that a process has on a device.
#[derive(Debug)]
struct Target {
    task: TaskId,
    listed: Listed,
}

impl AmdBackend {
    /// A backend for the devices of a site. It writes down what it does in that ledger, and wakes
    /// its loop when something has happened.
    ///
    /// # Errors
    /// If the devices are not shown, or there are no more descriptors or threads.
    pub fn new(site: Site, ledger: Ledger, numbering: Numbering, waker: Waker) -> io::Result<Self> {
        let topology = Topology::read(&site.places.sysfs)?;
        let (mut devices, mut events) = (Vec::new(), VecDeque::new());
        for (index, node) in topology.devices().enumerate() {
            let device = numbering.device(index);
            let capabilities = capabilities(&site, node.gfx);
            events.push_back(Event::DeviceAppeared { device, capabilities });
            let cost = capabilities.preempt_cost;
            devices.push(Device { gpu_id: node.gpu_id, uuid: node.uuid(), cost, calls: 1 });
        }
        let (reports, incoming) = Reporter::new(waker);
        let scout = Scout::start(site.clone(), reports.clone())?;
        let is_externally_scheduled = site.own_calls != OwnCalls::Absent && site.kernel_schedules();
        let fleet = match site.own_calls {
            OwnCalls::Absent => None,
            OwnCalls::Denied | OwnCalls::Usable => {
                let (site, ledger, reports) = (site.clone(), ledger.clone(), reports.clone());
                Some(Fleet::start(site, ledger, reports, is_externally_scheduled)?)
            }
        };
        let ways = [false, true].map(|schedules| site.way_if(schedules));
        let dumps = Dumps::of(site.places.debugfs.join("mqds"));
        let mut new = Self {
            site,
            ledger,
            dumps,
            devices,
            tasks: BTreeMap::new(),
            queues: BTreeMap::new(),
            readers: BTreeMap::new(),
            round: Round::new(),
            users: Vec::new(),
            leaving: Vec::new(),
            events,
            notes: VecDeque::new(),
            incoming,
            reports,
            numbering,
            scout,
            fleet,
            is_externally_scheduled: false,
            unlisted: None,
            ways,
        };
        if is_externally_scheduled {
            new.set_externally_scheduled(true);
        }
        Ok(new)
    }

    /// The process that a queue belongs to.
    pub fn process_of(&self, queue: QueueId) -> Option<ProcessKey> {
        let target = self.queues.get(&queue)?;
        self.tasks.get(&target.task).map(|adopted| adopted.process)
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.incoming.try_recv() {
            match report {
                Report::Event(event) => self.events.push_back(event),
                Report::Problem(problem) => self.notes.push_back(Note::Problem(problem)),
                Report::Resolved(sentence) => self.notes.push_back(Note::Solved(sentence)),
                Report::Solved(pid) => {
                    // The two ways in which sentences about a process begin.
                    for beginning in [format!("process {pid} "), format!("process {pid}:")] {
                        self.notes.push_back(Note::Solved(beginning));
                    }
                }
                Report::Users(users) => self.take_users(users),
                Report::Queues { task, queues, fresh } => self.take_queues(task, queues, fresh),
                Report::Limit(task, limit) => {
                    if let Some(adopted) = self.tasks.get_mut(&task) {
                        adopted.limit = limit;
                    }
                }
                Report::KernelSchedules(schedules) => self.set_externally_scheduled(schedules),
                Report::OwnCalls(own_calls) => self.set_own_calls(own_calls),
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
                None => self.notes.push_back(Note::Appeared(*process)),
            }
        }
        let left = self.users.iter().filter(|process| !users.contains(process));
        let ended: Vec<TaskId> = left.filter_map(|process| self.task_of(*process)).collect();
        self.users = users;
        for task in ended {
            self.let_go(task);
            self.notes.push_back(Note::Ended(task));
        }
    }

    fn take_queues(&mut self, task: TaskId, queues: Vec<Listed>, fresh: bool) {
        if !self.tasks.contains_key(&task) {
            return;
        }
        let is_kept =
            |target: &Target| !fresh && queues.iter().any(|listed| target.listed.is_same(listed));
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
            self.queues.insert(queue, Target { task, listed });
            self.events.push_back(Event::QueueAppeared { queue, task, device, stopped: false });
            appeared += 1;
        }
        self.aim_reader(task);
        if appeared + vanished > 0 {
            self.notes.push_back(Note::Regrouped { task, appeared, vanished });
            self.judge_costs();
        }
    }

    /// Tells what stopping everybody but one costs now: a call for each process, and the kernel
    /// makes them one after the other.
    fn judge_costs(&mut self) {
        for index in 0..self.devices.len() {
            let device = &mut self.devices[index];
            let here = |target: &&Target| target.listed.entry.gpu_id == device.gpu_id;
            let tasks: BTreeSet<TaskId> =
                self.queues.values().filter(here).map(|target| target.task).collect();
            let calls = u64::try_from(tasks.len().saturating_sub(1)).unwrap_or(u64::MAX).max(1);
            // A patched one stops all of them in one call.
            let calls = if self.site.own_calls == OwnCalls::Usable { 1 } else { calls };
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

    /// Says that queues are gone. Returns how many.
    fn forget(&mut self, gone: &[QueueId]) -> usize {
        for queue in gone {
            self.queues.remove(queue);
            self.events.push_back(Event::QueueVanished { queue: *queue });
        }
        gone.len()
    }

    /// Somebody has let go of a process: because that has ended, or because it is to be controlled
    /// in another way.
    fn take_end(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        let is_moving = std::mem::take(&mut adopted.is_moving);
        if adopted.worker.is_none() && !is_moving {
            return;
        }
        let (process, worker) = (adopted.process, adopted.worker.take());
        self.leaving.extend(worker.map(|worker| (process, worker)));
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let gone: Vec<QueueId> = own.map(|(queue, _)| *queue).collect();
        self.forget(&gone);
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

    /// Passes a command on, if there is anybody to carry it out.
    fn give(&self, queue: QueueId, awaited: Awaited) -> bool {
        let Some(target) = self.queues.get(&queue) else { return false };
        let adopted = self.tasks.get(&target.task);
        let listed = &target.listed;
        let job = Job { name: listed.name(), gpu_id: listed.entry.gpu_id, awaited };
        if adopted.is_some_and(|adopted| adopted.in_fleet) {
            let order = Order::Do(target.task, job);
            return self.fleet.as_ref().is_some_and(|fleet| fleet.tell(order));
        }
        let worker = adopted.and_then(|adopted| adopted.worker.as_ref());
        worker.is_some_and(|worker| worker.give(job))
    }
}

/// What a stop and a resume cost. Nobody has measured it: these are guesses, higher where a call
/// moves every queue of the device.
fn capabilities(site: &Site, gfx: Gfx) -> Capabilities {
    let cost = if gfx.moves_single_queues() { 300 } else { 1000 };
    Capabilities {
        mechanism: mechanism(site, gfx),
        level: PreemptLevel::Interrupt,
        preempt_cost: Duration::from_micros(cost),
        resume_cost: Duration::from_micros(cost),
        // What was fetched may still run.
        quiet: Duration::from_millis(2),
        hold: false,
        hardware_priority: false,
    }
}

/// Whether a device's processes can be stopped in one way or the other.
fn mechanism(site: &Site, gfx: Gfx) -> Mechanism {
    let abilities = site.door.version().map(Version::abilities);
    let can_suspend = abilities.is_ok_and(|can| can.suspend) && gfx.knows_debuggers();
    let can_pause = abilities.is_ok_and(|can| can.pause) && site.powers.may_checkpoint();
    let can_call = site.own_calls == OwnCalls::Usable;
    if can_call || can_suspend || can_pause { Mechanism::Stop } else { Mechanism::ObserveOnly }
}

/// What is shown of a ring that cannot be read: it is taken to be busy all the time.
const BUSY: RingView = RingView { put: 1, get: 0, running: Some(true) };

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
        self.look_at(queue)
    }

    fn poll_event(&mut self) -> Option<Event> {
        if let Some(fleet) = &self.fleet {
            fleet.beat();
        }
        self.take_reports();
        self.events.pop_front()
    }
}

#[cfg(test)]
mod tests;
