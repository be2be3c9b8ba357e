//! `gpreempt attach`: priorities for processes that already run, without a daemon.

mod account;
mod devices;
mod family;
mod options;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpreempt_core::config::Config;
use gpreempt_core::driver::Driver;
use gpreempt_core::event::{Event, TaskTraits};
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::time::Instant;
use gpreempt_device::act;
use gpreempt_device::controller::{HoldStatus, Note, Waker};
use gpreempt_device::hold_pages::HoldPages;
use gpreempt_device::journal::Journal;
use gpreempt_device::keeper::{self, Keeper, monotonic_ns};
use gpreempt_device::ledger::Ledger;
use gpreempt_device::nvidia::backend::Wishes;
use gpreempt_device::nvidia::hold::GripSettings;
use gpreempt_device::nvidia::node::Node;
use gpreempt_device::nvidia::survey::{LookError, look};
use gpreempt_device::process::{ProcessInfo, ProcessKey};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::AttachArgs;
use crate::control::{Answer, Listener, Request};
use crate::daemon;
use crate::failure::Failure;
use account::Account;
pub(crate) use account::Voice;
pub(crate) use devices::Gates;
use devices::{Devices, Seen};

/// How long the loop sleeps at the most, so that signals and requests are noticed.
const SLEEP_MAX: Duration = Duration::from_millis(20);

pub(crate) fn main(args: &AttachArgs) -> Result<(), Failure> {
    if !args.dry_run {
        daemon::refuse_beside("schedules the GPUs", "`gpreempt set PID -p PRIORITY`")?;
    }
    let gates = Gates::look(args.driver)?;
    if args.dry_run {
        return plan::print(&targets(args, &gates)?, args);
    }
    let journal = Journal::open().map_err(Failure::run)?;
    // From here on nobody else attaches until those we look at are written down as ours. What was
    // left behind has to be undone before we look, or we would take it for the original.
    let lock = journal.lock().map_err(Failure::run)?;
    keeper::clean_up(&journal, act::undo).map_err(Failure::run)?;
    refuse_rivals(&journal, args)?;
    let targets = targets(args, &gates)?;
    refuse_rivals(&journal, args)?;
    let voice = if args.json { Voice::Json } else { Voice::Text };
    let (config, hold) = (options::config(args), options::hold(args));
    let mut attach = Attach::begin(gates, journal, config, hold, voice)?;
    let added = targets
        .iter()
        .try_for_each(|(process, traits)| attach.add(process, *traits, options::wishes(args)));
    drop(lock);
    let result = added.and_then(|()| {
        attach.judge_others();
        attach.run(args.time)
    });
    // Whatever happened, everything is put back before we leave.
    attach.end()?;
    result?;
    attach.account.over()
}

/// Whom the arguments name, and what they get.
fn targets(args: &AttachArgs, gates: &Gates) -> Result<Vec<(Seen, TaskTraits)>, Failure> {
    let mut targets: Vec<(Seen, TaskTraits)> = Vec::new();
    for target in &args.processes {
        let pid = target.pid;
        let process = gates.see(pid)?;
        if targets.iter().any(|(known, _)| known.info().key == process.info().key) {
            return Err(Failure::input(format_args!("process {pid} is named twice")));
        }
        if let Seen::Nvidia(process) = &process {
            if let Err(problem) = &process.clients {
                return Err(Failure::input(problem));
            }
            if process.nodes.iter().any(|held| held.node == Node::Modeset) {
                return Err(Failure::input(format_args!(
                    "process {pid} drives a display; with a priority it could freeze the screen"
                )));
            }
        }
        // PANIC: the arguments allow 0 to 15 only.
        let priority = Priority::new(target.priority.unwrap_or(args.priority)).expect("a priority");
        let weight = target.weight.unwrap_or(1);
        targets.push((process, TaskTraits { priority, weight, ..TaskTraits::default() }));
    }
    Ok(targets)
}

/// Refuses to attach beside another session. Two that do not know of each other would each leave
/// one low process runnable with the shortest slice, and those two starve each other (measured: no
/// progress at all); and what one changes the other would take for the original.
fn refuse_rivals(journal: &Journal, args: &AttachArgs) -> Result<(), Failure> {
    let Some(rival) = rival_in(journal, |_| false)? else { return Ok(()) };
    let same = args.processes.iter().any(|target| target.pid == rival.pid);
    let problem = if same { "is attached already" } else { "is attached by another command" };
    Err(Failure::input(format_args!(
        "process {rival} {problem}; end that command first, or attach all processes in one"
    )))
}

/// A process that began to use a device, on the devices that it uses.
fn see(process: ProcessKey) -> Result<Seen, LookError> {
    if crate::amd::is_user(process.pid) {
        return Ok(Seen::Amd(ProcessInfo::read(process.pid)?));
    }
    look(process.pid).map(Seen::Nvidia)
}

