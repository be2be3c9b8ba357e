//! The in-kernel scheduler of a patched KFD: reads the rings of each device in rounds and preempts
//! queues below the highest priority with work.
//!
//! The kernel decides with a policy in C, this module with `core`. `cargo xtask kernel vectors`
//! checks that both decide alike.

use std::collections::BTreeMap;
use std::fmt::Write;

use gpreempt_core::backend::{Capabilities, Command, Mechanism, PreemptLevel};
use gpreempt_core::config::Config;
use gpreempt_core::event::{Event, Fault, SchedAttr};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::priority::Priority;
use gpreempt_core::queue::RunState;
use gpreempt_core::ring::RingView;
use gpreempt_core::scheduler::Scheduler;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::block::QueueType;
use gpreempt_sim::external_gpu::CallId;

use super::preempt::Touched;
use super::process::Queue;
use super::{Driver, Process};
use crate::kfd::driver_env::DriverEnv;
use crate::kfd::parameters::Parameters;

#[derive(Debug, Default)]
pub(super) struct Schedulers {
    parameters: Parameters,
    nodes: BTreeMap<u32, NodeScheduler>,
    next_round: Option<Instant>,
    /// Run list updates that have not completed: the device, and since when.
    updates: BTreeMap<CallId, (u32, Instant)>,
}

/// A queue at the beginning of a round.
#[derive(Clone, Copy, Debug)]
struct SchedulableQueue {
    pid: u32,
    name: u32,
    queue: QueueId,
    priority: Priority,
    /// Another mechanism keeps it off.
    is_kept_off: bool,
    /// Whether it could be preempted.
    obeys: bool,
}

impl Driver {
    pub fn parameters(&self) -> Parameters {
        self.schedulers.parameters
    }

    /// Changes the parameters. Disabling the scheduler resumes every queue.
    pub fn set_parameters(&mut self, env: &mut DriverEnv<'_>, parameters: Parameters) {
        let was_enabled = self.schedulers.parameters.enable;
        self.schedulers.parameters = parameters;
        self.changes += 1;
        if parameters.enable {
            self.schedulers.next_round.get_or_insert(env.now);
        } else if was_enabled {
            self.release_scheduled(env);
        }
    }

    pub fn next_round(&self) -> Option<Instant> {
        self.schedulers.next_round
    }

    /// Runs a round on every device, if one is due.
    pub fn schedule(&mut self, env: &mut DriverEnv<'_>) {
        if self.schedulers.next_round.is_none_or(|at| at > env.now) {
            return;
        }
        let interval = Duration::from_millis(self.schedulers.parameters.interval_ms.into());
        self.schedulers.next_round = Some(env.now + interval);
        let mut gpu_ids: Vec<u32> = self.schedulers.nodes.keys().copied().collect();
        let queues = self.processes.values().flat_map(|process| process.queues.values());
        gpu_ids.extend(queues.map(|queue| queue.entry.gpu_id));
        gpu_ids.sort_unstable();
        gpu_ids.dedup();
        for gpu_id in gpu_ids {
            self.round(env, gpu_id);
        }
    }

    /// A run list update has completed: its duration is the cost of a switch.
    pub fn note_update(&mut self, call: CallId, now: Instant) {
        let Some((gpu_id, since)) = self.schedulers.updates.remove(&call) else { return };
        if let Some(node) = self.schedulers.nodes.get_mut(&gpu_id) {
            node.measure(now.since(since));
        }
    }

    fn round(&mut self, env: &mut DriverEnv<'_>, gpu_id: u32) {
        let views = self.views(gpu_id);
        let parameters = self.schedulers.parameters;
        let node = self.schedulers.nodes.entry(gpu_id).or_default();
        let ring = |queue| env.devices.ring(queue);
        node.decide(env.now, &parameters, &views, ring);
        let mut touched = Touched::new();
        for view in &views {
            let is_off = node.is_off(view.queue);
            let process = self.processes.get_mut(&view.pid);
            let queue = process.and_then(|process| process.queues.get_mut(&view.name));
            if let Some(queue) = queue.filter(|queue| queue.is_scheduled_off != is_off) {
                queue.is_scheduled_off = is_off;
                touched.entry(view.pid).or_default().push(view.name);
            }
        }
        if touched.is_empty() {
            return;
        }
        let calls = self.apply_touched(env, &touched);
        if let Some(node) = self.schedulers.nodes.get_mut(&gpu_id) {
            node.count_update();
        }
        self.changes += 1;
        self.schedulers.updates.extend(calls.into_iter().map(|call| (call, (gpu_id, env.now))));
    }

