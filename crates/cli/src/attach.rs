//! `gpreempt attach`: gives running processes priorities until the command ends.
//!
//! The command sets the priorities through the service, prints its events, and restores what each
//! process had before it ends.

mod options;
mod output;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gpreempt_core::priority::Priority;
use gpreempt_wire::client::{ClientError, EventStream};
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};

use crate::args::AttachArgs;
use crate::effect::{Effect, Subject};
use crate::failure::Failure;
use crate::memory_move::is_evicted;
use crate::output::check_reader;
use crate::service::{self, ServiceClient, refuse_beside_private_session};
use crate::signals::Stop;
use crate::write_file;
use output::ContextChanges;
pub(crate) use output::{AttachOutput, OutputFormat};

/// The longest wait for an event, so that signals are noticed.
const WAIT_MAX: Duration = Duration::from_millis(20);
/// How long an attached process may take until its contexts are known.
const CONTEXTS_MAX: Duration = Duration::from_millis(100);
/// How often to check meanwhile.
const CONTEXTS_STEP: Duration = Duration::from_millis(2);

pub(crate) fn main(args: &AttachArgs) -> Result<(), Failure> {
    refuse_named_twice(args)?;
    if args.dry_run {
        return plan::print(args);
    }
    if let Some(path) = &args.hold_records {
        write_file::probe(path).map_err(Failure::input)?;
    }
    let stop = Stop::on_signals()?;
    refuse_beside_private_session()?;
    let mut service = ServiceClient::open(&options::session(args))?;
    if !service.is_private() {
        let snapshot = service::snapshot(&mut service.client)?;
        options::refuse_session_options(args, &snapshot)?;
    }
    let format = if args.json { OutputFormat::Json } else { OutputFormat::Text };
    let events = service.another(Role::Monitor)?.follow(&Request::Follow)?;
    let mut attach = Attach::new(service, events, AttachOutput::new(format));
    let result = attach.begin(args).and_then(|()| attach.run(args.time, &stop));
    // Whatever happened, everything is restored before the command ends.
    let output = attach.end()?;
    result?;
    output.over()
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
    service: ServiceClient,
    events: EventStream,
    output: AttachOutput,
    targets: BTreeMap<u32, Target>,
    /// Queues that are known already.
    queues: BTreeSet<u64>,
    changes: ContextChanges,
}

/// An attached process.
struct Target {
    /// Its position among the arguments, from 1.
    task: u64,
    priority: Priority,
    /// Its attributes before, if it was scheduled.
    before: Option<SchedAttrChange>,
}

impl Attach {
    fn new(service: ServiceClient, events: EventStream, output: AttachOutput) -> Self {
        let (targets, queues) = (BTreeMap::new(), BTreeSet::new());
        Self { service, events, output, targets, queues, changes: ContextChanges::default() }
    }

    /// Gives the named processes their priorities: all of them, or none.
    fn begin(&mut self, args: &AttachArgs) -> Result<(), Failure> {
        let before = service::snapshot(&mut self.service.client)?;
        let is_known = |pid: u32| before.tasks.iter().any(|task| task.pid == pid);
        // Processes that the service does not know come first: it refuses most of them, and then
        // the others stay unchanged.
        let named = (1..).zip(&args.processes);
        let (known, unknown): (Vec<_>, Vec<_>) = named.partition(|(_, named)| is_known(named.pid));
        for (task, named) in unknown.into_iter().chain(known) {
            let process = service::process(named.pid)?;
            // PANIC: the arguments allow 0 to 15 only.
            let priority =
                Priority::new(named.priority.unwrap_or(args.priority)).expect("a priority");
            let weight = named.weight.and_then(std::num::NonZeroU32::new);
            let change = SchedAttrChange {
                priority: Some(priority),
                weight,
                latency_budget: args.latency_budget,
                ..SchedAttrChange::default()
            };
            self.service.client.expect_ok(&Request::Set { process, change })?;
            let had = before.tasks.iter().find(|task| task.pid == named.pid);
            let before = had.and_then(|had| options::attributes_of(had, &change));
            self.targets.insert(named.pid, Target { task, priority, before });
        }
        let snapshot = self.contexts()?;
        for named in &args.processes {
            let Some(target) = self.targets.get(&named.pid) else { continue };
            let task = snapshot.tasks.iter().find(|task| task.pid == named.pid);
            self.queues.extend(task.into_iter().flat_map(|t| t.queues.iter().map(|q| q.id)));
            self.output.attached(named.pid, task, target.priority)?;
            let subject =
                Subject { pid: named.pid, name: "the process", priority: target.priority };
            self.output.effect(&Effect::new(&snapshot, subject))?;
        }
        Ok(())
    }

