//! A process: requests arrive, launch kernels, wait for them, and are done.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_core::id::QueueId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::{Duration, Instant};

use crate::outcome::Served;
use crate::prng::Prng;
use crate::scenario::{Arrivals, RequestStep, TaskSpec};

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Not started, or never will be.
    Unborn,
    /// Runs.
    Alive,
    /// Did all it had to do.
    Finished,
    /// Was killed.
    Dead,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) spec: TaskSpec,
    pub(crate) life: Life,
    pub(crate) priority: Priority,
    pub(crate) started_at: Instant,
    /// The queues a launch goes to: for each turn one on every device.
    pub(crate) turns: Vec<Vec<QueueId>>,
    next_turn: usize,
    /// Arrived and not begun.
    waiting: VecDeque<Instant>,
    pub(crate) requests: BTreeMap<u64, Request>,
    next_request: u64,
    /// Arrivals so far.
    pub(crate) arrived: u64,
    /// Whether that was all.
    last_arrived: bool,
    /// Which request each launch belongs to, in order of launch.
    owners: BTreeMap<QueueId, VecDeque<u64>>,
    /// Finished requests, in order of their ends.
    pub(crate) served: Vec<Served>,
    prng: Prng,
}

/// A request under way.
#[derive(Debug)]
pub(crate) struct Request {
    arrived: Instant,
    began: Instant,
    turn: usize,
    step: usize,
    launched: u32,
    outstanding: u32,
    /// Whether it goes on when nothing is outstanding.
    syncing: bool,
}

/// What a request does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Launches a kernel on the queues of a turn.
    Launch { kernel: usize, turn: usize },
    /// Computes on its own processor.
    Cpu(Duration),
    /// Waits for its launches.
    Wait,
    /// Is done.
    Finish,
}

impl Client {
    pub(crate) fn new(spec: TaskSpec, prng: Prng) -> Self {
        Self {
            priority: spec.priority,
            spec,
            life: Life::Unborn,
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

    /// Every queue it has.
    pub(crate) fn queues(&self) -> impl Iterator<Item = QueueId> + '_ {
        self.turns.iter().flatten().copied()
    }

    /// When the next request arrives after the one at `last`; none if there is no other.
    pub(crate) fn next_arrival(&mut self, last: Option<Instant>) -> Option<Instant> {
        if self.spec.requests_max.is_some_and(|max| self.arrived >= max) {
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

    /// How many requests are always under way, if that is how they arrive.
    pub(crate) fn back_to_back(&self) -> Option<u32> {
        match self.spec.arrivals {
            Arrivals::BackToBack { depth } => Some(depth),
            Arrivals::Periodic { .. } | Arrivals::Poisson { .. } | Arrivals::Trace(_) => None,
        }
    }

    /// Whether one more request may come.
    pub(crate) fn may_arrive(&self) -> bool {
        self.spec.requests_max.is_none_or(|max| self.arrived < max)
    }

    /// There will be no other request.
    pub(crate) fn no_more_arrivals(&mut self) {
        self.last_arrived = true;
    }

    pub(crate) fn has_no_more_arrivals(&self) -> bool {
        self.last_arrived
    }

    /// A request arrives.
    pub(crate) fn arrive(&mut self, now: Instant) {
        self.arrived += 1;
        self.waiting.push_back(now);
    }

    /// Begins the next request that waits, if there is one and it need not wait longer.
    pub(crate) fn begin_request(&mut self, now: Instant) -> Option<u64> {
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

    /// What a request that is not waiting for anything does next.
    pub(crate) fn next(&mut self, number: u64) -> Next {
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

    /// Notes a launch. Returns what follows it.
    pub(crate) fn launched(&mut self, number: u64, queues: &[QueueId]) -> Next {
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

    /// A launch is complete. Returns the request that can go on, and how long it computes first.
    pub(crate) fn completed(&mut self, queue: QueueId) -> Option<(u64, Duration)> {
        let number = self.owners.get_mut(&queue)?.pop_front()?;
        let request = self.requests.get_mut(&number)?;
        request.outstanding -= 1;
        if request.outstanding > 0 || !request.syncing {
            return None;
        }
        let cpu = self.spec.request.get(request.step).filter(|step| step.sync);
        Some((number, cpu.map_or(Duration::ZERO, |step| step.cpu)))
    }

    /// A request is done.
    pub(crate) fn finish_request(&mut self, number: u64, now: Instant) {
        if let Some(request) = self.requests.remove(&number) {
            let Request { arrived, began, .. } = request;
            self.served.push(Served { arrived, began, ended: now });
        }
    }

    /// Requests that arrived and are not answered.
    pub(crate) fn unanswered(&self) -> u64 {
        (self.requests.len() + self.waiting.len()) as u64
    }

    /// Whether nothing is under way and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.is_empty() && self.waiting.is_empty()
    }
}