    /// The queues of a device that the scheduler may preempt.
    fn views(&self, gpu_id: u32) -> Vec<SchedulableQueue> {
        let mut views = Vec::new();
        for (&pid, process) in &self.processes {
            for (&name, queue) in &process.queues {
                let is_aql = queue.entry.queue_type == QueueType::ComputeAql as u32;
                if queue.entry.gpu_id != gpu_id || !is_aql || queue.is_leaving {
                    continue;
                }
                views.push(SchedulableQueue {
                    pid,
                    name,
                    queue: queue.device_id,
                    priority: logical_priority(process, queue),
                    is_kept_off: process.is_kept_off(queue),
                    obeys: queue.check_obedience().is_ok(),
                });
            }
        }
        views
    }

    /// Resumes every queue that the scheduler keeps off.
    fn release_scheduled(&mut self, env: &mut DriverEnv<'_>) {
        let mut touched = Touched::new();
        for (&pid, process) in &mut self.processes {
            for (&name, queue) in &mut process.queues {
                if std::mem::take(&mut queue.is_scheduled_off) {
                    touched.entry(pid).or_default().push(name);
                }
            }
        }
        self.schedulers.next_round = None;
        self.schedulers.updates.clear();
        for node in self.schedulers.nodes.values_mut() {
            node.reset();
        }
        self.apply_touched(env, &touched);
    }

    /// The contents of debugfs `preempt`.
    pub fn scheduler_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = writeln!(text, "enabled {}", u32::from(self.schedulers.parameters.enable));
        for (gpu_id, node) in &self.schedulers.nodes {
            let _ = writeln!(text, "gpu_id {gpu_id}");
            node.show(&mut text);
        }
        text
    }
}

impl Process {
    /// Whether another mechanism than the scheduler keeps a queue off.
    fn is_kept_off(&self, queue: &Queue) -> bool {
        queue.preempt_owner().is_some()
            || queue.is_suspended
            || queue.percentage == 0
            || self.evictions > 0
    }
}

fn logical_priority(process: &Process, queue: &Queue) -> Priority {
    let level = queue.logical_priority.or(process.logical_priority);
    level.and_then(Priority::new).unwrap_or(Priority::DEFAULT)
}

const DEVICE: DeviceId = DeviceId(0);
/// The assumed cost of a switch before the first measurement.
const FIRST_COST: Duration = Duration::from_micros(500);

#[derive(Debug, Default)]
struct NodeScheduler {
    /// None while the scheduler is disabled.
    core: Option<Scheduler>,
    parameters: Parameters,
    known: BTreeMap<QueueId, KnownQueue>,
    cost: Option<Duration>,
    rounds: u64,
    preempts: u64,
    resumes: u64,
    updates: u64,
    faults: u64,
    unread: u64,
}

/// What the core knows about a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownQueue {
    task: TaskId,
    priority: Priority,
    is_kept_off: bool,
}

impl NodeScheduler {
    /// Reports the state of all queues to the core and executes its commands.
    fn decide(
        &mut self,
        now: Instant,
        parameters: &Parameters,
        views: &[SchedulableQueue],
        ring: impl Fn(QueueId) -> Option<RingView>,
    ) {
        self.configure(now, parameters);
        self.rounds += 1;
        self.forget_gone(now, views);
        for view in views {
            self.report_changes(now, view);
            match ring(view.queue) {
                Some(ring) => self.deliver(now, Event::RingObserved { queue: view.queue, ring }),
                None => self.unread += 1,
            }
        }
        let Some(core) = &mut self.core else { return };
        core.handle_timeout(now);
        while let Some(command) = self.core.as_mut().and_then(Scheduler::poll_command) {
            self.execute(now, command, views);
        }
        while self.core.as_mut().and_then(Scheduler::poll_decision).is_some() {}
    }

    fn is_off(&self, queue: QueueId) -> bool {
        let view = self.core.as_ref().and_then(|core| core.queue(queue));
        view.is_some_and(|view| view.run_state == RunState::Off)
    }

    fn measure(&mut self, time: Duration) {
        let before = self.cost.unwrap_or(FIRST_COST).as_nanos();
        self.cost = Some(Duration::from_nanos((before * 3 + time.as_nanos()) / 4));
    }

    fn count_update(&mut self) {
        self.updates += 1;
    }

    /// Forgets all queues. Counters stay.
    fn reset(&mut self) {
        let core = self.core.take();
        let off = |view: &gpreempt_core::scheduler::QueueView| view.run_state == RunState::Off;
        let count = core.map_or(0, |core| core.queues().filter(off).count());
        self.resumes += u64::try_from(count).unwrap_or(0);
        self.known.clear();
        self.cost = None;
    }

