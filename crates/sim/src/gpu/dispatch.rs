//! Which work-group goes onto the compute units next.

use gpreempt_core::id::QueueId;

use super::Gpu;
use super::execution::WaveState;
use super::queue::{HardwareQueue, Residency};
use crate::agenda::What;
use crate::model::MachineKind;

impl Gpu {
    /// Fills the units of a device as far as there is work that may run.
    pub(super) fn dispatch(&mut self, device: usize) {
        while !self.devices[device].units.is_full() {
            let Some(id) = self.next_to_place(device) else { return };
            if !self.place_group(id) {
                return;
            }
            self.devices[device].served = id;
        }
    }

    /// The queue whose work-group should be placed next.
    fn next_to_place(&self, device: usize) -> Option<QueueId> {
        match self.machine {
            MachineKind::None | MachineKind::Reset => self.first_come(device),
            MachineKind::Tsg => self.devices[device]
                .runlist
                .resident()
                .filter(|id| self.queues.get(id).is_some_and(HardwareQueue::may_place)),
            MachineKind::Cwsr => {
                // Queues take turns, one work-group each.
                let served = self.devices[device].served;
                let able = |(_, queue): &(&QueueId, &HardwareQueue)| {
                    queue.device == device && queue.may_place()
                };
                let after = self.queues.range(QueueId(served.0 + 1)..).find(able);
                after.or_else(|| self.queues.range(..=served).find(able)).map(|(&id, _)| id)
            }
        }
    }

    /// Puts the next work-group of a queue onto a unit, if one has room.
    fn place_group(&mut self, id: QueueId) -> bool {
        let now = self.agenda.now();
        let Some(queue) = self.queues.get_mut(&id) else { return false };
        let (device, epoch) = (queue.device, queue.epoch);
        let Some(execution) = queue.execution.as_mut() else { return false };
        let waves = execution.packet.waves;
        let Some(unit) = self.devices[device].units.take(waves) else { return false };
        let group = match execution.restore_group(unit, now) {
            Some(group) => group,
            None => execution.start_group(unit, now),
        };
        let states: Vec<WaveState> =
            execution.running[&group].waves.iter().map(|(_, state)| *state).collect();
        for (wave, state) in (0..).zip(states) {
            if let WaveState::Busy(until) = state {
                self.agenda.at(until, What::WaveReady { queue: id, group, wave, epoch });
            }
        }
        self.track(id);
        true
    }
}

impl HardwareQueue {
    /// Whether it has a work-group that may be placed.
    pub(super) fn may_place(&self) -> bool {
        self.residency == Residency::In
            && self.execution.as_ref().is_some_and(super::Execution::has_unplaced)
    }
}
