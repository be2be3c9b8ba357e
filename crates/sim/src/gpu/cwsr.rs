//! AMD: waves are saved to memory on request; the ring stays as it is.
//!
//! A queue needs one of the hardware's slots to be served. While there are more queues with work
//! than slots, they take turns: the queue that was mapped longest is saved.

use gpreempt_core::id::QueueId;

use super::queue::{HardwareQueue, Residency};
use super::{Gpu, Notice};
use crate::event_queue::SimEvent;

impl Gpu {
    /// Requests a slot for a queue with work.
    pub(super) fn request_slot(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get(&id) else { return };
        let wants = queue.can_run()
            && !queue.stopped
            && queue.mapped_at.is_none()
            && queue.residency == Residency::Out;
        let device = queue.device;
        if !wants || self.devices[device].slot_waiters.contains(&id) {
            return;
        }
        self.devices[device].slot_waiters.push_back(id);
        self.fill_slots(device);
    }

    fn fill_slots(&mut self, device: usize) {
        while !self.devices[device].slot_waiters.is_empty() {
            if !self.has_free_slot(device) {
                self.await_slot_turn(device);
                return;
            }
            if let Some(id) = self.devices[device].slot_waiters.pop_front() {
                self.map(id);
            }
        }
    }

    fn has_free_slot(&mut self, device: usize) -> bool {
        let slots = self.model.cwsr.queue_slots as usize;
        let mapped = |queue: &HardwareQueue| queue.device == device && queue.mapped_at.is_some();
        if self.queues.values().filter(|queue| mapped(queue)).count() < slots {
            return true;
        }
        // A mapped queue without work gives up its slot without a save.
        let idle = self
            .queues
            .values_mut()
            .find(|queue| mapped(queue) && queue.residency == Residency::In && !queue.can_run());
        match idle {
            Some(queue) => {
                queue.mapped_at = None;
                queue.residency = Residency::Out;
                true
            }
            None => false,
        }
    }

    fn await_slot_turn(&mut self, device: usize) {
        if !self.devices[device].slot_turn {
            self.devices[device].slot_turn = true;
            self.event_queue.after(self.model.cwsr.quantum, SimEvent::SlotTurn { device });
        }
    }

    /// Saves the queue that was mapped longest, so that a waiting queue gets its slot.
    pub(crate) fn slot_turn(&mut self, device: usize) {
        self.devices[device].slot_turn = false;
        if self.devices[device].slot_waiters.is_empty() {
            return;
        }
        if !self.has_free_slot(device) {
            let oldest = self
                .queues
                .iter()
                .filter(|(_, queue)| queue.device == device && queue.residency == Residency::In)
                .filter_map(|(&id, queue)| Some((queue.mapped_at?, id)))
                .min();
            if let Some((_, id)) = oldest {
                self.begin_save(id);
            }
        }
        self.fill_slots(device);
        self.dispatch(device);
    }

    fn map(&mut self, id: QueueId) {
        let now = self.event_queue.now();
        let Some(queue) = self.queues.get_mut(&id).filter(|queue| !queue.stopped) else { return };
        queue.mapped_at = Some(now);
        let waves = queue.saved_waves();
        queue.epoch += 1;
        if waves == 0 {
            queue.residency = Residency::In;
            self.fetch_more(id);
        } else {
            queue.residency = Residency::Restoring;
            let epoch = queue.epoch;
            let takes = self.restore_time(waves);
            self.event_queue.after(takes, SimEvent::Restored { queue: id, epoch });
        }
        self.track(id);
    }

    pub(super) fn begin_save(&mut self, id: QueueId) {
        let now = self.event_queue.now();
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let waves = queue.resident_waves();
        queue.preemptions = queue.preemptions.saturating_add(u32::from(waves > 0));
        self.preemptions += u64::from(waves > 0);
        let takes = self.save_time(waves);
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.epoch += 1;
        queue.residency = Residency::Saving;
        let epoch = queue.epoch;
        if let Some(execution) = queue.execution.as_mut() {
            queue.leaving = (execution.save(now), execution.packet.waves);
        }
        self.event_queue.after(takes, SimEvent::Saved { queue: id, epoch });
        self.track(id);
    }

    /// The waves are in memory: their units are free.
    pub(crate) fn finish_save(&mut self, id: QueueId, epoch: u64) {
        let Some(queue) = self.queues.get_mut(&id).filter(|queue| queue.epoch == epoch) else {
            return;
        };
        if self.machine == crate::model::MachineKind::Reset {
            self.finish_reset(id);
            return;
        }
        let device = queue.device;
        queue.residency = Residency::Out;
        queue.mapped_at = None;
        let stopped = queue.stopped;
        self.release_units(id);
        if stopped {
            self.notices.push_back(Notice::Stopped(id));
        }
        self.fill_slots(device);
        self.request_slot(id);
        self.dispatch(device);
        self.track(id);
    }

    pub(crate) fn finish_restore(&mut self, id: QueueId, epoch: u64) {
        let Some(queue) = self.queues.get_mut(&id).filter(|queue| queue.epoch == epoch) else {
            return;
        };
        queue.residency = Residency::In;
        if std::mem::take(&mut queue.resuming) {
            self.notices.push_back(Notice::Resumed(id));
        }
        self.fetch_more(id);
        self.consider(id);
    }

    /// Releases the units of a saved or dead context.
    pub(super) fn release_units(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let (units, waves) = std::mem::take(&mut queue.leaving);
        for unit in units {
            self.devices[queue.device].units.release(unit, waves);
        }
    }
}
