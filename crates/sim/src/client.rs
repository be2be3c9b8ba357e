//! Simulated processes: requests arrive, launch kernels, wait for them, and are done.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_core::event::Event;
use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};

use crate::event_queue::SimEvent;
use crate::outcome::Served;
use crate::prng::Prng;
use crate::ring::Packet;
use crate::scenario::{Arrivals, RequestStep, TaskSpec};
use crate::sim_backend::{SimBackend, task_id};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessState {
    /// Not started; some never are.
    NotStarted,
    Running,
    Finished,
    Killed,
    /// It got no memory.
    Refused,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) spec: TaskSpec,
    pub(crate) state: ProcessState,
    pub(crate) priority: Priority,
    pub(crate) started_at: Instant,
    /// The queues of a launch, by turn: one on every device.
    pub(crate) turns: Vec<Vec<QueueId>>,
    next_turn: usize,
    /// Arrival times of requests that have not begun.
    waiting: VecDeque<Instant>,
    pub(crate) requests: BTreeMap<u64, Request>,
    next_request: u64,
    pub(crate) arrived: u64,
    /// Whether no other request will arrive.
    last_arrived: bool,
    /// The request of each launch, in order of launch.
    owners: BTreeMap<QueueId, VecDeque<u64>>,
    /// Finished requests, in order of their ends.
    pub(crate) served: Vec<Served>,
    prng: Prng,
}

#[derive(Debug)]
pub(crate) struct Request {
    arrived: Instant,
    began: Instant,
    turn: usize,
    step: usize,
    launched: u32,
    outstanding: u32,
    /// Whether it waits for its outstanding launches.
    syncing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Launch a kernel on the queues of a turn.
    Launch {
        kernel: usize,
        turn: usize,
    },
    /// Compute on the CPU.
    Cpu(Duration),
    /// Wait for the outstanding launches.
    Wait,
    Finish,
}

impl Client {
    pub(crate) fn new(spec: TaskSpec, prng: Prng) -> Self {
        Self {
            priority: spec.priority,
            spec,
            state: ProcessState::NotStarted,
            started_at: Instant::ZERO,
            turns: Vec::new(),
            next_turn: 0,
            waiting: VecDeque::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            arrived: 0,
            last_arrived: false,
            owners: BTreeMap::new(),
            served: Vec::new(),
            prng,
        }
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        self.turns.iter().flatten().copied()
    }

    /// When the next request arrives after the one at `last`; none if there is no other.
    fn next_arrival(&mut self, last: Option<Instant>) -> Option<Instant> {
        if !self.may_arrive() {
            return None;
        }
        match &self.spec.arrivals {
            Arrivals::Periodic { every, phase } => Some(match last {
                None => self.started_at + *phase,
                Some(last) => last + *every,
            }),
            Arrivals::Poisson { mean } => {
                Some(last.unwrap_or(self.started_at) + self.prng.exponential(*mean))
            }
            Arrivals::Trace(times) => {
                let index = usize::try_from(self.arrived).ok()?;
                times.get(index).map(|&time| self.started_at + time)
            }
            Arrivals::BackToBack { .. } => None,
        }
    }

    /// The number of concurrent requests of a back-to-back task.
    fn back_to_back(&self) -> Option<u32> {
        match self.spec.arrivals {
            Arrivals::BackToBack { depth } => Some(depth),
            Arrivals::Periodic { .. } | Arrivals::Poisson { .. } | Arrivals::Trace(_) => None,
        }
    }

    fn may_arrive(&self) -> bool {
        self.spec.requests_max.is_none_or(|max| self.arrived < max)
    }

    pub(crate) fn arrive(&mut self, now: Instant) {
        self.arrived += 1;
        self.waiting.push_back(now);
    }

    /// Begins the next waiting request, unless the one before is still running.
    fn begin_request(&mut self, now: Instant) -> Option<u64> {
        if self.back_to_back().is_none() && !self.requests.is_empty() {
            return None;
        }
        let arrived = self.waiting.pop_front()?;
        let turn = self.next_turn;
        self.next_turn = (turn + 1) % self.turns.len().max(1);
        let number = self.next_request;
        self.next_request += 1;
        let request = Request {
            arrived,
            began: now,
            turn,
            step: 0,
            launched: 0,
            outstanding: 0,
            syncing: false,
        };
        self.requests.insert(number, request);
        Some(number)
    }

    /// The next step of a request that does not wait.
    fn next(&mut self, number: u64) -> Next {
        let Some(request) = self.requests.get_mut(&number) else { return Next::Wait };
        request.syncing = false;
        loop {
            let Some(step) = self.spec.request.get(request.step) else {
                if request.outstanding == 0 {
                    return Next::Finish;
                }
                request.syncing = true;
                return Next::Wait;
            };
            if request.launched < step.count {
                request.launched += 1;
                return Next::Launch { kernel: step.kernel, turn: request.turn };
            }
            request.step += 1;
            request.launched = 0;
        }
    }

