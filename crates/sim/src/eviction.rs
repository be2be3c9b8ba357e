//! Which tasks are in the memory of their device: room for a task that starts, and whole turns for
//! tasks that do not fit together, with the planners of the scheduler.
//!
//! ```text
//!   start -> claim --- room -----------------------------> resident
//!               \---- others are evicted ---> room ------> resident
//!   evict:   leave the scheduler -> no call of it is in flight -> lock -> checkpoint -> out
//!   restore: restore -> unlock -> the scheduler gets the task again
//! ```
//!
//! While there is no scheduler, steps complete, and the keeper restores what fits.

use std::cmp::Reverse;

use gpreempt_core::event::Event;
use gpreempt_core::id::QueueId;
use gpreempt_core::room::{Evictable, RoomClaim, RoomPlan, plan_room};
use gpreempt_core::swap_turns::{JobPlace, SWAPS_PER_TURN, SwapTurns, TurnJob};
use gpreempt_core::time::{Duration, Instant};

use crate::client::ProcessState;
use crate::event_queue::SimEvent;
use crate::model::MemoryModel;
use crate::process_memory::{CheckpointError, CheckpointStep, ProcessId};
use crate::scenario::Scenario;
use crate::sim_backend::{SimBackend, task_id};

/// How long the kernels of a task may take until its eviction is given up.
const LOCK_MAX: Duration = Duration::from_millis(5_000);
/// How long after that it may be tried again.
const RETRY: Duration = Duration::from_millis(1_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Not started, without memory, or ended.
    Absent,
    /// It waits for room.
    Claims,
    Resident,
    /// It has left the scheduler, some of whose calls are still in flight.
    Leaving,
    Locking,
    Checkpointing,
    Out,
    Restoring,
    Unlocking,
}

#[derive(Debug)]
pub(crate) struct Evictions {
    places: Vec<Place>,
    /// When each task may be evicted again.
    retry_at: Vec<Instant>,
    /// Of each device.
    turns: Vec<SwapTurns<usize>>,
    has_turns: bool,
    has_scheduler: bool,
    /// Whether any task has memory.
    is_used: bool,
    /// Something has changed since the last plan.
    is_due: bool,
    wakes_at: Option<Instant>,
    pub(crate) count: u64,
}

impl Evictions {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let turn = scenario.scheduler.and_then(|scheduler| scheduler.swap_turn);
        let turns = SwapTurns::new(turn.unwrap_or_default());
        let tasks = scenario.tasks.len();
        Self {
            places: vec![Place::Absent; tasks],
            retry_at: vec![Instant::ZERO; tasks],
            turns: vec![turns; scenario.devices as usize],
            has_turns: turn.is_some(),
            has_scheduler: scenario.scheduler.is_some(),
            is_used: scenario.tasks.iter().any(|task| task.memory > 0),
            is_due: false,
            wakes_at: None,
            count: 0,
        }
    }

    /// Whether the scheduler does not know a task that runs.
    pub(crate) fn is_away(&self, task: usize) -> bool {
        !matches!(self.places[task], Place::Absent | Place::Claims | Place::Resident)
    }

    /// How much longer than its work a scenario may take because of moves.
    pub(crate) fn allowance(&self, scenario: &Scenario, work: Duration) -> Duration {
        let memory = &scenario.model.memory;
        let evictable = || scenario.tasks.iter().filter(|task| task.is_evictable);
        let swaps = evictable()
            .fold(Duration::ZERO, |sum, task| sum + swap_time(memory, task.memory) + LOCK_MAX);
        let Some(turn) = scenario.scheduler.and_then(|scheduler| scheduler.swap_turn) else {
            return swaps.times(4);
        };
        let turn = turn.max(swaps.times(SWAPS_PER_TURN)) + swaps;
        let rounds = work.as_nanos() / turn.as_nanos().max(1) + 4;
        turn.times(rounds.saturating_mul(20 * evictable().count() as u64))
    }
}

