//! Waves on compute units.

use gpreempt_core::id::QueueId;

use super::Gpu;
use super::execution::{Group, WaveState};
use crate::agenda::What;
use crate::wave::Step;

/// What became of a work-group after one of its waves moved.
enum Outcome {
    Runs,
    Finished,
}

impl Gpu {
    /// A wave has served its busy time and executes on.
    pub(crate) fn wave_ready(&mut self, id: QueueId, number: u32, wave: u32, epoch: u64) {
        match self.advance(id, number, wave, epoch) {
            Some(Outcome::Finished) => self.finish_group(id, number),
            Some(Outcome::Runs) | None => {}
        }
    }

    fn advance(&mut self, id: QueueId, number: u32, wave: u32, epoch: u64) -> Option<Outcome> {
        let now = self.agenda.now();
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
                        self.agenda
                            .at(until, What::WaveReady { queue: id, group: number, wave, epoch });
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

/// If every wave that has not ended waits at the barrier, all of them go on.
fn release_barrier(group: &mut Group) -> Vec<u32> {
    let waits = |state: &WaveState| *state == WaveState::AtBarrier;
    let busy = group.waves.iter().any(|(_, state)| matches!(state, WaveState::Busy(_)));
    if busy || !group.waves.iter().any(|(_, state)| waits(state)) {
        return Vec::new();
    }
    let mut released = Vec::new();
    for (index, (_, state)) in (0..).zip(group.waves.iter_mut()) {
        if waits(state) {
            *state = WaveState::Busy(gpreempt_core::time::Instant::ZERO);
            released.push(index);
        }
    }
    released
}