    /// The snapshot in which the contexts of all targets are listed, or the last one if some are
    /// not listed in time.
    fn contexts(&mut self) -> Result<Snapshot, Failure> {
        let until = Instant::now() + CONTEXTS_MAX;
        loop {
            let snapshot = service::snapshot(&mut self.service.client)?;
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

    /// Prints events until the time is over, a signal arrives, or no target is left.
    fn run(&mut self, time: Option<Duration>, stop: &Stop) -> Result<(), Failure> {
        let until = time.map(|time| Instant::now() + time);
        while !stop.is_set() && !self.targets.is_empty() && !self.service.has_ended() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            check_reader()?;
            for problem in self.service.take_problems() {
                self.output.problem(&problem)?;
            }
            match self.events.next_within(left.unwrap_or(WAIT_MAX).min(WAIT_MAX)) {
                Ok(Some(event)) => self.take(&event)?,
                Ok(None) => self.print_context_changes()?,
                // The end of a private session reports why it ended.
                Err(ClientError::HungUp) if self.service.is_private() => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, event: &Event) -> Result<(), Failure> {
        let Some(process) = event.process else {
            return if self.is_decision(event) { self.output.decision(event) } else { Ok(()) };
        };
        let pid = process.pid();
        let is_target = self.targets.contains_key(&pid);
        match (event.kind, event.queue) {
            _ if self.is_decision(event) => self.output.decision(event),
            (EventKind::Appeared, 0) if !is_target => {
                self.output.appeared(pid, event.name.as_str())
            }
            (EventKind::Appeared, queue) if is_target && queue != 0 => {
                if self.queues.insert(queue) {
                    self.changes.appeared(pid);
                }
                Ok(())
            }
            (EventKind::Vanished, 0) => self.take_end(pid),
            (EventKind::Vanished, queue) => {
                if self.queues.remove(&queue) && is_target {
                    self.changes.vanished(pid);
                }
                Ok(())
            }
            (EventKind::Changed, _) => self.take_change(pid, event.priority),
            (_, _) => Ok(()),
        }
    }

    /// Whether this is a decision of the scheduler that the command prints: in a private session
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
        kinds.contains(&event.kind) && (self.service.is_private() || is_own(event))
    }

    fn take_end(&mut self, pid: u32) -> Result<(), Failure> {
        self.changes.forget(pid);
        match self.targets.remove(&pid) {
            Some(target) => self.output.ended(target.task),
            None => Ok(()),
        }
    }

    /// Another command changed the priority of a process, or detached it.
    fn take_change(&mut self, pid: u32, priority: Option<Priority>) -> Result<(), Failure> {
        if !self.targets.contains_key(&pid) {
            return Ok(());
        }
        let task = match priority {
            None => service::task(&mut self.service.client, pid)?,
            Some(_) => None,
        };
        let Some(target) = self.targets.get_mut(&pid) else { return Ok(()) };
        match priority {
            // It is scheduled again when its memory is back.
            None if task.as_ref().is_some_and(is_evicted) => Ok(()),
            None => {
                self.targets.remove(&pid);
                self.output.detached(pid)
            }
            Some(priority) if priority != target.priority => {
                target.priority = priority;
                self.output.set(pid, priority)
            }
            Some(_) => Ok(()),
        }
    }

    fn print_context_changes(&mut self) -> Result<(), Failure> {
        for (pid, appeared, vanished) in self.changes.take() {
            if let Some(target) = self.targets.get(&pid) {
                self.output.regrouped(target.task, appeared, vanished)?;
            }
        }
        Ok(())
    }

    /// Restores every target.
    fn end(mut self) -> Result<AttachOutput, Failure> {
        self.print_holds();
        let restored = match self.service.is_private() {
            // The end of the service restores everything.
            true => Ok(()),
            false => self.restore(),
        };
        drop(self.events);
        for problem in self.service.take_problems() {
            // A failed output does not keep the targets from being restored.
            let _ = self.output.problem(&problem);
        }
        self.service.end()?;
        restored?;
        Ok(self.output)
    }

    /// Prints how often the GPU was held for each target, and how slow it was, if the service still
    /// answers.
    fn print_holds(&mut self) {
        let Ok(snapshot) = service::snapshot(&mut self.service.client) else { return };
        let is_target = |task: &&TaskSnapshot| self.targets.contains_key(&task.pid);
        for task in snapshot.tasks.iter().filter(is_target) {
            let holds = task.queues.iter().filter_map(|queue| queue.hold.as_ref());
            for hold in holds.filter(|hold| hold.problem.is_none()) {
                // A failed output does not keep the targets from being restored.
                let _ = self.output.held(task.pid, hold);
            }
            for queue in task.queues.iter().filter(|queue| queue.busy_us > 0) {
                let _ = self.output.slowdown((task.pid, task.latency_budget_percent), queue);
            }
        }
    }

    /// Gives every target its former attributes, beside a daemon.
    fn restore(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        for (pid, target) in std::mem::take(&mut self.targets) {
            let process = service::process(pid)?;
            let request = match target.before {
                Some(change) => Request::Set { process, change },
                None => Request::Detach { process },
            };
            match self.service.client.expect_ok(&request) {
                // A process that ended just now needs nothing.
                Ok(()) | Err(ClientError::Refused(_)) => {}
                Err(error) => result = result.and_then(|()| Err(error.into())),
            }
        }
        result
    }
}
