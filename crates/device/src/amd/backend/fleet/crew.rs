//! What the thread knows, and its loop.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use gpreempt_core::event::Fault;
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::Priority;
use rustix::event::{PollFd, PollFlags, poll};

use super::super::report::{Listed, Report};
use super::super::worker::{Job, timespec};
use super::{Order, Pulse};
use crate::amd::Site;
use crate::amd::own_calls::OwnCalls;
use crate::amd::session::{Epoch, QueueName};
use crate::controller::{Alone, Awaited, Reporter, Waker};
use crate::ledger::Ledger;
use crate::process::ProcessKey;

/// How long more commands are waited for when one has come.
const GATHER: Duration = Duration::from_micros(100);
/// How often it is looked what there is: nobody announces it.
const LOOK: Duration = Duration::from_millis(50);

/// A queue of a task: nobody else's, whatever its process is called.
pub(super) type Name = (TaskId, u32);

/// A process under control.
#[derive(Debug)]
pub(super) struct Aboard {
    pub(super) process: ProcessKey,
    /// What was last said of its queues.
    pub(super) listed: Option<Vec<Listed>>,
    pub(super) priority: Option<Priority>,
    /// Queues with priorities of their own.
    pub(super) own_priorities: BTreeMap<u32, Priority>,
    /// Whether the kernel was told a priority.
    pub(super) is_handed_over: bool,
    /// Its queues by number, to tell one from the next of that number.
    pub(super) seen: BTreeMap<u32, Seen>,
}

/// A queue that was in the last list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) epoch: Epoch,
    /// Its serial number, which no other queue has, or 0 if nobody knows.
    pub(super) serial: u64,
}

/// Everything the thread works with.
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) site: Site,
    pub(super) ledger: Ledger,
    pub(super) reports: Reporter<Report>,
    incoming: Receiver<Order>,
    waker: Waker,
    pub(super) pulse: Pulse,
    pub(super) aboard: BTreeMap<TaskId, Aboard>,
    /// What we preempted, and how often it was seen that it is not.
    pub(super) held: BTreeMap<Name, u8>,
    /// Whether the kernel schedules.
    pub(super) schedules: bool,
    /// Whether debugfs had the list of all queues.
    pub(super) has_list: bool,
    /// How often in succession it was not there.
    pub(super) misses: u8,
    /// Whether a call was refused that was not before.
    pub(super) is_refused: bool,
    /// When it was last looked whether there are calls.
    pub(super) probed: Instant,
    /// When what we hold was last asked for.
    pub(super) renewed: Instant,
}

/// Jobs of all processes that came together.
#[derive(Debug, Default)]
struct Gathered {
    stops: Vec<(TaskId, Job)>,
    resumes: Vec<(TaskId, Job)>,
    /// Nobody will say anything any more.
    is_over: bool,
}

impl Crew {
    pub(super) fn new(
        site: Site,
        ledger: Ledger,
        reports: Reporter<Report>,
        incoming: Receiver<Order>,
        waker: Waker,
        pulse: Pulse,
    ) -> Self {
        Self {
            site,
            ledger,
            reports,
            incoming,
            waker,
            pulse,
            aboard: BTreeMap::new(),
            held: BTreeMap::new(),
            schedules: false,
            has_list: false,
            misses: 0,
            is_refused: false,
            probed: Instant::now(),
            renewed: Instant::now(),
        }
    }

    /// Until nobody will say anything any more.
    pub(super) fn run(&mut self) -> Result<(), Alone> {
        let mut looked = Instant::now();
        loop {
            let left = LOOK.saturating_sub(looked.elapsed());
            let mut fds = [PollFd::new(&self.waker, PollFlags::IN)];
            let is_woken = poll(&mut fds, Some(&timespec(left))).is_ok_and(|ready| ready > 0);
            let before = self.aboard.len();
            if is_woken {
                let jobs = self.gather()?;
                self.carry_out(&jobs)?;
                if jobs.is_over {
                    return Ok(());
                }
            }
            // Whoever is new is looked at without waiting.
            if looked.elapsed() >= LOOK || self.aboard.len() > before {
                looked = Instant::now();
                self.look()?;
            }
            self.renew()?;
            self.look_at_calls()?;
        }
    }

