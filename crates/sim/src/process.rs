//! Processes in time: they start, get requests, launch, wait and end.

use gpreempt_core::event::Event;
use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

use crate::agenda::What;
use crate::client::{Life, Next};
use crate::packet::Packet;
use crate::rig::{Rig, task_id};

impl Rig {
    fn work_arrives(&self) -> bool {
        self.now() < Instant::ZERO + self.duration
    }

    pub(crate) fn start_task(&mut self, task: usize) {
        if !self.work_arrives() || self.clients[task].life != Life::Unborn {
            return;
        }
        let now = self.now();
        self.clients[task].life = Life::Alive;
        self.clients[task].started_at = now;
        self.open_queues(task);
        self.introduce_task(task);
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

    /// A task that waited for another one's end.
    pub(crate) fn start_successors(&mut self, ended: usize) {
        for task in 0..self.clients.len() {
            if self.clients[task].spec.after == Some(ended) {
                let delay = self.clients[task].spec.start;
                self.gpu.agenda.after(delay, What::TaskStart { task });
            }
        }
    }

    fn await_arrival(&mut self, task: usize, last: Option<Instant>) {
        let now = self.now();
        let end = Instant::ZERO + self.duration;
        let next = self.clients[task].next_arrival(last).map(|at| at.max(now));
        let Some(at) = next.filter(|&at| at < end) else {
            self.clients[task].no_more_arrivals();
            return;
        };
        self.gpu.agenda.at(at, What::Arrive { task });
        if let Some(ahead) = self.clients[task].spec.hint {
            let announce = Instant::from_nanos(at.as_nanos().saturating_sub(ahead.as_nanos()));
            self.gpu.agenda.at(announce.max(now), What::Announce { task });
        }
    }

    pub(crate) fn arrive(&mut self, task: usize) {
        if self.clients[task].life != Life::Alive {
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
            self.clients[task].no_more_arrivals();
        }
    }

    fn begin_request(&mut self, task: usize) {
        let now = self.now();
        if let Some(request) = self.clients[task].begin_request(now) {
            self.go_on(task, request);
        }
    }

    /// Does what a request does until it has to wait for something.
    pub(crate) fn go_on(&mut self, task: usize, request: u64) {
        if self.clients[task].life != Life::Alive {
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
                    self.gpu.agenda.after(time, What::CpuDone { task, request });
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

    /// How long everything that arrived and is not answered would take, one after the other.
    pub(crate) fn work_left(&self) -> Duration {
        let mut left = Duration::ZERO;
        for client in self.clients.iter().filter(|client| client.life == Life::Alive) {
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
            Some((request, Duration::ZERO)) => self.go_on(task, request),
            Some((request, cpu)) => {
                self.gpu.agenda.after(cpu, What::CpuDone { task, request });
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
                self.report(Event::HintEnd { task: task_id(task) });
                self.hint_hold(task, false);
            }
            self.begin_request(task);
        }
        self.end_if_finished(task);
    }

    pub(crate) fn announce(&mut self, task: usize) {
        if self.clients[task].life == Life::Alive {
            let deadline = self.clients[task].spec.deadline;
            self.report(Event::HintBegin { task: task_id(task), deadline });
            self.hint_hold(task, true);
        }
    }

    pub(crate) fn end_if_finished(&mut self, task: usize) {
        let client = &self.clients[task];
        if client.life == Life::Alive && client.is_idle() && client.has_no_more_arrivals() {
            self.end_task(task, Life::Finished);
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
        if self.clients[task].life == Life::Alive {
            let traits = self.traits_of(task);
            self.report(Event::TaskChanged { task: task_id(task), traits });
        }
    }
}
