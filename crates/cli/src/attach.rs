//! `gpreempt attach`: priorities for processes that already run, until the command ends.

mod account;
mod beside;
mod look;
mod options;
mod plan;
mod regrouped;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpreempt_core::priority::Priority;
use gpreempt_wire::client::{ClientError, Follow};
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::request::Request;
use gpreempt_wire::role::Role;
use gpreempt_wire::state::{Snapshot, TaskSnapshot};
use gpreempt_wire::traits::TraitsChange;

use crate::args::AttachArgs;
use crate::daemon;
use crate::failure::Failure;
use crate::link::{Link, refuse_beside_private_session};
use crate::output;
use crate::stop::Stop;
pub(crate) use account::{Account, Voice};
use regrouped::Regrouped;

/// How long the command waits for events at the most, so that signals are noticed.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// How long an attached process may take until its contexts are known.
const CONTEXTS_MAX: Duration = Duration::from_millis(100);
/// How often it is looked meanwhile.
const CONTEXTS_STEP: Duration = Duration::from_millis(2);

pub(crate) fn main(args: &AttachArgs) -> Result<(), Failure> {
    refuse_named_twice(args)?;
    if args.dry_run {
        return plan::print(&look::targets(args)?, args);
    }
    let stop = Stop::on_signals()?;
    refuse_beside_private_session()?;
    let mut link = Link::open(&options::wanted(args))?;
    if !link.is_private() {
        let snapshot = daemon::snapshot(&mut link.client)?;
        beside::refuse_what_only_a_session_can(args, &snapshot)?;
    }
    let voice = if args.json { Voice::Json } else { Voice::Text };
    let follow = link.another(Role::Monitor)?.follow(&Request::Follow);
    let follow = follow.map_err(|error| daemon::failure(&error))?;
    let mut attach = Attach::new(link, follow, Account::new(voice));
    let result = attach.begin(args).and_then(|()| attach.run(args.time, &stop));
    // Whatever happened, everything is put back before the command ends.
    let account = attach.end()?;
    result?;
    account.over()
}

fn refuse_named_twice(args: &AttachArgs) -> Result<(), Failure> {
    let mut pids = BTreeSet::new();
    match args.processes.iter().find(|target| !pids.insert(target.pid)) {
        Some(target) => Err(Failure::input(format_args!("process {} is named twice", target.pid))),
        None => Ok(()),
    }
}

/// A running command.
struct Attach {
    link: Link,
    follow: Follow,
    account: Account,
    targets: BTreeMap<u32, Target>,
    /// Queues that were counted already.
    queues: BTreeSet<u64>,
    regrouped: Regrouped,
}

/// An attached process.
struct Target {
    /// Its place among those that were named, from 1.
    task: u64,
    priority: Priority,
    /// What it had before, if it was scheduled.
    before: Option<TraitsChange>,
}

impl Attach {
    fn new(link: Link, follow: Follow, account: Account) -> Self {
        let (targets, queues) = (BTreeMap::new(), BTreeSet::new());
        Self { link, follow, account, targets, queues, regrouped: Regrouped::default() }
    }

    /// Gives the named processes their priorities: all of them, or none.
    fn begin(&mut self, args: &AttachArgs) -> Result<(), Failure> {
        let before = daemon::snapshot(&mut self.link.client)?;
        let is_known = |pid: u32| before.tasks.iter().any(|task| task.pid == pid);
        // Those of which the service knows nothing come first: it refuses most of them, and then
        // the others stay as they are.
        let named = (1..).zip(&args.processes);
        let (known, strange): (Vec<_>, Vec<_>) = named.partition(|(_, named)| is_known(named.pid));
        for (task, named) in strange.into_iter().chain(known) {
            let process = daemon::process(named.pid)?;
            // PANIC: the arguments allow 0 to 15 only.
            let priority =
                Priority::new(named.priority.unwrap_or(args.priority)).expect("a priority");
            let weight = named.weight.and_then(std::num::NonZeroU32::new);
            let change = TraitsChange { priority: Some(priority), weight, deadline_us: None };
            daemon::tell(&mut self.link.client, &Request::Set { process, change })?;
            let had = before.tasks.iter().find(|task| task.pid == named.pid);
            let before = had.and_then(|had| beside::traits_of(had, named.weight.is_some()));
            self.targets.insert(named.pid, Target { task, priority, before });
        }
        let snapshot = self.contexts()?;
        for named in &args.processes {
            let Some(target) = self.targets.get(&named.pid) else { continue };
            let task = snapshot.tasks.iter().find(|task| task.pid == named.pid);
            self.queues.extend(task.into_iter().flat_map(|t| t.queues.iter().map(|q| q.id)));
            self.account.attached(named.pid, task, target.priority)?;
        }
        Ok(())
    }

    /// What the service knows when the contexts of all targets were found, or do not come.
    fn contexts(&mut self) -> Result<Snapshot, Failure> {
        let until = Instant::now() + CONTEXTS_MAX;
        loop {
            let snapshot = daemon::snapshot(&mut self.link.client)?;
            let has_contexts = |pid: &u32| {
                let task = snapshot.tasks.iter().find(|task| task.pid == *pid);
                task.is_some_and(|task| !task.queues.is_empty())
            };
            if self.targets.keys().all(has_contexts) || Instant::now() >= until {
                return Ok(snapshot);
            }
            std::thread::sleep(CONTEXTS_STEP);
        }
    }

