//! Compute units: which work-group is placed next, and what its waves do there.

use gpreempt_core::id::QueueId;
use gpreempt_core::time::Instant;

use super::Gpu;
use super::execution::{Group, WaveState};
use super::queue::{HardwareQueue, Residency};
use crate::event_queue::SimEvent;
use crate::model::MachineKind;
use crate::wave::Step;

impl Gpu {
    /// Places work-groups on the units of a device until they are full.
    pub(super) fn dispatch(&mut self, device: usize) {
        while !self.devices[device].units.is_full() {
            let Some(id) = self.next_to_place(device) else { return };
            if !self.place_group(id) {
                return;
            }
            self.devices[device].served = id;
        }
    }

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

    /// Places the next work-group of a queue on a unit that has room.
    fn place_group(&mut self, id: QueueId) -> bool {
        let now = self.event_queue.now();
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
                self.event_queue.at(until, SimEvent::WaveReady { queue: id, group, wave, epoch });
            }
        }
        self.track(id);
        true
    }
}

impl HardwareQueue {
    pub(super) fn may_place(&self) -> bool {
        self.residency == Residency::In
            && self.execution.as_ref().is_some_and(super::Execution::has_unplaced)
    }
}

impl Gpu {
    /// The queue whose launch arrived first and has work-groups left to place. A launch that came
    /// later waits even where there is room, because one that came earlier is still in a ring.
    pub(super) fn first_come(&self, device: usize) -> Option<QueueId> {
        let here = || self.queues.iter().filter(|(_, queue)| queue.device == device);
        let (arrived, id) = here()
            .filter(|(_, queue)| queue.may_place())
            .filter_map(|(&id, queue)| Some((queue.execution.as_ref()?.packet.rung_at, id)))
            .min()?;
        let earlier = here()
            .filter(|(other, _)| **other != id)
            .filter_map(|(_, queue)| queue.oldest_waiting())
            .any(|waiting| waiting < arrived);
        (!earlier).then_some(id)
    }
}

impl HardwareQueue {
    /// When the oldest launch arrived that has not begun.
    fn oldest_waiting(&self) -> Option<Instant> {
        let next = self.fetched.front().copied().or_else(|| self.ring.peek());
        next.map(|packet| packet.rung_at)
    }
}

/// Free wave slots of every compute unit.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    free: Vec<u32>,
    free_total: u32,
    waves_per_unit: u32,
    /// Where the search for room begins: work spreads over the units in turn.
    cursor: usize,
}

impl Units {
    pub(crate) fn new(compute_units: u32, waves_per_unit: u32) -> Self {
        let free = vec![waves_per_unit; compute_units as usize];
        Self { free, free_total: compute_units * waves_per_unit, waves_per_unit, cursor: 0 }
    }

    /// Takes `waves` slots on one unit, if any unit has that many.
    pub(crate) fn take(&mut self, waves: u32) -> Option<u32> {
        if self.free_total < waves {
            return None;
        }
        let count = self.free.len();
        let unit = (0..count)
            .map(|offset| (self.cursor + offset) % count)
            .find(|&unit| self.free[unit] >= waves)?;
        self.free[unit] -= waves;
        self.free_total -= waves;
        self.cursor = (unit + 1) % count;
        u32::try_from(unit).ok()
    }

    pub(crate) fn release(&mut self, unit: u32, waves: u32) {
        let free = &mut self.free[unit as usize];
        *free += waves;
        self.free_total += waves;
        assert!(*free <= self.waves_per_unit, "unit {unit} has more free slots than slots");
    }

    pub(crate) fn used(&self) -> u32 {
        self.waves_per_unit * u32::try_from(self.free.len()).unwrap_or(u32::MAX) - self.free_total
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free_total == 0
    }
}

enum Outcome {
    Runs,
    Finished,
}

impl Gpu {
    /// Continues a wave that has served its busy time.
    pub(crate) fn wave_ready(&mut self, id: QueueId, number: u32, wave: u32, epoch: u64) {
        match self.advance(id, number, wave, epoch) {
            Some(Outcome::Finished) => self.finish_group(id, number),
            Some(Outcome::Runs) | None => {}
        }
    }

    fn advance(&mut self, id: QueueId, number: u32, wave: u32, epoch: u64) -> Option<Outcome> {
        let now = self.event_queue.now();
        let queue = self.queues.get_mut(&id).filter(|queue| queue.epoch == epoch)?;
        let task = queue.task;
        let execution = queue.execution.as_mut()?;
        let group = execution.running.get_mut(&number)?;
        let memory = &mut self.memories[task];
        let mut ready = vec![wave];
        while let Some(wave) = ready.pop() {
            let at = wave as usize;
            let (state, step) = loop {
                let (program, lds) = (&execution.program, &mut group.lds);
                let step = group.waves[at].0.step(program, lds, memory, self.model.instruction_ns);
                match step {
                    Step::Busy(0) => {}
                    Step::Busy(ns) => {
                        let until = now + gpreempt_core::time::Duration::from_nanos(ns);
                        self.event_queue.at(
                            until,
                            SimEvent::WaveReady { queue: id, group: number, wave, epoch },
                        );
                        break (WaveState::Busy(until), step);
                    }
                    Step::Barrier => break (WaveState::AtBarrier, step),
                    Step::End | Step::Fault(_) => break (WaveState::Ended, step),
                }
            };
            group.waves[at].1 = state;
            if let Step::Fault(fault) = step {
                let program = execution.program.name();
                let what = format!("kernel `{program}`, work-group {number}, wave {wave}: {fault}");
                self.failure = Some((id, what));
                return None;
            }
            ready.extend(release_barrier(group));
        }
        let ended = group.waves.iter().all(|(_, state)| *state == WaveState::Ended);
        Some(if ended { Outcome::Finished } else { Outcome::Runs })
    }

    fn finish_group(&mut self, id: QueueId, number: u32) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        let device = queue.device;
        let Some(execution) = queue.execution.as_mut() else { return };
        let Some(group) = execution.running.remove(&number) else { return };
        execution.finished[number as usize] += 1;
        execution.finished_count += 1;
        self.devices[device].units.release(group.unit, execution.packet.waves);
        if execution.is_complete() {
            self.complete(id);
        } else {
            self.dispatch(device);
        }
        self.track(id);
    }
}

/// Releases the barrier if every wave that has not ended waits there.
fn release_barrier(group: &mut Group) -> Vec<u32> {
    let waits = |state: &WaveState| *state == WaveState::AtBarrier;
    let busy = group.waves.iter().any(|(_, state)| matches!(state, WaveState::Busy(_)));
    if busy || !group.waves.iter().any(|(_, state)| waits(state)) {
        return Vec::new();
    }
    let mut released = Vec::new();
    for (index, (_, state)) in (0..).zip(group.waves.iter_mut()) {
        if waits(state) {
            *state = WaveState::Busy(Instant::ZERO);
            released.push(index);
        }
    }
    released
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_on_one_unit_and_spread_over_all() {
        let mut units = Units::new(2, 4);
        assert_eq!(units.take(3), Some(0));
        assert_eq!(units.take(3), Some(1));
        // Two slots are free, but not on one unit.
        assert_eq!(units.take(2), None);
        units.release(0, 3);
        assert_eq!(units.take(2), Some(0));
        assert_eq!(units.used(), 5);
    }
}