    /// Takes orders; those that are about queues are done together.
    fn gather(&mut self) -> Result<Gathered, Alone> {
        self.waker.clear();
        std::thread::sleep(GATHER);
        let mut gathered = Gathered::default();
        loop {
            match self.incoming.try_recv() {
                Ok(Order::Do(task, job)) => match job.awaited {
                    Awaited::Preempt(_) => gathered.stops.push((task, job)),
                    Awaited::Resume(_) => gathered.resumes.push((task, job)),
                },
                Ok(Order::Add(task, process)) => self.add(task, process),
                Ok(Order::Remove(task)) => self.remove(task)?,
                Ok(Order::Priority(task, priority)) => self.set_priority(task, priority)?,
                Ok(Order::QueuePriority(task, queue, priority)) => {
                    self.set_queue_priority(task, queue, priority)?;
                }
                Err(TryRecvError::Empty) => return Ok(gathered),
                Err(TryRecvError::Disconnected) => {
                    gathered.is_over = true;
                    return Ok(gathered);
                }
            }
        }
    }

    fn carry_out(&mut self, jobs: &Gathered) -> Result<(), Alone> {
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
        jobs: &[(TaskId, Job)],
        results: &BTreeMap<Name, Result<(), Fault>>,
    ) -> Result<(), Alone> {
        for (task, job) in jobs {
            let result = results.get(&(*task, job.name.id)).copied();
            let result = result.filter(|_| self.is_current(*task, job));
            let result = result.unwrap_or(Err(Fault::Gone));
            self.reports.send(Report::Event(job.awaited.event(result)))?;
        }
        Ok(())
    }

    fn add(&mut self, task: TaskId, process: ProcessKey) {
        // Whoever had it before us may have crossed it out.
        let _ = self.ledger.claim(process);
        let aboard = Aboard {
            process,
            listed: None,
            priority: None,
            own_priorities: BTreeMap::new(),
            is_handed_over: false,
            seen: BTreeMap::new(),
        };
        self.aboard.insert(task, aboard);
    }

    /// Puts a process back as it was.
    fn remove(&mut self, task: TaskId) -> Result<(), Alone> {
        let names: Vec<Name> = self.held.keys().filter(|name| name.0 == task).copied().collect();
        self.resume(&names);
        let Some(aboard) = self.aboard.remove(&task) else { return Ok(()) };
        self.held.retain(|name, _| name.0 != task);
        let _ = self.reports.send(Report::Solved(aboard.process.pid));
        if let Err(problem) = self.ledger.undo_process(aboard.process) {
            self.reports.send(Report::Problem(problem.to_string()))?;
        }
        self.reports.send(Report::Over(task))
    }

    /// The same for all, whether anybody listens or not.
    pub(super) fn put_all_back(&mut self) {
        let names: Vec<Name> = self.held.keys().copied().collect();
        self.resume(&names);
        let tasks: Vec<TaskId> = self.aboard.keys().copied().collect();
        for task in tasks {
            let _ = self.remove(task);
        }
    }

    /// The queues that jobs are about, as far as they are still those.
    fn names(&self, jobs: &[(TaskId, Job)]) -> Vec<Name> {
        let current = jobs.iter().filter(|(task, job)| self.is_current(*task, job));
        current.map(|(task, job)| (*task, job.name.id)).collect()
    }

    /// The serial number of a queue, or 0 if nobody knows.
    pub(super) fn serial(&self, (task, queue): Name) -> u64 {
        let seen = self.aboard.get(&task).and_then(|aboard| aboard.seen.get(&queue));
        seen.map_or(0, |seen| seen.serial)
    }

    /// Whether the queue of that number is still the one that was meant.
    fn is_current(&self, task: TaskId, job: &Job) -> bool {
        self.is_named(task, job.name)
    }

    /// The same of a name.
    pub(super) fn is_named(&self, task: TaskId, name: QueueName) -> bool {
        let seen = self.aboard.get(&task).and_then(|aboard| aboard.seen.get(&name.id));
        seen.is_some_and(|seen| seen.epoch == name.epoch)
    }

    /// Whether we may call.
    pub(super) fn may_act(&self) -> bool {
        self.site.own_calls == OwnCalls::Usable
    }
}