/// A process that another session has changed.
fn rival_in(
    journal: &Journal,
    is_own: impl Fn(ProcessKey) -> bool,
) -> Result<Option<ProcessKey>, Failure> {
    journal.sessions().map_err(Failure::run)?;
    let sessions = journal.with_others().into_iter().flat_map(|j| j.sessions().unwrap_or_default());
    let mut entries = sessions.flat_map(|session| session.entries().unwrap_or_default());
    let rival = entries.find(|entry| !is_own(entry.process) && entry.process.check().is_ok());
    Ok(rival.map(|entry| entry.process))
}

/// A running command.
pub(crate) struct Attach {
    journal: Journal,
    backend: Devices,
    driver: Driver,
    keeper: Keeper,
    listener: Listener,
    account: Account,
    tasks: BTreeMap<TaskId, Attached>,
    last_task: u64,
    expected: Option<Expected>,
    waker: Waker,
}

/// Whoever is to be attached as soon as it uses a GPU: a process and its children.
#[derive(Clone, Copy)]
struct Expected {
    root: u32,
    traits: TaskTraits,
}

/// An attached process.
#[derive(Clone, Copy)]
struct Attached {
    pid: u32,
    traits: TaskTraits,
}

impl Attach {
    /// Begins a session with nobody in it.
    pub(crate) fn begin(
        gates: Gates,
        journal: Journal,
        config: Config,
        hold: Option<GripSettings>,
        voice: Voice,
    ) -> Result<Self, Failure> {
        let session = journal.begin().map_err(Failure::run)?;
        let holds = HoldPages::new().map_err(Failure::run)?;
        let keeper = Keeper::start_with(&session, Some(&holds)).map_err(Failure::run)?;
        let listener = Listener::new(&session).map_err(Failure::run)?;
        let waker = Waker::new().map_err(Failure::run)?;
        let ledger = Ledger::new(session).with_holds(Some(holds));
        let mut backend = Devices::new(gates, &ledger, &waker).map_err(Failure::run)?;
        let problem = hold.map(|settings| backend.enable_holds(settings)).transpose();
        let problem = problem.map_err(Failure::run)?.flatten();
        let driver = Driver::new(config).map_err(Failure::run)?;
        let (mut account, tasks) = (Account::new(voice), BTreeMap::new());
        if let Some(problem) = problem {
            account.problem(&problem)?;
        }
        let (last_task, expected) = (0, None);
        Ok(Self {
            journal,
            backend,
            driver,
            keeper,
            listener,
            account,
            tasks,
            last_task,
            expected,
            waker,
        })
    }

    /// From now on a process and its children are attached as soon as they use a GPU.
    pub(crate) fn expect(&mut self, root: u32, traits: TaskTraits) {
        self.expected = Some(Expected { root, traits });
    }