/// How long it takes to move a process out and back.
fn swap_time(memory: &MemoryModel, bytes: u64) -> Duration {
    let copy = |bytes_per_us: u64| Duration::from_micros(bytes / bytes_per_us.max(1));
    let out = memory.lock + memory.checkpoint + copy(memory.checkpoint_bytes_per_us);
    out + memory.restore + copy(memory.restore_bytes_per_us) + memory.unlock
}

impl SimBackend {
    fn process(task: usize) -> ProcessId {
        ProcessId(u32::try_from(task).unwrap_or(u32::MAX))
    }

    fn place(&self, task: usize) -> Place {
        self.evictions.places[task]
    }

    fn set_place(&mut self, task: usize, place: Place) {
        self.evictions.places[task] = place;
        self.evictions.is_due = true;
    }

    /// A task with memory wants to start.
    pub(crate) fn claim_memory(&mut self, task: usize) {
        self.set_place(task, Place::Claims);
        self.settle_memory();
    }

    /// The task has ended: its memory is free.
    pub(crate) fn free_memory(&mut self, task: usize) {
        if self.place(task) != Place::Absent {
            self.gpu.end_task_memory(task);
            self.set_place(task, Place::Absent);
        }
    }

    /// There is no scheduler any more: no task is on its way out of it.
    pub(crate) fn abandon_evictions(&mut self) {
        for task in 0..self.clients.len() {
            if self.place(task) == Place::Leaving {
                self.set_place(task, Place::Resident);
            }
        }
        self.evictions.is_due = true;
    }

    pub(crate) fn memory_due(&mut self) {
        self.evictions.wakes_at = None;
        self.evictions.is_due = true;
    }

    pub(crate) fn memory_changed(&mut self) {
        self.evictions.is_due = true;
    }

    /// Continues moves and, if something has changed, plans others.
    pub(crate) fn settle_memory(&mut self) {
        if !self.evictions.is_used {
            return;
        }
        self.gpu.settle_locks();
        for task in 0..self.clients.len() {
            if self.place(task) == Place::Leaving {
                self.lock_when_free(task);
            }
        }
        self.handle_notices();
        // A plan may change what the next one sees.
        for _ in 0..=self.clients.len() {
            if !std::mem::take(&mut self.evictions.is_due) {
                return;
            }
            for device in 0..self.gpu.devices.len() {
                self.plan_device(device);
            }
        }
    }

