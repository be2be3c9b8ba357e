//! Each group of instructions, the time they take, and faults.

use super::*;
use crate::isa::Space;

/// One wave with its surroundings.
struct Bench {
    program: Program,
    wave: Wave,
    lds: Vec<u8>,
    memory: Memory,
}

impl Bench {
    fn new(text: &str) -> Self {
        let program = Program::assemble("test", text).unwrap();
        let launch =
            Launch { group: 10, groups: 11, wave: 12, waves: 13, arguments: [14, 15, 16, 17] };
        Self {
            lds: vec![0; program.lds_bytes()],
            program,
            wave: Wave::start(&launch),
            memory: Memory::new(64),
        }
    }

    fn step(&mut self, instruction_ns: u32) -> Step {
        self.wave.step(&self.program, &mut self.lds, &mut self.memory, instruction_ns)
    }

    /// Executes `text` and an `end`.
    fn ended(text: &str) -> Self {
        let mut bench = Self::new(&format!("{text}\nend"));
        assert_eq!(bench.step(0), Step::End);
        bench
    }

    fn fault(text: &str) -> WaveFault {
        match Self::new(text).step(1) {
            Step::Fault(fault) => fault,
            step @ (Step::Busy(_) | Step::Barrier | Step::End) => panic!("{step:?}"),
        }
    }
}

#[test]
fn a_wave_starts_with_its_place_and_arguments() {
    let wave = Bench::new("end").wave;
    let mut scalars = [0; SCALAR_REGISTERS];
    scalars[..8].copy_from_slice(&[10, 11, 12, 13, 14, 15, 16, 17]);
    assert_eq!(*wave.scalars(), scalars);
    assert_eq!(*wave.vectors(), [[0; LANES]; VECTOR_REGISTERS]);
    assert_eq!((wave.pc(), wave.owed()), (0, 0));
}

