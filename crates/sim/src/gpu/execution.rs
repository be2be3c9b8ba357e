//! A launch while the device works on it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use gpreempt_core::time::Instant;

use crate::isa::Program;
use crate::ring::Packet;
use crate::wave::{Launch, SAVED_BYTES, Wave};

/// One launch: which of its work-groups are done, running, saved or not begun.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) packet: Packet,
    pub(crate) program: Arc<Program>,
    /// Work-groups from here on were never started.
    pub(crate) next_group: u32,
    /// How often each work-group finished: more than once is a bug.
    pub(crate) finished: Vec<u8>,
    pub(crate) finished_count: u32,
    pub(crate) running: BTreeMap<u32, Group>,
    pub(crate) saved: VecDeque<SavedGroup>,
}

/// A work-group on a compute unit.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) unit: u32,
    pub(crate) lds: Vec<u8>,
    pub(crate) waves: Vec<(Wave, WaveState)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaveState {
    /// Busy until then.
    Busy(Instant),
    AtBarrier,
    Ended,
}

/// A work-group in the save area: its waves' images and its LDS, as bytes.
#[derive(Debug)]
pub(crate) struct SavedGroup {
    pub(crate) group: u32,
    waves: u32,
    area: Vec<u8>,
}

impl Execution {
    pub(crate) fn new(packet: Packet, program: Arc<Program>) -> Self {
        Self {
            finished: vec![0; packet.groups as usize],
            packet,
            program,
            next_group: 0,
            finished_count: 0,
            running: BTreeMap::new(),
            saved: VecDeque::new(),
        }
    }

    pub(crate) fn has_unplaced(&self) -> bool {
        !self.saved.is_empty() || self.next_group < self.packet.groups
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.finished_count == self.packet.groups
    }

    pub(crate) fn resident_waves(&self) -> u64 {
        self.running.len() as u64 * u64::from(self.packet.waves)
    }

    pub(crate) fn saved_waves(&self) -> u64 {
        self.saved.iter().map(|group| u64::from(group.waves)).sum()
    }

    /// A new work-group at its first instruction.
    pub(crate) fn start_group(&mut self, unit: u32, now: Instant) -> u32 {
        let group = self.next_group;
        self.next_group += 1;
        let packet = &self.packet;
        let waves = (0..packet.waves)
            .map(|wave| {
                let launch = Launch {
                    group,
                    groups: packet.groups,
                    wave,
                    waves: packet.waves,
                    arguments: packet.arguments,
                };
                (Wave::start(&launch), WaveState::Busy(now))
            })
            .collect();
        let lds = vec![0; self.program.lds_bytes()];
        self.running.insert(group, Group { unit, lds, waves });
        group
    }

    /// Moves every running work-group into the save area. Returns the units they leave.
    pub(crate) fn save(&mut self, now: Instant) -> Vec<u32> {
        let mut units = Vec::with_capacity(self.running.len());
        for (number, group) in std::mem::take(&mut self.running) {
            units.push(group.unit);
            self.saved.push_back(SavedGroup::new(number, group, now));
        }
        units
    }

    /// Moves the first saved work-group back onto a unit.
    pub(crate) fn restore_group(&mut self, unit: u32, now: Instant) -> Option<u32> {
        let saved = self.saved.pop_front()?;
        let group = saved.group;
        self.running.insert(group, saved.restore(unit, now));
        Some(group)
    }
}

const RUNS: u8 = 0;
const WAITS: u8 = 1;
const ENDED: u8 = 2;

impl SavedGroup {
    fn new(number: u32, group: Group, now: Instant) -> Self {
        let waves = u32::try_from(group.waves.len()).unwrap_or(u32::MAX);
        let mut area = Vec::with_capacity(group.waves.len() * (SAVED_BYTES + 1) + group.lds.len());
        for (mut wave, state) in group.waves {
            let (tag, owed) = match state {
                WaveState::Busy(until) => (RUNS, until.since(now).as_nanos()),
                WaveState::AtBarrier => (WAITS, 0),
                WaveState::Ended => (ENDED, 0),
            };
            wave.set_owed(owed);
            area.push(tag);
            wave.save(&mut area);
        }
        area.extend_from_slice(&group.lds);
        Self { group: number, waves, area }
    }

    fn restore(self, unit: u32, now: Instant) -> Group {
        let (images, lds) = self.area.split_at(self.waves as usize * (SAVED_BYTES + 1));
        let waves = images
            .chunks_exact(SAVED_BYTES + 1)
            .map(|image| {
                // PANIC: only `SavedGroup::new` writes save areas, and it writes whole images.
                let wave = Wave::restore(&image[1..]).expect("an image this file wrote");
                let owed = gpreempt_core::time::Duration::from_nanos(wave.owed());
                let state = match image[0] {
                    WAITS => WaveState::AtBarrier,
                    ENDED => WaveState::Ended,
                    _ => WaveState::Busy(now + owed),
                };
                (wave, state)
            })
            .collect();
        Group { unit, lds: lds.to_vec(), waves }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_group_comes_back_with_its_remaining_work() {
        let program = Arc::new(Program::assemble("test", "work 100\nend").unwrap());
        let packet = Packet {
            kernel: 0,
            groups: 2,
            waves: 2,
            arguments: [0; 4],
            number: 0,
            rung_at: Instant::ZERO,
        };
        let mut execution = Execution::new(packet, program);
        let at = Instant::from_nanos;
        execution.start_group(3, at(10));
        let waves = &mut execution.running.get_mut(&0).unwrap().waves;
        waves[0].1 = WaveState::Busy(at(110));
        waves[1].1 = WaveState::AtBarrier;
        let before = waves.clone();
        assert_eq!(execution.save(at(40)), [3]);
        assert_eq!((execution.resident_waves(), execution.saved_waves()), (0, 2));
        assert_eq!(execution.restore_group(5, at(1_000)), Some(0));
        let after = &execution.running[&0];
        assert_eq!(after.unit, 5);
        assert_eq!(after.waves[0].1, WaveState::Busy(at(1_070)));
        assert_eq!(after.waves[1], before[1]);
    }
}
