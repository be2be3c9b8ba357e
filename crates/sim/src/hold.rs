//! The hold watcher: keeps a high group on the engine between its kernels.
//!
//! It polls the ring of the permitted queue, far more often than the scheduler's loop. New work
//! places the hold; a quiet time releases it. The quiet time begins when the group is on the
//! engine, because before that an empty ring does not mean that the work is done. A hint places the
//! hold before the work arrives.

use gpreempt_core::id::QueueId;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Instant;

use crate::event_queue::SimEvent;
use crate::gpu::Gpu;
use crate::sim_backend::SimBackend;

#[derive(Debug, Default)]
pub(crate) struct HoldWatcher {
    permitted: Option<QueueId>,
    /// Distinguishes polls and holds of the current permission from older ones.
    epoch: u64,
    last: RingView,
    moved_at: Instant,
    placed: bool,
    hinted: bool,
    /// Whether it sleeps while its queue has no work, until the doorbell wakes it.
    sleeps: bool,
    /// Whether its next poll is scheduled.
    awake: bool,
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
        self.permitted = Some(queue);
        self.epoch += 1;
        let last = gpu.queues.get(&queue).map(|queue| queue.ring.view(None));
        self.last = last.unwrap_or_default();
        self.moved_at = gpu.event_queue.now();
        self.await_poll(gpu, device);
    }

    pub(crate) fn forbid(&mut self, gpu: &mut Gpu) {
        self.set(gpu, false);
        self.permitted = None;
        self.hinted = false;
        self.epoch += 1;
    }

    /// The doorbell of the permitted queue was rung.
    pub(crate) fn wake(&mut self, gpu: &mut Gpu, device: usize) {
        if !self.awake {
            self.await_poll(gpu, device);
        }
    }

    fn await_poll(&mut self, gpu: &mut Gpu, device: usize) {
        self.awake = true;
        let epoch = self.epoch;
        gpu.event_queue.after(gpu.model.tsg.hold_poll, SimEvent::HoldPoll { device, epoch });
    }

    pub(crate) fn poll(&mut self, gpu: &mut Gpu, device: usize, epoch: u64) {
        if self.epoch != epoch {
            return;
        }
        self.awake = false;
        let (quiet, max) = (gpu.model.tsg.hold_quiet, gpu.model.tsg.hold_max);
        let now = gpu.event_queue.now();
        let loaded = gpu.loaded(device);
        let Some(id) = self.permitted else { return };
        let Some(queue) = gpu.queues.get_mut(&id) else { return };
        queue.ring.look();
        let (view, has_work) = (queue.ring.view(None), queue.can_run());
        if view != self.last {
            let submitted = view.put != self.last.put;
            self.last = view;
            self.moved_at = now;
            if submitted {
                self.set(gpu, true);
            }
        }
        let on_since = loaded.filter(|(current, _)| *current == id).map(|(_, since)| since);
        let quiet_since = on_since.map(|since| since.max(self.moved_at));
        let quiet =
            view.pending() == 0 && quiet_since.is_some_and(|since| now.since(since) >= quiet);
        let expired = now.since(self.moved_at) >= max;
        if self.placed && (expired || (quiet && !self.hinted)) {
            self.set(gpu, false);
        }
        if !self.sleeps || self.placed || has_work {
            self.await_poll(gpu, device);
        }
    }

    /// A task announces a request, or its end.
    pub(crate) fn hint(&mut self, gpu: &mut Gpu, begins: bool) {
        self.hinted = begins;
        self.moved_at = gpu.event_queue.now();
        if begins {
            self.set(gpu, true);
        }
    }

    fn set(&mut self, gpu: &mut Gpu, placed: bool) {
        if self.placed == placed {
            return;
        }
        self.placed = placed;
        if let Some(queue) = self.permitted {
            gpu.event_queue.after(gpu.model.tsg.hold_latency, SimEvent::HoldSeen { queue, placed });
        }
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
        for watcher in &mut self.holds {
            let Some(id) = watcher.permitted else { continue };
            if self.gpu.queues.get(&id).is_some_and(|queue| queue.task == task) {
                watcher.hint(&mut self.gpu, begins);
            }
        }
    }
}