#[test]
fn moves_copy_and_broadcast() {
    let bench = Bench::ended("mov s8, 5\nmov s9, s8\nlane v0\nmov v1, v0\nmov v2, s9\nmov v3, 6");
    assert_eq!(bench.wave.scalars()[8..10], [5, 5]);
    assert_eq!(bench.wave.vectors()[1], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(bench.wave.vectors()[2], [5; LANES]);
    assert_eq!(bench.wave.vectors()[3], [6; LANES]);
    let bench = Bench::ended("lane v0\nadd v0, v0, 9\nfirst s8, v0");
    assert_eq!(bench.wave.scalars()[8], 9);
}

#[test]
fn operators_compute_modulo_two_to_the_32() {
    for (name, left, right, result) in [
        ("add", u32::MAX, 3, 2),
        ("sub", 2, 3, u32::MAX),
        ("mul", 0x8000_0001, 6, 6),
        ("and", 12, 10, 8),
        ("or", 12, 10, 14),
        ("xor", 12, 10, 6),
        ("shl", 3, 31, 0x8000_0000),
        ("shl", 3, 33, 6),
        ("shr", 0x8000_0000, 31, 1),
        ("shr", 6, 33, 3),
        ("min", 7, u32::MAX, 7),
        ("max", 7, u32::MAX, u32::MAX),
    ] {
        let bench = Bench::ended(&format!(
            "mov s8, {left}\nmov s9, {right}\n{name} s10, s8, s9\n{name} s11, s8, {right}\n\
             mov v0, s8\nmov v1, s9\n{name} v2, v0, v1\n{name} v3, v0, s9\n{name} v0, v0, {right}"
        ));
        assert_eq!(bench.wave.scalars()[10..12], [result; 2], "{name}");
        for register in [0, 2, 3] {
            assert_eq!(bench.wave.vectors()[register], [result; LANES], "{name} v{register}");
        }
    }
    let lanes = Bench::ended("lane v0\nmul v1, v0, v0").wave.vectors()[1];
    assert_eq!(lanes, [0, 1, 4, 9, 16, 25, 36, 49]);
}

#[test]
fn scalar_accesses_move_one_word() {
    for kind in ["global", "lds"] {
        let bench = Bench::ended(&format!(
            ".lds 64\nmov s8, 4\nmov s9, 0x01020304\n{kind}_store [s8 + 8], s9\nmov s10, 1\n\
             {kind}_add [s8 + 8], s10\nmov s11, 12\n{kind}_load s12, [s11]"
        ));
        assert_eq!(bench.wave.scalars()[12], 0x0102_0305, "{kind}");
        let (used, unused) = match kind {
            "lds" => (&bench.lds[..], bench.memory.bytes()),
            _ => (bench.memory.bytes(), &bench.lds[..]),
        };
        assert_eq!(used[8..20], [0, 0, 0, 0, 5, 3, 2, 1, 0, 0, 0, 0], "{kind}");
        assert_eq!(unused, [0; 64], "{kind}");
    }
}

#[test]
fn vector_accesses_move_a_word_for_each_lane() {
    for kind in ["global", "lds"] {
        // Backwards in memory, so that lane and place differ; then two lanes to each word.
        let bench = Bench::ended(&format!(
            ".lds 64\nlane v0\nmov v1, 28\nshl v2, v0, 2\nsub v1, v1, v2\n\
             {kind}_store [v1 + 32], v0\nmov s8, 56\n{kind}_load s9, [s8]\n\
             {kind}_load v3, [v2 + 32]\nshr v4, v0, 1\nshl v4, v4, 2\nmov v5, 3\n\
             {kind}_add [v4], v5\n{kind}_load v6, [v2]"
        ));
        assert_eq!(bench.wave.scalars()[9], 1, "{kind}");
        assert_eq!(bench.wave.vectors()[3], [7, 6, 5, 4, 3, 2, 1, 0], "{kind}");
        assert_eq!(bench.wave.vectors()[6], [6, 6, 6, 6, 0, 0, 0, 0], "{kind}");
    }
}

#[test]
fn branches_compare_without_sign() {
    for (name, below, equal, above) in [
        ("eq", false, true, false),
        ("ne", true, false, true),
        ("lt", true, false, false),
        ("le", true, true, false),
        ("gt", false, false, true),
        ("ge", false, true, true),
    ] {
        let high = 0x8000_0000_u32;
        for (left, right, taken) in [(1, high, below), (high, high, equal), (high, 1, above)] {
            let bench = Bench::ended(&format!(
                "mov s8, {left}\nmov s9, {right}\nbranch_{name} s8, {right}, number\njump next\n\
                 number: mov s10, 1\nnext: branch_{name} s8, s9, register\nend\n\
                 register: mov s11, 1"
            ));
            assert_eq!(bench.wave.scalars()[10..12], [u32::from(taken); 2], "{name}");
        }
    }
}

#[test]
fn work_comes_with_the_time_of_the_instructions_before_it() {
    let mut bench = Bench::new("mov s8, 1\nmov s8, 2\nwork 100\nwork s6\nwork 0\nend");
    assert_eq!(bench.step(4), Step::Busy(108));
    assert_eq!(bench.step(4), Step::Busy(16));
    assert_eq!(bench.step(4), Step::Busy(0));
    assert_eq!(bench.step(4), Step::End);
    assert_eq!(bench.step(4), Step::End, "it stays ended");
}

#[test]
fn time_before_a_barrier_or_an_end_is_not_lost() {
    let mut bench = Bench::new("mov s8, 1\nbarrier\nmov s8, 2\nend");
    assert_eq!(bench.step(3), Step::Busy(3));
    assert_eq!(bench.step(3), Step::Barrier);
    assert_eq!(bench.wave.scalars()[8], 1);
    assert_eq!(bench.step(3), Step::Busy(3));
    assert_eq!(bench.wave.scalars()[8], 2);
    assert_eq!(bench.step(3), Step::End);
}

#[test]
fn endless_computation_pauses_after_every_step() {
    let mut bench = Bench::new("loop: add s8, s8, 1\njump loop");
    assert_eq!(bench.step(2), Step::Busy(2 * u64::from(STEP_MAX)));
    assert_eq!(bench.step(2), Step::Busy(2 * u64::from(STEP_MAX)));
    assert_eq!(bench.wave.scalars()[8], STEP_MAX);
}

#[test]
fn faults_name_the_address() {
    let (global, lds) = (Space::Global, Space::Lds);
    for (text, fault) in [
        ("mov s8, 2\nglobal_load s9, [s8]", WaveFault::Misaligned { space: global, address: 2 }),
        ("global_store [s8 + 64], s9", WaveFault::OutOfBounds { space: global, address: 64 }),
        ("lane v0\nlds_load v1, [v0]", WaveFault::Misaligned { space: lds, address: 1 }),
        ("lds_add [s8 + 8], s9", WaveFault::OutOfBounds { space: lds, address: 8 }),
        ("mov v0, 4\nlds_store [v0 + 4], v1", WaveFault::OutOfBounds { space: lds, address: 8 }),
        ("mov s8, 1", WaveFault::PastEnd { pc: 1 }),
        ("jump over\nend\nover:", WaveFault::PastEnd { pc: 2 }),
    ] {
        assert_eq!(Bench::fault(&format!(".lds 8\n{text}")), fault, "{text}");
    }
}

#[test]
fn a_fault_comes_back_at_the_same_place() {
    let mut bench = Bench::new("mov s8, 1\nglobal_load s9, [s8]\nend");
    let fault = Step::Fault(WaveFault::Misaligned { space: Space::Global, address: 1 });
    assert_eq!(bench.step(1), fault);
    assert_eq!(bench.wave.pc(), 1);
    assert_eq!(bench.step(1), fault);
}
