//! Kernels that are interrupted at any point leave the same memory as without interruption, and
//! another one if a wave runs twice or never. The assembler accepts any text, and no program makes
//! a wave panic.

#![expect(clippy::unwrap_used, clippy::panic, reason = "what fails here is the test")]

use gpreempt_sim::isa::{Condition, Operator, Program};
use gpreempt_sim::kernels::{built_in, built_in_names};
use gpreempt_sim::memory::Memory;
use gpreempt_sim::prng::Prng;
use gpreempt_sim::reference::{Grid, run_reference};
use gpreempt_sim::wave::{Launch, SAVED_BYTES, Step, Wave};
use proptest::prelude::*;

/// The start of the region: not 0, so that a kernel that does not add it fails.
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

    /// Saves the whole work-group as bytes and restores it.
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

fn index_below(prng: &mut Prng, len: usize) -> usize {
    usize::try_from(prng.below(len as u64)).unwrap()
}

/// Runs a kernel with its waves in random order and random interruptions.
fn run_disturbed(
    program: &Program,
    grid: Grid,
    arguments: [u32; 4],
    memory: &mut Memory,
    prng: &mut Prng,
) {
    let mut groups: Vec<Group> = (0..grid.groups)
        .map(|group| {
            let launches = (0..grid.waves).map(|wave| launch(grid, group, wave, arguments));
            Group::start(program, launches)
        })
        .collect();
    let instruction_ns = u32::try_from(prng.below(5)).unwrap();
    while !groups.is_empty() {
        let index = index_below(prng, groups.len());
        let group = &mut groups[index];
        if prng.below(4) == 0 {
            group.save_and_restore();
        }
        let chosen = index_below(prng, group.residents.len());
        let resident = &mut group.residents[chosen];
        if resident.busy > 0 {
            // Part of the time, often all of it, so that every remainder occurs.
            resident.busy -= 1 + prng.below(resident.busy);
        } else if resident.state == State::Ready {
            group.step(chosen, program, memory, instruction_ns);
        }
        if group.residents.iter().all(|resident| resident.state == State::Ended) {
            groups.swap_remove(index);
        }
    }
}

/// An error that is injected into one wave.
#[derive(Clone, Copy, Debug)]
enum WaveError {
    /// It runs twice.
    Twice,
    /// It does not run.
    Never,
    /// After that many steps its state is lost and it starts again.
    RestartAfter(u32),
}

/// Runs a kernel with an error in one wave. Returns whether that wave had changed memory or LDS
/// when its state was lost; none if it ended before.
fn run_with_error(
    program: &Program,
    grid: Grid,
    arguments: [u32; 4],
    memory: &mut Memory,
    (victim_group, victim_wave): (u32, u32),
    error: WaveError,
) -> Option<bool> {
    let mut touched_at_restart = None;
    for group in 0..grid.groups {
        let mut launches: Vec<u32> = (0..grid.waves).collect();
        let mut victim = usize::MAX;
        if group == victim_group {
            match error {
                WaveError::Twice => launches.push(victim_wave),
                WaveError::Never => launches.retain(|wave| *wave != victim_wave),
                WaveError::RestartAfter(_) => victim = usize::try_from(victim_wave).unwrap(),
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
            let lost = matches!(error, WaveError::RestartAfter(after) if after == steps);
            if lost && resident.state != State::Ended {
                resident.wave = Wave::start(&launch(grid, group, victim_wave, arguments));
                resident.state = State::Ready;
                touched_at_restart = Some(touched);
            }
        }
    }
    touched_at_restart
}

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
                for error in [WaveError::Twice, WaveError::Never] {
                    let mut memory = filled_memory(grid);
                    run_with_error(&program, grid, arguments, &mut memory, victim, error);
                    assert_ne!(memory, right, "{name} {waves} {victim:?} {error:?}");
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
                let error = WaveError::RestartAfter(after);
                let mut memory = filled_memory(grid);
                let touched =
                    run_with_error(&program, grid, arguments, &mut memory, (1, wave), error);
                let Some(touched) = touched else {
                    assert_eq!(memory, right, "{name} ran as it should");
                    break;
                };
                // A wave without effects may still read other words after a barrier.
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
        let mut prng = Prng::new(seed);
        let (mut right, mut disturbed) = (filled_memory(grid), filled_memory(grid));
        for (packet, (name, work)) in (0..).zip(packets) {
            let program = kernel(names[name]);
            let arguments = arguments(grid, packet, work);
            run_reference(&program, grid, arguments, &mut right).unwrap();
            run_disturbed(&program, grid, arguments, &mut disturbed, &mut prng);
            prop_assert_eq!(&disturbed, &right, "{} as packet {}", names[name], packet);
        }
    }

    #[test]
    fn any_text_is_a_program_or_an_error_with_a_line(text in any_text()) {
        match Program::assemble("any", &text) {
            Ok(program) => {
                let again = Program::assemble("any", &program.to_string());
                prop_assert_eq!(again, Ok(program));
            }
            Err(error) => {
                prop_assert!((1..=text.lines().count().max(1)).contains(&error.line));
                prop_assert!(!error.message.contains('\n'));
            }
        }
    }

    #[test]
    fn programs_survive_being_printed(lines in prop::collection::vec(instruction_text(), 1..60)) {
        let text = lines.join("\n") + "\nlast: end";
        let program = Program::assemble("printed", &text).unwrap();
        prop_assert_eq!(program.instructions().len(), lines.len() + 1);
        let printed = program.to_string();
        prop_assert_eq!(Program::assemble("printed", &printed), Ok(program));
    }

    #[test]
    fn any_program_runs_without_panicking(
        lines in prop::collection::vec(instruction_text(), 1..60),
        instruction_ns: u32,
    ) {
        let text = format!(".lds 64\n{}\nlast: end", lines.join("\n"));
        let program = Program::assemble("any", &text).unwrap();
        let arguments = [4, u32::MAX, u32::MAX, 64];
        let mut wave = Wave::start(&Launch { group: 1, groups: 2, wave: 3, waves: 4, arguments });
        let (mut lds, mut memory) = (vec![0; 64], Memory::new(64));
        for _ in 0..50 {
            match wave.step(&program, &mut lds, &mut memory, instruction_ns) {
                Step::Busy(_) | Step::Barrier => {}
                Step::End | Step::Fault(_) => break,
            }
        }
    }
}

