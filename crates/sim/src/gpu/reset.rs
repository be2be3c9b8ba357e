//! The original GPreempt and REEF: flag, empty the ring, kill the waves; later submit again.
//!
//! Killed launches begin again at their first instruction, and some complete ones run a second
//! time, because the progress of the device is unknown. This design is here for comparison.

use gpreempt_core::id::QueueId;

use super::Gpu;
use super::queue::Residency;
use crate::event_queue::SimEvent;

impl Gpu {
    pub(super) fn begin_reset(&mut self, id: QueueId) {
        let steps = &self.model.reset;
        let takes = steps.flag + steps.clear + steps.kill;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.stopped = true;
        queue.residency = Residency::Saving;
        let epoch = queue.epoch;
        self.event_queue.after(takes, SimEvent::Saved { queue: id, epoch });
        self.track(id);
    }

    pub(super) fn finish_reset(&mut self, id: QueueId) {
        let device_cap = u64::from(self.model.fetch_depth);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let device = queue.device;
        queue.epoch += 1;
        queue.residency = Residency::In;
        queue.fetched.clear();
        if let Some(execution) = queue.execution.take() {
            let waves = execution.packet.waves;
            self.preemptions += u64::from(!execution.running.is_empty());
            for group in execution.running.values() {
                self.devices[device].units.release(group.unit, waves);
            }
        }
        // Launches in the backlog never reached the ring, so they do not count as launched.
        let launched = (queue.launches.len() - queue.backlog.len()) as u64;
        let pending = queue.ring.empty();
        let last = launched.saturating_sub(1);
        queue.kernel_offset =
            last.saturating_sub(pending).saturating_sub(device_cap).max(queue.kernel_offset);
        self.notices.push_back(super::Notice::Stopped(id));
        self.dispatch(device);
        self.track(id);
    }

    /// Submits all launches from the kernel offset on again, one after the other.
    pub(super) fn begin_resubmit(&mut self, id: QueueId) {
        let each = self.model.reset.resubmit;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let launched = (queue.launches.len() - queue.backlog.len()) as u64;
        let count = launched.saturating_sub(queue.kernel_offset);
        let epoch = queue.epoch;
        self.event_queue.after(each.times(count), SimEvent::Resubmitted { queue: id, epoch });
    }

    pub(crate) fn finish_resubmit(&mut self, id: QueueId, epoch: u64) {
        let Some(queue) = self.queues.get_mut(&id).filter(|queue| queue.epoch == epoch) else {
            return;
        };
        let launched = queue.launches.len() - queue.backlog.len();
        let from = usize::try_from(queue.kernel_offset).unwrap_or(launched).min(launched);
        let again: Vec<_> = queue.launches[from..launched].iter().map(|r| r.packet).collect();
        queue.stopped = false;
        for packet in again.into_iter().rev() {
            queue.backlog.push_front(packet);
        }
        while !queue.ring.is_full() {
            let Some(packet) = queue.backlog.pop_front() else { break };
            queue.ring.submit(&packet);
        }
        self.ring_doorbell(id);
        self.notices.push_back(super::Notice::Resumed(id));
        self.consider(id);
    }
}
