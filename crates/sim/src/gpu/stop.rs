//! What can be asked of the hardware from outside: stop a queue, let it go on, set its slice.

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;

use super::queue::Residency;
use super::{Gpu, Notice};
use crate::model::MachineKind;

impl Gpu {
    /// Takes a queue off the device. A notice follows when it is off.
    pub(crate) fn stop(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.stopped {
            self.notices.push_back(Notice::Stopped(id));
            return;
        }
        let device = queue.device;
        match self.machine {
            MachineKind::None => {}
            MachineKind::Reset => self.begin_reset(id),
            MachineKind::Tsg => {
                queue.stopped = true;
                self.devices[device].runlist.stopping.insert(id);
                self.runlist_changed(device);
            }
            MachineKind::Cwsr => {
                queue.stopped = true;
                self.devices[device].slot_waiters.retain(|&waiter| waiter != id);
                self.stop_mapped(id);
            }
        }
        self.track(id);
    }

    fn stop_mapped(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        match queue.residency {
            Residency::In => self.begin_save(id),
            // It is on its way out; the notice comes when it is there.
            Residency::Saving => {}
            Residency::Out | Residency::Restoring => {
                // Nothing has left the save area yet.
                queue.epoch += 1;
                queue.residency = Residency::Out;
                queue.mapped_at = None;
                self.notices.push_back(Notice::Stopped(id));
            }
        }
    }

    /// Lets a queue go on. A notice follows when it can.
    pub(crate) fn resume(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let device = queue.device;
        if !queue.stopped {
            self.notices.push_back(Notice::Resumed(id));
            return;
        }
        match self.machine {
            MachineKind::None => {}
            MachineKind::Reset => self.begin_resubmit(id),
            MachineKind::Tsg => {
                queue.stopped = false;
                queue.known_done = (!queue.has_work()).then_some(queue.ring.view(None).put);
                self.devices[device].runlist.stopping.remove(&id);
                self.notices.push_back(Notice::Resumed(id));
                self.fetch_more(id);
                self.runlist_changed(device);
            }
            MachineKind::Cwsr => {
                queue.stopped = false;
                self.request_slot(id);
                let restoring = |queue: &mut super::HardwareQueue| {
                    queue.resuming = queue.residency == Residency::Restoring;
                    queue.resuming
                };
                if !self.queues.get_mut(&id).is_some_and(restoring) {
                    self.notices.push_back(Notice::Resumed(id));
                }
                self.dispatch(device);
            }
        }
        self.track(id);
    }

    /// Fetches nothing more from a queue's ring, or again.
    pub(crate) fn park(&mut self, id: QueueId, parked: bool) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.parked = parked;
        if !parked {
            // The client may have gone on writing without a doorbell.
            queue.ring.look();
            self.fetch_more(id);
            self.consider(id);
        }
        self.track(id);
    }

    /// Gives a queue a slice; none is the one it came with.
    pub(crate) fn set_slice(&mut self, id: QueueId, slice: Option<Duration>) {
        let default = self.model.tsg.slice;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.slice = slice.unwrap_or(default);
        let device = queue.device;
        if self.machine == MachineKind::Tsg {
            self.runlist_changed(device);
        }
    }

    /// A queue and everything it had on the device is gone.
    pub(crate) fn close_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let device = queue.device;
        if let Some(execution) = queue.execution.take() {
            for group in execution.running.values() {
                self.devices[device].units.release(group.unit, execution.packet.waves);
            }
        }
        self.release_units(id);
        self.tracks.close(id, self.agenda.now());
        if let Some(queue) = self.queues.remove(&id) {
            self.closed.push((id, queue));
        }
        self.devices[device].slot_waiters.retain(|&waiter| waiter != id);
        match self.machine {
            MachineKind::Tsg => self.leave_runlist(device, id),
            MachineKind::Cwsr => self.slot_turn(device),
            MachineKind::None | MachineKind::Reset => {}
        }
        self.dispatch(device);
    }
}