/// Characters at random, and pieces of the language at random.
fn any_text() -> impl Strategy<Value = String> {
    let words = "add mov work end jump lane global_load lds_add branch_lt s1 v2 s99 [ ] + , : @ \
                 a 12 0x - .lds ; # a:";
    let others = [" ", " ", "\n", "\u{fc}", "\0", "end\n", "jump a\n", "mov s1, 2\n", ".lds 64\n"];
    let pieces: Vec<&str> = words.split_whitespace().chain(others).collect();
    let pieces = prop::sample::select(pieces);
    prop_oneof![
        prop::collection::vec(any::<char>(), 0..200).prop_map(|text| text.into_iter().collect()),
        prop::collection::vec(pieces, 0..60).prop_map(|pieces| pieces.concat()),
    ]
}

/// One correct line of assembly; branches go to `last` or to the first instruction.
fn instruction_text() -> impl Strategy<Value = String> {
    let s = || (0..16).prop_map(|index| format!("s{index}")).boxed();
    let v = || (0..8).prop_map(|index| format!("v{index}")).boxed();
    let n = || {
        let wide = any::<u32>().prop_map(|number| format!("{number:#x}"));
        prop_oneof![(0..64_u32).prop_map(|number| number.to_string()), wide].boxed()
    };
    let value = move || prop_oneof![s(), n()].boxed();
    let values = move || prop_oneof![v(), s(), n()].boxed();
    let place = |register: BoxedStrategy<String>| {
        let offset = (0..80_u32).prop_map(|offset| format!(" + {offset}"));
        let offset = prop_oneof![Just(String::new()), offset];
        (register, offset).prop_map(|(register, offset)| format!("[{register}{offset}]")).boxed()
    };
    let operator = || prop::sample::select(Operator::ALL.to_vec()).prop_map(Operator::name);
    let condition = prop::sample::select(Condition::ALL.to_vec()).prop_map(Condition::name);
    let space = || prop::sample::select(vec!["global", "lds"]);
    let change = || prop::sample::select(vec!["store", "add"]);
    let target = || prop::sample::select(vec!["last", "@0"]);
    let pair = |data: BoxedStrategy<String>, register: BoxedStrategy<String>| {
        prop_oneof![
            (space(), data.clone(), place(register.clone()))
                .prop_map(|(space, data, place)| format!("{space}_load {data}, {place}")),
            (space(), change(), place(register), data).prop_map(
                |(space, change, place, data)| format!("{space}_{change} {place}, {data}")
            ),
        ]
    };
    prop_oneof![
        (s(), value()).prop_map(|(to, from)| format!("mov {to}, {from}")),
        (v(), values()).prop_map(|(to, from)| format!("mov {to}, {from}")),
        (operator(), s(), s(), value()).prop_map(|(op, to, a, b)| format!("{op} {to}, {a}, {b}")),
        (operator(), v(), v(), values()).prop_map(|(op, to, a, b)| format!("{op} {to}, {a}, {b}")),
        pair(s(), s()),
        pair(v(), v()),
        (condition, s(), value(), target())
            .prop_map(|(name, a, b, target)| format!("{name} {a}, {b}, {target}")),
        target().prop_map(|target| format!("jump {target}")),
        value().prop_map(|ns| format!("work {ns}")),
        (s(), v()).prop_map(|(to, from)| format!("first {to}, {from}")),
        v().prop_map(|to| format!("lane {to}")),
        Just("barrier".to_owned()),
        Just("end".to_owned()),
    ]
}