    /// As the kernel prints it.
    fn show(&self, text: &mut String) {
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
            // The core gets the capabilities of a device once, so it starts again.
            (self.core, self.known) = (None, BTreeMap::new());
        }
        if self.core.is_none() {
            let config = parameters.config();
            self.core = Scheduler::new(config).or_else(|_| Scheduler::new(Config::default())).ok();
            let capabilities = capabilities(parameters, FIRST_COST);
            self.deliver(now, Event::DeviceAppeared { device: DEVICE, capabilities });
        } else if self.parameters != *parameters
            && let Some(core) = &mut self.core
        {
            // The parameters are checked when they are set.
            let _ = core.set_config(now, parameters.config());
        }
        self.parameters = *parameters;
        let cost = self.cost.unwrap_or(FIRST_COST);
        let (preempt_cost, resume_cost) = (cost, cost);
        self.deliver(now, Event::DeviceCost { device: DEVICE, preempt_cost, resume_cost });
    }

    fn forget_gone(&mut self, now: Instant, views: &[SchedulableQueue]) {
        let is_there = |queue: &QueueId| views.iter().any(|view| view.queue == *queue);
        let gone: Vec<QueueId> = self.known.keys().filter(|q| !is_there(q)).copied().collect();
        for queue in gone {
            self.deliver(now, Event::QueueVanished { queue });
            let Some(known) = self.known.remove(&queue) else { continue };
            if self.known.values().all(|other| other.task != known.task) {
                self.deliver(now, Event::TaskVanished { task: known.task });
            }
        }
    }

    /// Reports changes of a queue.
    fn report_changes(&mut self, now: Instant, view: &SchedulableQueue) {
        let SchedulableQueue { queue, priority, is_kept_off, .. } = *view;
        let task = TaskId(view.pid.into());
        let new = KnownQueue { task, priority, is_kept_off };
        let is_new_task = self.known.values().all(|known| known.task != task);
        let before = self.known.insert(queue, new);
        if before.is_none() {
            if is_new_task {
                self.deliver(now, Event::TaskAppeared { task, attr: SchedAttr::default() });
            }
            self.deliver(now, Event::QueueAppeared { queue, task, device: DEVICE, stopped: false });
        }
        if before.is_none_or(|before| before.priority != priority) {
            self.deliver(now, Event::QueueChanged { queue, priority: Some(priority) });
        }
        if before.map_or(is_kept_off, |before| before.is_kept_off != is_kept_off) {
            self.deliver(now, Event::QueueSuspended { queue, suspended: is_kept_off });
        }
    }

    fn execute(&mut self, now: Instant, command: Command, views: &[SchedulableQueue]) {
        match command {
            Command::Preempt { queue, .. } => {
                let obeys = views.iter().any(|view| view.queue == queue && view.obeys);
                if obeys {
                    self.preempts += 1;
                    self.deliver(now, Event::Preempted { queue });
                } else {
                    self.faults += 1;
                    let fault = Fault::Refused(0);
                    self.deliver(now, Event::PreemptFailed { queue, fault });
                }
            }
            Command::Resume { queue } => {
                self.resumes += 1;
                self.deliver(now, Event::Resumed { queue });
            }
            Command::SetSlice { .. }
            | Command::PermitHold { .. }
            | Command::ForbidHold { .. }
            | Command::MeasureSlowdown { .. }
            | Command::SetHardwarePriority { .. } => {}
        }
    }

    fn deliver(&mut self, now: Instant, event: Event) {
        // Every event is derived from the current state, so the core accepts it.
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

#[cfg(test)]
mod tests {
    use gpreempt_core::time::Duration;
    use gpreempt_kfd::abi::patched::PreemptEntry;
    use gpreempt_kfd::{KfdPatchedCalls, QueueSelector};
    use gpreempt_sim::model::DeviceModel;

    use super::*;
    use crate::kfd::{FakeClient, FakeDebugger, FakeKfd, KfdProfile, VirtualDevices};

    const WORK_NS: u32 = 2_000_000;

    /// A high-priority process and another, each with a queue.
    struct TwoProcesses {
        kfd: FakeKfd,
        devices: VirtualDevices,
        important: (FakeClient, u32),
        other: (FakeClient, u32),
        debugger: FakeDebugger,
    }

    impl TwoProcesses {
        fn new(by_queue: bool) -> Self {
            let model = DeviceModel::built_in("mi300x").unwrap();
            let devices = VirtualDevices::new(model, 1).unwrap();
            let profile = KfdProfile { patched: true, by_queue, ..KfdProfile::default() };
            let kfd = FakeKfd::over(profile, devices.clone());
            let gpu_id = devices.gpu_ids()[0];
            let open = |pid| {
                let client = kfd.client(pid);
                let queue = client.open_queue(gpu_id).unwrap();
                (client, queue)
            };
            let (important, other) = (open(10), open(11));
            let debugger = kfd.debugger(1);
            debugger.set_preempt_priority(10, QueueSelector::All, 12).unwrap();
            Self { kfd, devices, important, other, debugger }
        }

        fn enable(&self, enable: bool) {
            self.kfd.set_parameters(Parameters { enable, ..Parameters::default() });
        }

        fn submit(&self, (client, queue): &(FakeClient, u32)) {
            let id = self.kfd.device_id(client.pid(), *queue).unwrap();
            assert!(self.devices.submit(id, WORK_NS));
        }

        fn is_on(&self, (client, queue): &(FakeClient, u32)) -> bool {
            self.kfd.is_running(client.pid(), *queue).unwrap()
        }

        fn pass(&self, ms: u64) {
            for _ in 0..ms {
                self.kfd.pass(Duration::from_millis(1));
                self.devices.run_for(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn the_highest_priority_with_work_runs_and_the_others_resume() {
        for by_queue in [false, true] {
            let fixture = TwoProcesses::new(by_queue);
            fixture.enable(true);
            for _ in 0..40 {
                fixture.submit(&fixture.other);
            }
            fixture.pass(12);
            assert!(fixture.is_on(&fixture.other));
            fixture.submit(&fixture.important);
            fixture.submit(&fixture.important);
            let before = fixture.kfd.remaps();
            fixture.pass(6);
            assert!(fixture.is_on(&fixture.important) && !fixture.is_on(&fixture.other));
            assert_eq!(fixture.kfd.remaps() - before, u64::from(!by_queue), "one update");
            fixture.pass(200);
            assert!(fixture.is_on(&fixture.other));
            for (client, queue) in [&fixture.important, &fixture.other] {
                let id = fixture.kfd.device_id(client.pid(), *queue).unwrap();
                assert_eq!(fixture.devices.is_exact(id), Some(true));
            }
        }
    }

    #[test]
    fn disabling_the_scheduler_resumes_every_queue() {
        let fixture = TwoProcesses::new(false);
        fixture.submit(&fixture.important);
        fixture.submit(&fixture.other);
        fixture.pass(20);
        assert!(fixture.is_on(&fixture.other), "off by default");
        fixture.enable(true);
        fixture.submit(&fixture.important);
        fixture.submit(&fixture.other);
        fixture.pass(2);
        assert!(!fixture.is_on(&fixture.other));
        fixture.enable(false);
        assert!(fixture.is_on(&fixture.other));
        fixture.submit(&fixture.important);
        fixture.pass(12);
        assert!(fixture.is_on(&fixture.other));
    }

    #[test]
    fn a_preempted_queue_stays_off_whatever_the_scheduler_decides() {
        let fixture = TwoProcesses::new(false);
        fixture.enable(true);
        fixture.submit(&fixture.other);
        let entry = PreemptEntry { pid: 11, queue_id: fixture.other.1, ..PreemptEntry::default() };
        fixture.debugger.preempt_queues(&mut [entry], None, 0).unwrap();
        fixture.pass(30);
        assert!(!fixture.is_on(&fixture.other));
        fixture.debugger.unpreempt_queues(&mut [entry], false).unwrap();
        fixture.pass(30);
        assert!(fixture.is_on(&fixture.other));
    }

    #[test]
    fn a_queue_can_have_a_higher_priority_than_its_process() {
        let mut fixture = TwoProcesses::new(false);
        fixture.enable(true);
        let other = QueueSelector::One { id: fixture.other.1, serial: 0 };
        fixture.debugger.set_preempt_priority(11, other, 15).unwrap();
        fixture.submit(&fixture.important);
        fixture.submit(&fixture.other);
        fixture.pass(2);
        assert!(!fixture.is_on(&fixture.important) && fixture.is_on(&fixture.other));
        let gpu_id = fixture.devices.gpu_ids()[0];
        let later = fixture.kfd.client(12);
        drop(std::mem::replace(&mut fixture.other, (later, 0)));
        fixture.other.1 = fixture.other.0.open_queue(gpu_id).unwrap();
        fixture.pass(30);
        assert!(fixture.is_on(&fixture.important) && fixture.is_on(&fixture.other));
    }
}
