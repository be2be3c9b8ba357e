//! The hold watcher: keeps a high group on the engine between its kernels.
//!
//! It samples the ring of the permitted queue, far more often than the scheduler's loop, and acts
//! as the [`HoldPolicy`] of that queue says, which is the policy of the NVIDIA backend. While a
//! hold is in force an idle fence tells whether the group's kernels have finished.

use std::collections::BTreeMap;

use gpreempt_core::hold::{ContextSample, Execution, HoldAction, HoldLimits};
use gpreempt_core::hold_policy::HoldPolicy;
use gpreempt_core::id::QueueId;
use gpreempt_core::idle_allowance::IdleAllowance;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Instant;

use crate::event_queue::SimEvent;
use crate::gpu::Gpu;
use crate::sim_backend::SimBackend;

/// The watcher of one device.
#[derive(Debug, Default)]
pub(crate) struct HoldWatcher {
    permitted: Option<QueueId>,
    /// Distinguishes polls of the current permission from older ones.
    epoch: u64,
    contexts: BTreeMap<QueueId, ObservedContext>,
    allowance: IdleAllowance,
    /// Whether it sleeps while its queue has no work, until the doorbell wakes it.
    sleeps: bool,
    /// When its next poll is, if one is scheduled.
    poll_at: Option<Instant>,
}

/// A queue that is, or was, permitted or hinted.
#[derive(Debug)]
struct ObservedContext {
    policy: HoldPolicy,
    last: RingView,
    /// Since when idle fences show that all of its kernels have finished.
    finished_at: Option<Instant>,
}

impl HoldWatcher {
    /// A watcher that sleeps while its queue has no work, because in real time polls cost
    /// something.
    pub(crate) fn sleeping() -> Self {
        Self { sleeps: true, ..Self::default() }
    }

    pub(crate) fn permits(&self, queue: QueueId) -> bool {
        self.permitted == Some(queue)
    }

    pub(crate) fn permit(&mut self, gpu: &mut Gpu, device: usize, queue: QueueId) {
        self.forbid(gpu);
        let now = gpu.event_queue.now();
        let has_work = gpu.queues.get(&queue).is_some_and(|queue| queue.can_run());
        let packets = gpu.queues.get(&queue).map_or(0, |queue| queue.ring.view(None).put);
        self.permitted = Some(queue);
        self.epoch += 1;
        self.contexts.retain(|id, _| gpu.queues.contains_key(id));
        self.decide(gpu, queue, |policy, allowance| {
            // The request for which the scheduler permits the hold has just been submitted.
            let sample =
                ContextSample { submitted: true, packets, pending: true, ..Default::default() };
            let submitted = || policy.take_sample(now, sample, allowance);
            let place = has_work.then(submitted).flatten();
            policy.permit(now, allowance).or(place)
        });
        if let (Some(context), Some(queue)) =
            (self.contexts.get_mut(&queue), gpu.queues.get(&queue))
        {
            context.last = queue.ring.view(None);
        }
        self.await_poll(gpu, device, now + gpu.model.tsg.hold_poll);
    }

    pub(crate) fn forbid(&mut self, gpu: &mut Gpu) {
        self.epoch += 1;
        let now = gpu.event_queue.now();
        if let Some(queue) = self.permitted.take() {
            self.decide(gpu, queue, |policy, allowance| policy.forbid(now, allowance));
        }
    }

    /// The doorbell of the permitted queue was rung.
    pub(crate) fn wake(&mut self, gpu: &mut Gpu, device: usize) {
        let soon = gpu.event_queue.now() + gpu.model.tsg.hold_poll;
        if self.poll_at.is_none_or(|at| at > soon) {
            self.await_poll(gpu, device, soon);
        }
    }

    /// Polls then, and not when it was scheduled before.
    fn await_poll(&mut self, gpu: &mut Gpu, device: usize, at: Instant) {
        self.poll_at = Some(at);
        let epoch = self.epoch;
        let wait = at.since(gpu.event_queue.now());
        gpu.event_queue.after(wait, SimEvent::HoldPoll { device, epoch });
    }