    /// Until the time is over, the command is told to end, or no target is left.
    fn run(&mut self, time: Option<Duration>, stop: &Stop) -> Result<(), Failure> {
        let until = time.map(|time| Instant::now() + time);
        while !stop.is_set() && !self.targets.is_empty() && !self.link.has_ended() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            output::check_reader()?;
            for problem in self.link.take_problems() {
                self.account.problem(&problem)?;
            }
            match self.follow.next_within(left.unwrap_or(WAIT_MAX).min(WAIT_MAX)) {
                Ok(Some(event)) => self.take(&event)?,
                Ok(None) => self.tell_regrouped()?,
                // A private session says itself why it ended.
                Err(ClientError::HungUp) if self.link.is_private() => break,
                Err(error) => return Err(daemon::failure(&error)),
            }
        }
        Ok(())
    }

    fn take(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(process) = event.process else {
            return if self.is_decision(event) { self.account.decision(event) } else { Ok(()) };
        };
        let pid = process.pid();
        let is_target = self.targets.contains_key(&pid);
        match (event.kind, event.queue) {
            _ if self.is_decision(event) => self.account.decision(event),
            (EventKind::Appeared, 0) if !is_target => {
                self.account.appeared(pid, event.name.as_str())
            }
            (EventKind::Appeared, queue) if is_target && queue != 0 => {
                if self.queues.insert(queue) {
                    self.regrouped.appeared(pid);
                }
                Ok(())
            }
            (EventKind::Vanished, 0) => self.take_end(pid),
            (EventKind::Vanished, queue) => {
                if self.queues.remove(&queue) && is_target {
                    self.regrouped.vanished(pid);
                }
                Ok(())
            }
            (EventKind::Changed, _) => self.take_change(pid, event.priority),
            (_, _) => Ok(()),
        }
    }

    /// Whether this is a decision of the scheduler that concerns this command: in its own session
    /// all of them, beside a daemon those about its processes.
    fn is_decision(&self, event: &Event) -> bool {
        let is_own = |event: &Event| {
            event.process.is_some_and(|process| self.targets.contains_key(&process.pid()))
        };
        let kinds = [
            EventKind::Preempt,
            EventKind::Resume,
            EventKind::Boost,
            EventKind::Linger,
            EventKind::Fault,
        ];
        kinds.contains(&event.kind) && (self.link.is_private() || is_own(event))
    }

    fn take_end(&mut self, pid: u32) -> Result<(), Failure> {
        self.regrouped.forget(pid);
        match self.targets.remove(&pid) {
            Some(target) => self.account.ended(target.task),
            None => Ok(()),
        }
    }

    /// A process has another priority, or none: another command asked for it.
    fn take_change(&mut self, pid: u32, priority: Option<Priority>) -> Result<(), Failure> {
        let Some(target) = self.targets.get_mut(&pid) else { return Ok(()) };
        match priority {
            None => {
                self.targets.remove(&pid);
                self.account.detached(pid)
            }
            Some(priority) if priority != target.priority => {
                target.priority = priority;
                self.account.set(pid, priority)
            }
            Some(_) => Ok(()),
        }
    }

    fn tell_regrouped(&mut self) -> Result<(), Failure> {
        for (pid, appeared, vanished) in self.regrouped.take() {
            if let Some(target) = self.targets.get(&pid) {
                self.account.regrouped(target.task, appeared, vanished)?;
            }
        }
        Ok(())
    }

    /// Puts every target back as it was.
    fn end(mut self) -> Result<Account, Failure> {
        self.tell_holds();
        let restored = match self.link.is_private() {
            // The end of its service restores everything.
            true => Ok(()),
            false => self.restore(),
        };
        drop(self.follow);
        for problem in self.link.take_problems() {
            // What cannot be told must be put back all the same.
            let _ = self.account.problem(&problem);
        }
        self.link.end()?;
        restored?;
        Ok(self.account)
    }

    /// How often the device was held for each target, as far as the service still answers.
    fn tell_holds(&mut self) {
        let Ok(snapshot) = daemon::snapshot(&mut self.link.client) else { return };
        let is_target = |task: &&TaskSnapshot| self.targets.contains_key(&task.pid);
        for task in snapshot.tasks.iter().filter(is_target) {
            let holds = task.queues.iter().filter_map(|queue| queue.hold.as_ref());
            for hold in holds.filter(|hold| hold.problem.is_none()) {
                // Whatever cannot be told must be put back all the same.
                let _ = self.account.held(task.pid, hold);
            }
        }
    }

    /// Gives every target back what it had beside a daemon.
    fn restore(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        for (pid, target) in std::mem::take(&mut self.targets) {
            let process = daemon::process(pid)?;
            let request = match target.before {
                Some(change) => Request::Set { process, change },
                None => Request::Detach { process },
            };
            match self.link.client.expect_ok(&request) {
                // One that ended just now has nothing to be given back.
                Ok(()) | Err(ClientError::Refused(_)) => {}
                Err(error) => {
                    let failure = daemon::failure(&error);
                    result = result.and(Err(failure));
                }
            }
        }
        result
    }
}