    fn tasks_of(&self, device: usize) -> impl Iterator<Item = usize> + '_ {
        let is_here = move |task: &usize| {
            let devices = &self.clients[*task].spec.devices;
            self.place(*task) != Place::Absent
                && devices.first() == u32::try_from(device).ok().as_ref()
        };
        (0..self.clients.len()).filter(is_here)
    }

    fn those_at(&self, place: Place, tasks: &[usize]) -> Vec<usize> {
        tasks.iter().copied().filter(|&task| self.place(task) == place).collect()
    }

    /// What tasks that cannot be evicted use.
    fn fixed_bytes(&self, device: usize) -> u64 {
        let evictable = self.gpu.memory_table.processes().filter(|(id, process)| {
            process.is_on_device() && self.clients[id.0 as usize].spec.is_evictable
        });
        let evictable: u64 = evictable.map(|(_, process)| process.bytes_of(device)).sum();
        self.gpu.memory_table.used(device) - evictable
    }

    fn free_bytes(&self, device: usize) -> u64 {
        self.gpu.memory_table.size() - self.gpu.memory_table.used(device)
    }

    fn plan_device(&mut self, device: usize) {
        let mut tasks: Vec<usize> = self.tasks_of(device).collect();
        // The highest priority first.
        tasks.sort_by_key(|&task| (Reverse(self.clients[task].priority), task));
        let reserved = self.plan_claims(device, &tasks);
        if self.takes_turns() {
            self.plan_turns(device, &tasks, reserved);
            return;
        }
        for task in self.those_at(Place::Out, &tasks) {
            let room = self.free_bytes(device).saturating_sub(reserved);
            if self.clients[task].spec.memory <= room {
                self.begin_restore(task);
            }
        }
    }

    fn takes_turns(&self) -> bool {
        self.evictions.has_turns && self.scheduler_up
    }

    /// Admits or refuses tasks that start, and evicts others for them. Returns the bytes that are
    /// kept for tasks that wait.
    fn plan_claims(&mut self, device: usize, tasks: &[usize]) -> u64 {
        let mut reserved = 0;
        for task in self.those_at(Place::Claims, tasks) {
            let (bytes, is_turn_job) = {
                let spec = &self.clients[task].spec;
                (spec.memory, spec.is_evictable && self.evictions.has_turns)
            };
            // Without its daemon a program that asks for room waits.
            if self.evictions.has_scheduler && !self.scheduler_up {
                continue;
            }
            let free = self.free_bytes(device).saturating_sub(reserved);
            if bytes <= free && !is_turn_job {
                self.admit(task);
            } else if bytes > self.gpu.memory_table.size() || !self.make_room(device, task, free) {
                self.refuse(task);
            } else if !is_turn_job {
                reserved += bytes;
            }
        }
        reserved
    }

    /// Whether a task that starts gets room, and evicts what has to go for it.
    fn make_room(&mut self, device: usize, task: usize, free: u64) -> bool {
        if !self.evictions.has_scheduler {
            return false;
        }
        let spec = &self.clients[task].spec;
        if spec.is_evictable && self.evictions.has_turns {
            return true;
        }
        let claim = RoomClaim { priority: self.clients[task].priority, bytes: spec.memory };
        let (now, mut leaving, mut may_leave) = (self.now(), 0, Vec::new());
        let mut is_open = false;
        for other in self.tasks_of(device).filter(|other| *other != task) {
            let client = &self.clients[other];
            let bytes = client.spec.memory;
            match self.place(other) {
                Place::Leaving | Place::Locking | Place::Checkpointing => leaving += bytes,
                Place::Resident if client.spec.is_evictable => {
                    if self.evictions.retry_at[other] > now {
                        is_open = true;
                    } else {
                        let priority = client.priority;
                        may_leave.push(Evictable { id: other, priority, bytes });
                    }
                }
                Place::Restoring | Place::Unlocking => is_open = true,
                Place::Resident | Place::Absent | Place::Claims | Place::Out => {}
            }
        }
        match plan_room(claim, free.saturating_add(leaving), &may_leave) {
            RoomPlan::Evict(chosen) => {
                chosen.into_iter().for_each(|other| self.begin_evict(other));
                true
            }
            // Asked again when a move has ended.
            RoomPlan::Short { .. } => is_open,
        }
    }

    fn plan_turns(&mut self, device: usize, tasks: &[usize], reserved: u64) {
        let memory = self.gpu.model.memory;
        let place = |place| match place {
            Place::Resident => JobPlace::Resident,
            Place::Claims | Place::Out => JobPlace::Evicted,
            Place::Absent
            | Place::Leaving
            | Place::Locking
            | Place::Checkpointing
            | Place::Restoring
            | Place::Unlocking => JobPlace::Moving,
        };
        let mut jobs = Vec::new();
        let room = self.gpu.memory_table.size() - self.fixed_bytes(device);
        for &task in tasks {
            let client = &self.clients[task];
            let (id, bytes) = (task, client.spec.memory);
            if client.spec.is_evictable {
                let (priority, swap) = (client.priority, swap_time(&memory, bytes));
                jobs.push(TurnJob { id, priority, bytes, swap, place: place(self.place(task)) });
            }
        }
        let now = self.now();
        let plan = self.evictions.turns[device].step(now, room.saturating_sub(reserved), &jobs);
        for task in plan.evict {
            if self.evictions.retry_at[task] <= now {
                self.begin_evict(task);
            }
        }
        for task in plan.restore {
            if self.clients[task].spec.memory > self.free_bytes(device) {
                continue;
            }
            if self.place(task) == Place::Claims {
                self.admit(task);
            } else {
                self.begin_restore(task);
            }
        }
        if let Some(at) = self.evictions.turns[device].next_at() {
            self.wake_memory_at(at);
        }
    }

    fn wake_memory_at(&mut self, at: Instant) {
        let at = at.max(self.now());
        if self.evictions.wakes_at.is_none_or(|before| at < before || before < self.now()) {
            self.evictions.wakes_at = Some(at);
            self.gpu.event_queue.at(at, SimEvent::MemoryDue);
        }
    }

    fn admit(&mut self, task: usize) {
        let (process, devices) = (Self::process(task), self.clients[task].spec.devices.clone());
        let bytes = self.clients[task].spec.memory;
        self.gpu.memory_table.join(process, task);
        let is_there = devices.iter().all(|&device| {
            self.gpu.memory_table.allocate(process, task, device as usize, bytes).is_some()
        });
        if is_there {
            self.set_place(task, Place::Resident);
            self.run_task(task);
        } else {
            self.gpu.end_task_memory(task);
            self.refuse(task);
        }
    }

    /// The task gets an error instead of memory, and ends.
    fn refuse(&mut self, task: usize) {
        self.set_place(task, Place::Absent);
        self.clients[task].state = ProcessState::Refused;
        self.start_successors(task);
    }

    fn queues_of(&self, task: usize) -> Vec<QueueId> {
        self.clients[task].queues().collect()
    }

    fn begin_evict(&mut self, task: usize) {
        if self.place(task) == Place::Resident {
            self.set_place(task, Place::Leaving);
            self.report(Event::TaskVanished { task: task_id(task) });
            self.lock_when_free(task);
        }
    }

    /// Locks a task once no call of the scheduler for it is in flight.
    fn lock_when_free(&mut self, task: usize) {
        let queues = self.queues_of(task);
        if queues.iter().any(|&queue| self.has_calls(queue)) {
            return;
        }
        for queue in queues {
            for device in 0..self.holds.len() {
                if self.holds[device].permits(queue) {
                    self.forbid_hold(device);
                }
            }
            self.gpu.set_slice(queue, None);
            self.gpu.resume(queue);
        }
        self.set_place(task, Place::Locking);
        self.begin_step(task, CheckpointStep::Lock(Some(LOCK_MAX)));
    }

    fn begin_restore(&mut self, task: usize) {
        self.set_place(task, Place::Restoring);
        self.begin_step(task, CheckpointStep::Restore);
    }

    fn begin_step(&mut self, task: usize, step: CheckpointStep) {
        if let Err(error) = self.gpu.begin_step(Self::process(task), step) {
            let name = &self.clients[task].spec.name;
            self.violation.get_or_insert_with(|| format!("{step:?} of `{name}`: {error:?}"));
        }
    }

    /// A step of a task has ended.
    pub(crate) fn step_ended(&mut self, process: ProcessId, result: Result<(), CheckpointError>) {
        let task = process.0 as usize;
        let is_up = self.scheduler_up;
        match (self.place(task), result) {
            (Place::Locking, Ok(())) if is_up => {
                self.set_place(task, Place::Checkpointing);
                self.begin_step(task, CheckpointStep::Checkpoint);
            }
            (Place::Locking | Place::Restoring, Ok(())) => {
                self.set_place(task, Place::Unlocking);
                self.begin_step(task, CheckpointStep::Unlock);
            }
            (Place::Checkpointing, Ok(())) => {
                self.evictions.count += 1;
                self.set_place(task, Place::Out);
            }
            (Place::Unlocking, Ok(())) => self.adopt(task),
            (Place::Locking, Err(CheckpointError::NotReady)) => {
                self.evictions.retry_at[task] = self.now() + RETRY;
                let at = self.evictions.retry_at[task];
                self.gpu.event_queue.at(at, SimEvent::MemoryDue);
                self.adopt(task);
            }
            // The task ended.
            (_, Err(_)) => self.evictions.is_due = true,
            (place, Ok(())) => {
                let what = || format!("a step of task {task} ended in {place:?}");
                self.violation.get_or_insert_with(what);
            }
        }
    }

    /// The scheduler gets a task back.
    fn adopt(&mut self, task: usize) {
        self.set_place(task, Place::Resident);
        self.announce_task(task);
    }
}
