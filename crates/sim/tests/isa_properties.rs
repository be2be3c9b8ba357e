//! Kernels that are interrupted at any point end as if nothing had happened, and would not if
//! anything had: the two halves of what makes them a test of preemption.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what fails here is the test")]

use gpreempt_sim::isa::Program;
use gpreempt_sim::kernels::{built_in, built_in_names};
use gpreempt_sim::memory::Memory;
use gpreempt_sim::reference::{Grid, run_reference};
use gpreempt_sim::wave::{Launch, SAVED_BYTES, Step, Wave};
use proptest::prelude::*;

/// Where the region begins, so that a kernel that forgets to add it is found out.
const REGION: u32 = 64;

fn kernel(name: &str) -> Program {
    Program::assemble(name, built_in(name).unwrap()).unwrap()
}

/// Memory for all items of the grid, with something in every word.
fn filled_memory(grid: Grid) -> Memory {
    let words = REGION / 4 + grid.groups * grid.waves * 8;
    let mut memory = Memory::new(usize::try_from(words * 4).unwrap());
    for word in 0..words {
        memory.store(word * 4, word.wrapping_mul(0x9e37_79b1) ^ 0x5bd1_e995).unwrap();
    }
    memory
}

fn arguments(grid: Grid, packet: u32, work: u32) -> [u32; 4] {
    [REGION, packet, work, grid.groups * grid.waves * 32]
}

/// A small generator: the order of everything follows from one number.
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % sides
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(len.try_into().unwrap())).unwrap()
    }
}

/// What a wave that is not busy can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    Ended,
}

/// A wave on the device.
struct Resident {
    wave: Wave,
    busy: u64,
    state: State,
}

/// A work-group on the device.
struct Group {
    residents: Vec<Resident>,
    lds: Vec<u8>,
}

impl Group {
    fn start(program: &Program, launches: impl IntoIterator<Item = Launch>) -> Self {
        let start = |launch| Resident { wave: Wave::start(&launch), busy: 0, state: State::Ready };
        Self {
            residents: launches.into_iter().map(start).collect(),
            lds: vec![0; program.lds_bytes()],
        }
    }

    fn step(&mut self, index: usize, program: &Program, memory: &mut Memory, instruction_ns: u32) {
        let resident = &mut self.residents[index];
        match resident.wave.step(program, &mut self.lds, memory, instruction_ns) {
            Step::Busy(ns) => resident.busy = ns,
            Step::Barrier => resident.state = State::AtBarrier,
            Step::End => resident.state = State::Ended,
            Step::Fault(fault) => panic!("{}: {fault}", program.name()),
        }
        if self.residents.iter().all(|resident| resident.state != State::Ready) {
            for resident in &mut self.residents {
                if resident.state == State::AtBarrier {
                    resident.state = State::Ready;
                }
            }
        }
    }

    /// Takes the whole work-group off the device and brings it back, through bytes alone.
    fn save_and_restore(&mut self) {
        let mut area = Vec::new();
        for resident in &mut self.residents {
            resident.wave.set_owed(resident.busy);
            resident.wave.save(&mut area);
        }
        assert_eq!(area.len(), self.residents.len() * SAVED_BYTES);
        area.extend(&self.lds);
        self.lds.fill(0xaa);

        let (waves, lds) = area.split_at(self.residents.len() * SAVED_BYTES);
        for (resident, bytes) in self.residents.iter_mut().zip(waves.chunks(SAVED_BYTES)) {
            let wave = Wave::restore(bytes).unwrap();
            assert_eq!(wave, resident.wave);
            resident.busy = wave.owed();
            resident.wave = wave;
        }
        self.lds.copy_from_slice(lds);
    }
}

fn launch(grid: Grid, group: u32, wave: u32, arguments: [u32; 4]) -> Launch {
    Launch { group, groups: grid.groups, wave, waves: grid.waves, arguments }
}

/// Runs a kernel with its waves in any order, interrupting whatever the dice say.
fn run_disturbed(
    program: &Program,
    grid: Grid,
    arguments: [u32; 4],
    memory: &mut Memory,
    dice: &mut Dice,
) {
    let mut groups: Vec<Group> = (0..grid.groups)
        .map(|group| {
            let launches = (0..grid.waves).map(|wave| launch(grid, group, wave, arguments));
            Group::start(program, launches)
        })
        .collect();
    let instruction_ns = u32::try_from(dice.roll(5)).unwrap();
    while !groups.is_empty() {
        let index = dice.index(groups.len());
        let group = &mut groups[index];
        if dice.roll(4) == 0 {
            group.save_and_restore();
        }
        let chosen = dice.index(group.residents.len());
        let resident = &mut group.residents[chosen];
        if resident.busy > 0 {
            // Some of the time, often all of it, so that the next rolls meet every remainder.
            resident.busy -= 1 + dice.roll(resident.busy);
        } else if resident.state == State::Ready {
            group.step(chosen, program, memory, instruction_ns);
        }
        if group.residents.iter().all(|resident| resident.state == State::Ended) {
            groups.swap_remove(index);
        }
    }
}