    pub(crate) fn poll(&mut self, gpu: &mut Gpu, device: usize, epoch: u64) {
        let now = gpu.event_queue.now();
        if self.epoch != epoch || self.poll_at != Some(now) {
            return;
        }
        self.poll_at = None;
        let resident = gpu.loaded(device).map(|(current, _)| current);
        let Some(id) = self.permitted else { return };
        let Some(queue) = gpu.queues.get_mut(&id) else { return };
        queue.ring.look();
        let (view, has_work, loaded) =
            (queue.ring.view(None), queue.can_run(), resident == Some(id) && queue.held);
        let Some(context) = self.contexts.get_mut(&id) else { return };
        let last = std::mem::replace(&mut context.last, view);
        let submitted = view.put != last.put;
        context.finished_at =
            (loaded && !has_work && !submitted).then(|| context.finished_at.unwrap_or(now));
        let execution = match context.finished_at {
            Some(at) => Execution::FinishedAt(at),
            None if loaded => Execution::Running,
            None => Execution::Unknown,
        };
        let (fetched, pending) = (view.get != last.get, view.pending() > 0);
        let packets = view.put;
        let sample = ContextSample { submitted, packets, fetched, pending, loaded, execution };
        self.decide(gpu, id, |policy, allowance| policy.take_sample(now, sample, allowance));
        let Some(context) = self.contexts.get(&id) else { return };
        let soon = now + gpu.model.tsg.hold_poll;
        if !self.sleeps || context.policy.is_held() || has_work {
            self.await_poll(gpu, device, soon);
        } else if let Some(at) = context.policy.next_arrival_at() {
            self.await_poll(gpu, device, at.max(soon));
        }
    }

    /// A task announces a request on this queue, or its end.
    fn hint(&mut self, gpu: &mut Gpu, queue: QueueId, begins: bool) {
        let now = gpu.event_queue.now();
        let is_pending = gpu.queues.get(&queue).is_some_and(|queue| queue.ring.pending() > 0);
        self.decide(gpu, queue, |policy, allowance| {
            if begins {
                policy.hint_begin(now, allowance)
            } else {
                policy.hint_end(now, is_pending, allowance)
            }
        });
    }

    /// Asks the policy of a queue, and acts as it says.
    fn decide(
        &mut self,
        gpu: &mut Gpu,
        queue: QueueId,
        ask: impl FnOnce(&mut HoldPolicy, &mut IdleAllowance) -> Option<HoldAction>,
    ) {
        let context = self.contexts.entry(queue).or_insert_with(|| ObservedContext {
            policy: HoldPolicy::new(HoldLimits {
                hold_max: gpu.model.tsg.hold_max,
                ..HoldLimits::default()
            }),
            last: gpu.queues.get(&queue).map(|queue| queue.ring.view(None)).unwrap_or_default(),
            finished_at: None,
        });
        let Some(action) = ask(&mut context.policy, &mut self.allowance) else { return };
        let placed = action == HoldAction::Place;
        gpu.event_queue.after(gpu.model.tsg.hold_latency, SimEvent::HoldSeen { queue, placed });
    }
}

impl Gpu {
    /// A hold is placed or released in hardware.
    pub(crate) fn hold_seen(&mut self, id: QueueId, placed: bool) {
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.held = placed;
            self.consider(id);
        }
    }
}

impl SimBackend {
    pub(crate) fn permit_hold(&mut self, device: usize, queue: QueueId) {
        self.holds[device].permit(&mut self.gpu, device, queue);
    }

    pub(crate) fn forbid_hold(&mut self, device: usize) {
        self.holds[device].forbid(&mut self.gpu);
    }

    pub(crate) fn hold_poll(&mut self, device: usize, epoch: u64) {
        self.holds[device].poll(&mut self.gpu, device, epoch);
    }

    /// A task announces a request, or its end.
    pub(crate) fn hint_hold(&mut self, task: usize, begins: bool) {
        if !self.may_hold {
            return;
        }
        let queues = self.gpu.queues.iter().filter(|(_, queue)| queue.task == task);
        let queues: Vec<(QueueId, usize)> = queues.map(|(&id, queue)| (id, queue.device)).collect();
        for (id, device) in queues {
            self.holds[device].hint(&mut self.gpu, id, begins);
        }
    }
}
