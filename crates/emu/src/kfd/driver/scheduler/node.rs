//! One device as its scheduler knows it.

use std::collections::BTreeMap;
use std::fmt::Write;

use gpreempt_core::backend::Command;
use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::config::Config;
use gpreempt_core::event::{Event, Fault, SchedAttr};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::RunState;
use gpreempt_core::ring::RingView;
use gpreempt_core::scheduler::Scheduler;
use gpreempt_core::time::{Duration, Instant};

use super::View;
use crate::kfd::parameters::Parameters;

const DEVICE: DeviceId = DeviceId(0);
/// What a switch is taken to cost before one was measured.
const FIRST_COST: Duration = Duration::from_micros(500);

/// A device's scheduler.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// None as long as it is off.
    core: Option<Scheduler>,
    parameters: Parameters,
    known: BTreeMap<QueueId, Known>,
    cost: Option<Duration>,
    rounds: u64,
    preempts: u64,
    resumes: u64,
    updates: u64,
    faults: u64,
    unread: u64,
}

/// What was last told of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    task: TaskId,
    priority: Priority,
    is_kept_off: bool,
}

impl Node {
    /// Tells the policy what is seen and lets it decide.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        parameters: &Parameters,
        views: &[View],
        ring: impl Fn(QueueId) -> Option<RingView>,
    ) {
        self.configure(now, parameters);
        self.rounds += 1;
        self.forget_gone(now, views);
        for view in views {
            self.tell_of(now, view);
            match ring(view.queue) {
                Some(ring) => self.tell(now, Event::RingObserved { queue: view.queue, ring }),
                None => self.unread += 1,
            }
        }
        let Some(core) = &mut self.core else { return };
        core.handle_timeout(now);
        while let Some(command) = self.core.as_mut().and_then(Scheduler::poll_command) {
            self.carry_out(now, command, views);
        }
        while self.core.as_mut().and_then(Scheduler::poll_decision).is_some() {}
    }

    /// Whether the policy wants a queue to be off.
    pub(super) fn is_off(&self, queue: QueueId) -> bool {
        let view = self.core.as_ref().and_then(|core| core.queue(queue));
        view.is_some_and(|view| view.run_state == RunState::Off)
    }

    /// A switch took that long.
    pub(super) fn measure(&mut self, time: Duration) {
        let before = self.cost.unwrap_or(FIRST_COST).as_nanos();
        self.cost = Some(Duration::from_nanos((before * 3 + time.as_nanos()) / 4));
    }

    pub(super) fn count_update(&mut self) {
        self.updates += 1;
    }

    /// Forgets everybody. What was counted stays.
    pub(super) fn reset(&mut self) {
        let core = self.core.take();
        let off = |view: &gpreempt_core::scheduler::QueueView| view.run_state == RunState::Off;
        let count = core.map_or(0, |core| core.queues().filter(off).count());
        self.resumes += u64::try_from(count).unwrap_or(0);
        self.known.clear();
        self.cost = None;
    }

    /// As the kernel prints it.
    pub(super) fn show(&self, text: &mut String) {
        let Self { rounds, preempts, resumes, updates, faults, unread, .. } = self;
        let cost = self.cost.unwrap_or(FIRST_COST).as_nanos();
        // Writing to a string does not fail.
        let _ = writeln!(text, "  rounds {rounds} preempts {preempts} resumes {resumes}");
        let _ = writeln!(
            text,
            "  updates {updates} cost_ns {cost} faults {faults} unread {unread} left_alone 0"
        );
        for queue in self.core.iter().flat_map(Scheduler::queues) {
            let marks = [
                (queue.active, " active"),
                (queue.run_state == RunState::Off, " off"),
                (queue.suspended, " suspended"),
            ];
            let marks: String = marks.iter().filter(|mark| mark.0).map(|mark| mark.1).collect();
            let (serial, seat, priority) = (queue.queue.0, queue.task.0, queue.priority);
            let (put, get) = (queue.ring.put, queue.ring.get);
            let _ = writeln!(
                text,
                "  queue {serial} seat {seat} priority {priority} put {put} get {get}{marks}"
            );
        }
    }

    fn configure(&mut self, now: Instant, parameters: &Parameters) {
        if self.parameters.quiet_us != parameters.quiet_us {
            // What a device is like is said once, so it begins anew.
            (self.core, self.known) = (None, BTreeMap::new());
        }
        if self.core.is_none() {
            let config = parameters.config();
            self.core = Scheduler::new(config).or_else(|_| Scheduler::new(Config::default())).ok();
            let capabilities = capabilities(parameters, FIRST_COST);
            self.tell(now, Event::DeviceAppeared { device: DEVICE, capabilities });
        } else if self.parameters != *parameters
            && let Some(core) = &mut self.core
        {
            // Limits are checked where they are set, so this is not refused.
            let _ = core.set_config(now, parameters.config());
        }
        self.parameters = *parameters;
        let cost = self.cost.unwrap_or(FIRST_COST);
        let (preempt_cost, resume_cost) = (cost, cost);
        self.tell(now, Event::DeviceCost { device: DEVICE, preempt_cost, resume_cost });
    }

    fn forget_gone(&mut self, now: Instant, views: &[View]) {
        let is_there = |queue: &QueueId| views.iter().any(|view| view.queue == *queue);
        let gone: Vec<QueueId> = self.known.keys().filter(|q| !is_there(q)).copied().collect();
        for queue in gone {
            self.tell(now, Event::QueueVanished { queue });
            let Some(known) = self.known.remove(&queue) else { continue };
            if self.known.values().all(|other| other.task != known.task) {
                self.tell(now, Event::TaskVanished { task: known.task });
            }
        }
    }

    /// Tells what is new of a queue.
    fn tell_of(&mut self, now: Instant, view: &View) {
        let View { queue, priority, is_kept_off, .. } = *view;
        let task = TaskId(view.pid.into());
        let new = Known { task, priority, is_kept_off };
        let is_new_task = self.known.values().all(|known| known.task != task);
        let before = self.known.insert(queue, new);
        if before.is_none() {
            if is_new_task {
                self.tell(now, Event::TaskAppeared { task, attr: SchedAttr::default() });
            }
            self.tell(now, Event::QueueAppeared { queue, task, device: DEVICE, stopped: false });
        }
        if before.is_none_or(|before| before.priority != priority) {
            self.tell(now, Event::QueueChanged { queue, priority: Some(priority) });
        }
        if before.map_or(is_kept_off, |before| before.is_kept_off != is_kept_off) {
            self.tell(now, Event::QueueSuspended { queue, suspended: is_kept_off });
        }
    }

    fn carry_out(&mut self, now: Instant, command: Command, views: &[View]) {
        match command {
            Command::Preempt { queue, .. } => {
                let obeys = views.iter().any(|view| view.queue == queue && view.obeys);
                if obeys {
                    self.preempts += 1;
                    self.tell(now, Event::Preempted { queue });
                } else {
                    self.faults += 1;
                    let fault = Fault::Refused(0);
                    self.tell(now, Event::PreemptFailed { queue, fault });
                }
            }
            Command::Resume { queue } => {
                self.resumes += 1;
                self.tell(now, Event::Resumed { queue });
            }
            Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::SetHardwarePriority { .. } => {}
        }
    }

    fn tell(&mut self, now: Instant, event: Event) {
        // What is told here is what was seen this moment, and nothing is told twice.
        let result = self.core.as_mut().map(|core| core.handle_event(now, event));
        debug_assert!(!matches!(result, Some(Err(_))), "{event:?}: {result:?}");
    }
}

fn capabilities(parameters: &Parameters, cost: Duration) -> Capabilities {
    Capabilities {
        mechanism: Mechanism::Stop,
        level: PreemptLevel::Interrupt,
        preempt_cost: cost,
        resume_cost: cost,
        quiet: Duration::from_micros(parameters.quiet_us.into()),
        hold: false,
        hardware_priority: false,
    }
}
