//! The hold watcher: keeps an important group on the engine across its gaps.
//!
//! It polls the ring of the one queue that may be held, far more often than the scheduler's loop:
//! work appeared, so place the hold; quiet for long enough, so release it. The quiet time begins
//! when the group is on the engine, because before that a fetched ring says nothing. A hint places
//! the hold ahead of the work.

use gpreempt_core::id::QueueId;
use gpreempt_core::ring::RingView;
use gpreempt_core::time::Instant;

use crate::agenda::What;
use crate::rig::Rig;

/// The watcher of one device.
#[derive(Debug, Default)]
pub(crate) struct HoldWatcher {
    permitted: Option<QueueId>,
    /// Tells polls and holds of the current permission from older ones.
    epoch: u64,
    last: RingView,
    moved_at: Instant,
    placed: bool,
    hinted: bool,
}

impl Rig {
    pub(crate) fn permit_hold(&mut self, device: usize, queue: QueueId) {
        self.forbid_hold(device);
        let now = self.gpu.agenda.now();
        let last = self.gpu.queues.get(&queue).map(|queue| queue.ring.view(None));
        let poll = self.gpu.model.tsg.hold_poll;
        let watcher = &mut self.holds[device];
        watcher.permitted = Some(queue);
        watcher.epoch += 1;
        watcher.last = last.unwrap_or_default();
        watcher.moved_at = now;
        let epoch = watcher.epoch;
        self.gpu.agenda.after(poll, What::HoldPoll { device, epoch });
    }

    pub(crate) fn forbid_hold(&mut self, device: usize) {
        self.release_hold(device);
        let watcher = &mut self.holds[device];
        watcher.permitted = None;
        watcher.hinted = false;
        watcher.epoch += 1;
    }

    pub(crate) fn hold_poll(&mut self, device: usize, epoch: u64) {
        let (poll, quiet, max) = {
            let tsg = &self.gpu.model.tsg;
            (tsg.hold_poll, tsg.hold_quiet, tsg.hold_max)
        };
        let now = self.gpu.agenda.now();
        let loaded = self.gpu.loaded(device);
        let watcher = &mut self.holds[device];
        if watcher.epoch != epoch {
            return;
        }
        let Some(id) = watcher.permitted else { return };
        let Some(queue) = self.gpu.queues.get(&id) else { return };
        let view = queue.ring.view(None);
        if view != watcher.last {
            let submitted = view.put != watcher.last.put;
            watcher.last = view;
            watcher.moved_at = now;
            if submitted {
                self.place_hold(device);
            }
        }
        let watcher = &self.holds[device];
        let on_since = loaded.filter(|(current, _)| *current == id).map(|(_, since)| since);
        let quiet_since = on_since.map(|since| since.max(watcher.moved_at));
        let quiet =
            view.pending() == 0 && quiet_since.is_some_and(|since| now.since(since) >= quiet);
        let expired = now.since(watcher.moved_at) >= max;
        if watcher.placed && (expired || (quiet && !watcher.hinted)) {
            self.release_hold(device);
        }
        self.gpu.agenda.after(poll, What::HoldPoll { device, epoch });
    }

    /// A task announces a request, or says that it is done.
    pub(crate) fn hint_hold(&mut self, task: usize, begins: bool) {
        let now = self.gpu.agenda.now();
        for device in 0..self.holds.len() {
            let Some(id) = self.holds[device].permitted else { continue };
            if self.gpu.queues.get(&id).is_none_or(|queue| queue.task != task) {
                continue;
            }
            self.holds[device].hinted = begins;
            self.holds[device].moved_at = now;
            if begins {
                self.place_hold(device);
            }
        }
    }

    fn place_hold(&mut self, device: usize) {
        self.set_hold(device, true);
    }

    fn release_hold(&mut self, device: usize) {
        self.set_hold(device, false);
    }

    fn set_hold(&mut self, device: usize, placed: bool) {
        let latency = self.gpu.model.tsg.hold_latency;
        let watcher = &mut self.holds[device];
        if watcher.placed == placed {
            return;
        }
        watcher.placed = placed;
        if let Some(queue) = watcher.permitted {
            self.gpu.agenda.after(latency, What::HoldSeen { queue, placed });
        }
    }

    /// The hardware sees a hold placed or released.
    pub(crate) fn hold_seen(&mut self, queue: QueueId, placed: bool) {
        if let Some(hardware) = self.gpu.queues.get_mut(&queue) {
            hardware.held = placed;
            self.gpu.consider(queue);
        }
    }
}

impl HoldWatcher {
    /// Whether it is that queue that may be held.
    pub(crate) fn permits(&self, queue: QueueId) -> bool {
        self.permitted == Some(queue)
    }
}