/// What goes wrong with one wave.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// It runs twice.
    Twice,
    /// It does not run.
    Never,
    /// After so many steps its state is lost and it starts again.
    RestartAfter(u32),
}

/// Runs a kernel in which something goes wrong with one wave. The answer is whether that wave had
/// changed memory or LDS when its state was lost, or nothing if it ended before.
fn run_with_mishap(
    program: &Program,
    grid: Grid,
    arguments: [u32; 4],
    memory: &mut Memory,
    (victim_group, victim_wave): (u32, u32),
    mishap: Mishap,
) -> Option<bool> {
    let mut touched_at_restart = None;
    for group in 0..grid.groups {
        let mut launches: Vec<u32> = (0..grid.waves).collect();
        let mut victim = usize::MAX;
        if group == victim_group {
            match mishap {
                Mishap::Twice => launches.push(victim_wave),
                Mishap::Never => launches.retain(|wave| *wave != victim_wave),
                Mishap::RestartAfter(_) => victim = usize::try_from(victim_wave).unwrap(),
            }
        }
        let launches = launches.into_iter().map(|wave| launch(grid, group, wave, arguments));
        let mut running = Group::start(program, launches);
        let (mut steps, mut touched) = (0, false);
        while let Some(index) =
            running.residents.iter().position(|resident| resident.state == State::Ready)
        {
            let before = (memory.clone(), running.lds.clone());
            running.step(index, program, memory, 1);
            if index != victim {
                continue;
            }
            steps += 1;
            touched |= before != (memory.clone(), running.lds.clone());
            let resident = &mut running.residents[index];
            let lost = matches!(mishap, Mishap::RestartAfter(after) if after == steps);
            if lost && resident.state != State::Ended {
                resident.wave = Wave::start(&launch(grid, group, victim_wave, arguments));
                resident.state = State::Ready;
                touched_at_restart = Some(touched);
            }
        }
    }
    touched_at_restart
}

/// Memory after a kernel as it should be.
fn undisturbed(program: &Program, grid: Grid, arguments: [u32; 4]) -> Memory {
    let mut memory = filled_memory(grid);
    run_reference(program, grid, arguments, &mut memory).unwrap();
    memory
}

#[test]
fn a_wave_that_runs_twice_or_never_changes_memory() {
    for name in built_in_names() {
        let program = kernel(name);
        for waves in 1..4 {
            let grid = Grid { groups: 2, waves };
            let arguments = arguments(grid, 5, 1_000);
            let right = undisturbed(&program, grid, arguments);
            for victim in (0..grid.groups).flat_map(|group| (0..waves).map(move |w| (group, w))) {
                for mishap in [Mishap::Twice, Mishap::Never] {
                    let mut memory = filled_memory(grid);
                    run_with_mishap(&program, grid, arguments, &mut memory, victim, mishap);
                    assert_ne!(memory, right, "{name} {waves} {victim:?} {mishap:?}");
                }
            }
        }
    }
}

#[test]
fn a_wave_that_starts_again_changes_memory_unless_it_had_done_nothing() {
    let grid = Grid { groups: 2, waves: 3 };
    for name in built_in_names() {
        let program = kernel(name);
        let arguments = arguments(grid, 5, 1_000);
        let right = undisturbed(&program, grid, arguments);
        for wave in 0..grid.waves {
            let mut harmful = 0;
            for after in 1.. {
                let mishap = Mishap::RestartAfter(after);
                let mut memory = filled_memory(grid);
                let touched =
                    run_with_mishap(&program, grid, arguments, &mut memory, (1, wave), mishap);
                let Some(touched) = touched else {
                    assert_eq!(memory, right, "{name} ran as it should");
                    break;
                };
                // Who had touched nothing may still find other words after a barrier.
                assert!(!touched || memory != right, "{name} wave {wave} step {after}");
                harmful += u32::from(touched);
            }
            assert!(harmful > 0, "{name} wave {wave} was never interrupted after an effect");
        }
    }
}

proptest! {
    #[test]
    fn disturbed_kernels_leave_the_same_memory(
        groups in 1_u32..=6,
        waves in 1_u32..=4,
        packets in prop::collection::vec((0..5_usize, 0_u32..5_000), 1..6),
        seed: u64,
    ) {
        let grid = Grid { groups, waves };
        let names: Vec<&str> = built_in_names().collect();
        let mut dice = Dice(seed);
        let (mut right, mut disturbed) = (filled_memory(grid), filled_memory(grid));
        for (packet, (name, work)) in (0..).zip(packets) {
            let program = kernel(names[name]);
            let arguments = arguments(grid, packet, work);
            run_reference(&program, grid, arguments, &mut right).unwrap();
            run_disturbed(&program, grid, arguments, &mut disturbed, &mut dice);
            prop_assert_eq!(&disturbed, &right, "{} as packet {}", names[name], packet);
        }
    }
}