    /// Records a launch and returns what follows it.
    fn launched(&mut self, number: u64, queues: &[QueueId]) -> Next {
        for &queue in queues {
            self.owners.entry(queue).or_default().push_back(number);
        }
        let Some(request) = self.requests.get_mut(&number) else { return Next::Wait };
        request.outstanding += u32::try_from(queues.len()).unwrap_or(u32::MAX);
        // PANIC: a launch comes from a step of the request.
        let step: &RequestStep = &self.spec.request[request.step];
        if step.sync {
            request.syncing = true;
            Next::Wait
        } else {
            Next::Cpu(step.cpu)
        }
    }

    /// A launch is complete. Returns the request that can continue, and its CPU time before that.
    fn completed(&mut self, queue: QueueId) -> Option<(u64, Duration)> {
        let number = self.owners.get_mut(&queue)?.pop_front()?;
        let request = self.requests.get_mut(&number)?;
        request.outstanding -= 1;
        if request.outstanding > 0 || !request.syncing {
            return None;
        }
        let cpu = self.spec.request.get(request.step).filter(|step| step.sync);
        Some((number, cpu.map_or(Duration::ZERO, |step| step.cpu)))
    }

    fn finish_request(&mut self, number: u64, now: Instant) {
        if let Some(request) = self.requests.remove(&number) {
            let Request { arrived, began, .. } = request;
            self.served.push(Served { arrived, began, ended: now });
        }
    }

    fn unanswered(&self) -> u64 {
        (self.requests.len() + self.waiting.len()) as u64
    }

    fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.waiting.is_empty()
    }
}

impl SimBackend {
    fn work_arrives(&self) -> bool {
        self.now() < Instant::ZERO + self.duration
    }

    pub(crate) fn start_task(&mut self, task: usize) {
        if !self.work_arrives() || self.clients[task].state != ProcessState::NotStarted {
            return;
        }
        if self.clients[task].spec.memory > 0 {
            self.claim_memory(task);
        } else {
            self.run_task(task);
        }
    }

    /// Starts a task that has the memory that it needs.
    pub(crate) fn run_task(&mut self, task: usize) {
        let now = self.now();
        self.clients[task].state = ProcessState::Running;
        self.clients[task].started_at = now;
        self.open_queues(task);
        self.announce_task(task);
        match self.clients[task].back_to_back() {
            Some(depth) => {
                for _ in 0..depth {
                    self.arrive_at_once(task);
                }
            }
            None => self.await_arrival(task, None),
        }
        self.end_if_finished(task);
    }

    /// Starts the tasks that wait for the end of `ended`.
    pub(crate) fn start_successors(&mut self, ended: usize) {
        for task in 0..self.clients.len() {
            if self.clients[task].spec.after == Some(ended) {
                let delay = self.clients[task].spec.start;
                self.gpu.event_queue.after(delay, SimEvent::TaskStart { task });
            }
        }
    }

    fn await_arrival(&mut self, task: usize, last: Option<Instant>) {
        let now = self.now();
        let end = Instant::ZERO + self.duration;
        let next = self.clients[task].next_arrival(last).map(|at| at.max(now));
        let Some(at) = next.filter(|&at| at < end) else {
            self.clients[task].last_arrived = true;
            return;
        };
        self.gpu.event_queue.at(at, SimEvent::Arrive { task });
        if let Some(ahead) = self.clients[task].spec.hint {
            let announce = Instant::from_nanos(at.as_nanos().saturating_sub(ahead.as_nanos()));
            self.gpu.event_queue.at(announce.max(now), SimEvent::Announce { task });
        }
    }

    pub(crate) fn arrive(&mut self, task: usize) {
        if self.clients[task].state != ProcessState::Running {
            return;
        }
        let now = self.now();
        self.clients[task].arrive(now);
        self.await_arrival(task, Some(now));
        self.begin_request(task);
    }

    fn arrive_at_once(&mut self, task: usize) {
        if self.clients[task].may_arrive() && self.work_arrives() {
            let now = self.now();
            self.clients[task].arrive(now);
            self.begin_request(task);
        } else {
            self.clients[task].last_arrived = true;
        }
    }

    fn begin_request(&mut self, task: usize) {
        let now = self.now();
        if let Some(request) = self.clients[task].begin_request(now) {
            self.continue_request(task, request);
        }
    }

