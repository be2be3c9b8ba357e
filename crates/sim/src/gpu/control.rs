//! Control calls of the hardware: preempt, resume, set slice, close; and what they cost.

use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::id::QueueId;
use gpreempt_core::time::Duration;

use super::queue::Residency;
use super::{Gpu, Notice};
use crate::model::MachineKind;

impl Gpu {
    /// Preempts a queue. A notice follows when it is off.
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
            // The notice comes at the end of the save.
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

    /// Resumes a queue. A notice follows when it is on.
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

    /// Stops or restarts fetching from a queue's ring.
    pub(crate) fn park(&mut self, id: QueueId, parked: bool) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.parked = parked;
        if !parked {
            self.fetch_again(id);
        }
        self.track(id);
    }

    /// Fetches from a ring from which it did not.
    pub(super) fn fetch_again(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        // The client may have written packets without ringing the doorbell.
        queue.ring.look();
        self.fetch_more(id);
        self.consider(id);
        self.track(id);
    }

    /// Sets the slice of a queue; none restores the default.
    pub(crate) fn set_slice(&mut self, id: QueueId, slice: Option<Duration>) {
        let default = self.model.tsg.slice;
        let Some(queue) = self.queues.get_mut(&id) else { return };
        queue.slice = slice.unwrap_or(default);
        let device = queue.device;
        if self.machine == MachineKind::Tsg {
            self.runlist_changed(device);
        }
    }

    /// Removes a queue and all its state on the device.
    pub(crate) fn close_queue(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let device = queue.device;
        if let Some(execution) = queue.execution.take() {
            for group in execution.running.values() {
                self.devices[device].units.release(group.unit, execution.packet.waves);
            }
        }
        self.release_units(id);
        let now = self.event_queue.now();
        self.tracks.meter(device, id, false, now);
        self.tracks.close(id, now);
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

impl Gpu {
    pub(crate) fn save_time(&self, waves: u64) -> Duration {
        let cost = &self.model.context;
        cost.save + transfer(waves, cost.wave_bytes, cost.save_bytes_per_us)
    }

    pub(crate) fn restore_time(&self, waves: u64) -> Duration {
        let cost = &self.model.context;
        cost.restore + transfer(waves, cost.wave_bytes, cost.restore_bytes_per_us)
    }

    /// What the devices can do, as their backend reports it.
    pub(crate) fn capabilities(&self, may_hold: bool) -> Capabilities {
        let model = &self.model;
        let full = u64::from(model.compute_units) * u64::from(model.waves_per_unit);
        let (mechanism, quiet) = match self.machine {
            MachineKind::None => (Mechanism::ObserveOnly, Duration::ZERO),
            MachineKind::Tsg => (Mechanism::Slice, model.tsg.hold_quiet),
            MachineKind::Reset | MachineKind::Cwsr => (Mechanism::Stop, Duration::ZERO),
        };
        let reset = model.reset.flag + model.reset.clear + model.reset.kill;
        let (preempt_cost, resume_cost) = match self.machine {
            MachineKind::Reset => (reset, model.reset.resubmit),
            MachineKind::None | MachineKind::Tsg | MachineKind::Cwsr => (
                model.control.preempt + self.save_time(full),
                model.control.resume + self.restore_time(full),
            ),
        };
        Capabilities {
            mechanism,
            level: PreemptLevel::Interrupt,
            preempt_cost,
            resume_cost,
            quiet,
            hold: may_hold && self.machine == MachineKind::Tsg,
            hardware_priority: self.machine == MachineKind::Cwsr,
        }
    }

    /// Whether a reading of a ring shows that fetched work still runs: that of the reset design and
    /// of an AMD device does.
    pub(crate) fn can_tell_running(&self) -> bool {
        self.machine != MachineKind::Tsg
    }
}

fn transfer(waves: u64, wave_bytes: u64, bytes_per_us: u64) -> Duration {
    let ns = u128::from(waves) * u128::from(wave_bytes) * 1000 / u128::from(bytes_per_us.max(1));
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
}