    /// Puts everybody back as they were.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        for (task, attached) in &self.tasks {
            for queue in self.backend.queues_of(*task) {
                if let Some(HoldStatus::Ready(figures)) = self.backend.hold_of(queue) {
                    // Whoever cannot be told must be put back all the same.
                    let _ = self.account.held(attached.pid, figures);
                }
            }
        }
        self.backend.release_all().map_err(Failure::run)
    }

    fn add(&mut self, process: &Seen, traits: TaskTraits, wishes: Wishes) -> Result<(), Failure> {
        // Somebody may have been detached since, so it is not enough to count them.
        self.last_task += 1;
        let task = TaskId(self.last_task);
        self.tell_scheduler(Event::TaskAppeared { task, traits })?;
        if let Err(problem) = self.backend.adopt(task, process, wishes) {
            self.tell_scheduler(Event::TaskVanished { task })?;
            return Err(Failure::input(problem));
        }
        self.backend.set_priority(task, traits.priority);
        self.tasks.insert(task, Attached { pid: process.info().key.pid, traits });
        let contexts = match process {
            Seen::Nvidia(_) => Some(self.backend.queues_of(task).len()),
            // They are listed when there is a session, which takes a moment.
            Seen::Amd(_) => None,
        };
        self.account.attached(process.info(), traits.priority, contexts)
    }

    fn tell_scheduler(&mut self, event: Event) -> Result<(), Failure> {
        let now = Instant::from_nanos(monotonic_ns());
        self.driver.tell(now, event).map_err(Failure::run)
    }

    /// The loop: the same that the simulator runs.
    fn run(&mut self, time: Option<Duration>) -> Result<(), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(Failure::run)?;
        }
        let until = time.map(|time| std::time::Instant::now() + time);
        while !stop.load(Ordering::Relaxed) && !self.tasks.is_empty() {
            if until.is_some_and(|until| std::time::Instant::now() >= until) {
                break;
            }
            self.turn()?;
        }
        Ok(())
    }

    /// One turn of the loop, and the sleep after it.
    pub(crate) fn turn(&mut self) -> Result<(), Failure> {
        if self.keeper.has_died() {
            return Err(Failure::run("the keeper was killed; everything was undone"));
        }
        self.keeper.beat();
        let now = Instant::from_nanos(monotonic_ns());
        let wait = self.driver.step(now, &mut self.backend);
        self.tell()?;
        self.listen()?;
        self.sleep(Duration::from_nanos(wait.as_nanos()).min(SLEEP_MAX));
        Ok(())
    }

    /// Sleeps until it is time or a worker is done.
    fn sleep(&self, time: Duration) {
        let nanos = i64::from(time.subsec_nanos());
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: nanos };
        let mut fds = [rustix::event::PollFd::new(&self.waker, rustix::event::PollFlags::IN)];
        // A signal wakes us as well, which is what it is for.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
        self.waker.clear();
    }

    /// Passes on what happened.
    fn tell(&mut self) -> Result<(), Failure> {
        while let Some(note) = self.backend.poll_note() {
            if let Note::Ended(task) = &note {
                self.forget(*task)?;
            }
            match (&note, self.expected) {
                (Note::Appeared(process), Some(expected))
                    if family::descends(process.pid, expected.root) =>
                {
                    self.take_in(*process, expected.traits)?;
                }
                _ => self.account.note(&note)?,
            }
        }
        while let Some(decision) = self.driver.scheduler_mut().poll_decision() {
            let process = self.backend.process_of(decision.queue);
            self.account.decision(process, &decision)?;
        }
        Ok(())
    }

    /// Attaches somebody who was expected. What does not work is said, and it runs as it is.
    fn take_in(&mut self, process: ProcessKey, traits: TaskTraits) -> Result<(), Failure> {
        let is_own = |rival: ProcessKey| self.tasks.values().any(|own| own.pid == rival.pid);
        let taken = match rival_in(&self.journal, is_own)? {
            Some(rival) => Err(format!("another command has attached process {rival}")),
            None => see(process).map_err(|error| error.to_string()),
        };
        let added = match taken {
            Ok(Seen::Nvidia(seen)) if seen.nodes.iter().any(|n| n.node == Node::Modeset) => {
                return Ok(());
            }
            Ok(seen) => self.add(&seen, traits, Wishes::default()),
            Err(problem) => Err(Failure::input(problem)),
        };
        self.judge_others();
        match added {
            Err(Failure::Input(problem)) => {
                self.account.problem(&format!("{process} runs without a priority: {problem}"))
            }
            other => other,
        }
    }

    /// Does what was asked for from other terminals.
    fn listen(&mut self) -> Result<(), Failure> {
        let mut requests = Vec::new();
        let attached: Vec<(TaskId, u32)> =
            self.tasks.iter().map(|(task, attached)| (*task, attached.pid)).collect();
        self.listener.serve(|request| {
            let pid = request.pid();
            if matches!(request, Request::Set { priority, .. } if priority > 15) {
                return Answer::Refused("a priority is a number from 0 to 15".to_owned());
            }
            match attached.iter().find(|(_, attached)| *attached == pid) {
                Some((task, _)) => {
                    requests.push((*task, request));
                    Answer::Done
                }
                None => Answer::NotMine,
            }
        });
        for (task, request) in requests {
            match request {
                Request::Set { priority, .. } => {
                    let Some(priority) = Priority::new(priority) else { continue };
                    let Some(attached) = self.tasks.get_mut(&task) else { continue };
                    attached.traits.priority = priority;
                    let traits = attached.traits;
                    self.backend.set_priority(task, priority);
                    self.tell_scheduler(Event::TaskChanged { task, traits })?;
                    self.judge_others();
                }
                Request::Detach { .. } => self.forget(task)?,
            }
            self.account.request(&request)?;
        }
        Ok(())
    }

    /// Puts a process back as it was.
    fn forget(&mut self, task: TaskId) -> Result<(), Failure> {
        if self.tasks.remove(&task).is_some() {
            self.tell_scheduler(Event::TaskVanished { task })?;
            self.backend.release(task);
            self.judge_others();
        }
        Ok(())
    }

    /// Whom the attached processes are compared with where all of them are of one class: everybody
    /// else on the GPU, who is not touched.
    fn judge_others(&mut self) {
        let has =
            |class: Class| self.tasks.values().any(|own| own.traits.priority.class() == class);
        let others = match (has(Class::Low), has(Class::High)) {
            (true, false) => Priority::new(8),
            (false, true) => Priority::new(7),
            (true, true) | (false, false) => None,
        };
        self.backend.set_others(others);
    }
}