    /// Runs a request until it has to wait.
    pub(crate) fn continue_request(&mut self, task: usize, request: u64) {
        if self.clients[task].state != ProcessState::Running {
            return;
        }
        let mut next = self.clients[task].next(request);
        loop {
            match next {
                Next::Launch { kernel, turn } => {
                    let queues = self.clients[task].turns[turn].clone();
                    for &queue in &queues {
                        self.launch(task, kernel, queue);
                    }
                    next = self.clients[task].launched(request, &queues);
                }
                Next::Cpu(Duration::ZERO) => next = self.clients[task].next(request),
                Next::Cpu(time) => {
                    self.gpu.event_queue.after(time, SimEvent::CpuDone { task, request });
                    return;
                }
                Next::Wait => return,
                Next::Finish => {
                    self.finish_request(task, request);
                    return;
                }
            }
        }
    }

    /// How long all unanswered requests would take, one after the other.
    pub(crate) fn work_left(&self) -> Duration {
        let mut left = Duration::ZERO;
        for client in self.clients.iter().filter(|client| client.state == ProcessState::Running) {
            let devices = client.spec.devices.len() as u64;
            for step in &client.spec.request {
                let kernel = &self.kernels[step.kernel];
                let model = &self.gpu.model;
                let fit = u64::from(model.compute_units)
                    * u64::from((model.waves_per_unit / kernel.waves.max(1)).max(1));
                let rounds = u64::from(kernel.groups).div_ceil(fit.max(1)) + 1;
                let latency = model.submit + model.complete;
                let each = kernel.work.times(rounds * devices) + step.cpu + latency;
                left += each.times(u64::from(step.count) * client.unanswered());
            }
        }
        left
    }

    fn launch(&mut self, task: usize, kernel: usize, queue: QueueId) {
        let spec = &self.kernels[kernel];
        let region = self.region_bytes[task];
        let index = self.clients[task].queues().position(|other| other == queue).unwrap_or(0);
        let base = region * u32::try_from(index).unwrap_or(0);
        let Some(hardware) = self.gpu.queues.get(&queue) else { return };
        let low = hardware.launches.len() as u64 & u64::from(u32::MAX);
        let number = u32::try_from(low).unwrap_or(0);
        let work = u32::try_from(spec.work.as_nanos()).unwrap_or(u32::MAX);
        let packet = Packet {
            kernel: u32::try_from(kernel).unwrap_or(0),
            groups: spec.groups,
            waves: spec.waves,
            arguments: [base, number, work, region],
            number: 0,
            rung_at: self.now(),
        };
        self.gpu.submit(queue, packet);
    }

    /// A client learns that a launch is complete.
    pub(crate) fn seen(&mut self, queue: QueueId) {
        let Some(task) = self.gpu.queues.get(&queue).map(|queue| queue.task) else { return };
        match self.clients[task].completed(queue) {
            Some((request, Duration::ZERO)) => self.continue_request(task, request),
            Some((request, cpu)) => {
                self.gpu.event_queue.after(cpu, SimEvent::CpuDone { task, request });
            }
            None => {}
        }
    }

    fn finish_request(&mut self, task: usize, request: u64) {
        let now = self.now();
        self.clients[task].finish_request(request, now);
        if self.clients[task].back_to_back().is_some() {
            self.arrive_at_once(task);
        } else {
            if self.clients[task].spec.hint.is_some() && self.clients[task].is_idle() {
                if !self.evictions.is_away(task) {
                    self.report(Event::HintEnd { task: task_id(task) });
                }
                self.hint_hold(task, false);
            }
            self.begin_request(task);
        }
        self.end_if_finished(task);
    }

    pub(crate) fn announce(&mut self, task: usize) {
        if self.clients[task].state == ProcessState::Running && !self.evictions.is_away(task) {
            let deadline = self.clients[task].spec.deadline;
            self.report(Event::HintBegin { task: task_id(task), deadline });
            self.hint_hold(task, true);
        }
    }

    pub(crate) fn end_if_finished(&mut self, task: usize) {
        let client = &self.clients[task];
        if client.state == ProcessState::Running && client.is_idle() && client.last_arrived {
            self.end_task(task, ProcessState::Finished);
        }
    }

    pub(crate) fn change_priority(&mut self, task: usize, change: usize) {
        let changes = &self.clients[task].spec.changes;
        let Some(priority) = changes.get(change).map(|change| change.priority) else { return };
        self.clients[task].priority = priority;
        let queues: Vec<QueueId> = self.clients[task].queues().collect();
        for queue in queues {
            if let Some(hardware) = self.gpu.queues.get_mut(&queue) {
                hardware.priority = priority;
            }
        }
        self.memory_changed();
        if self.clients[task].state == ProcessState::Running && !self.evictions.is_away(task) {
            let attr = self.attr_of(task);
            self.report(Event::TaskChanged { task: task_id(task), attr });
        }
    }
}
