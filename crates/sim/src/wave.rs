//! A wave: eight lanes that execute a kernel's program together.
//!
//! A wave does not depend on time or on other waves. Its compute unit calls [`Wave::step`] when the
//! wave has nothing to wait for, and learns how long the wave is busy then, or that it waits. The
//! effects of instructions are visible at once; the time they take follows.
//!
//! A wave in the save area:
//!
//! ```text
//! offset  bytes
//!      0      4  program counter
//!      4      8  busy time still to serve, in nanoseconds
//!     12     64  scalar registers
//!     76    256  vector registers, lane by lane
//! ```

use crate::isa::{
    Access, Instruction, LANES, Program, SCALAR_REGISTERS, ScalarOperand, ScalarRegister, Space,
    VECTOR_REGISTERS, VectorOperand, VectorRegister,
};
use crate::memory::{Memory, load_word, store_word};

/// The most instructions of one step, so that long computations can be interrupted.
pub const STEP_MAX: u32 = 64;

/// What distinguishes one wave of a kernel at its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Its work-group: `s0`.
    pub group: u32,
    /// Work-groups in the grid: `s1`.
    pub groups: u32,
    /// Its place in the work-group: `s2`.
    pub wave: u32,
    /// Waves in each work-group: `s3`.
    pub waves: u32,
    /// The kernel's arguments, `s4` to `s7`: the byte address of the queue's region in memory, the
    /// packet's number in its queue, the work in nanoseconds, the region's size in bytes.
    pub arguments: [u32; 4],
}

/// The state of one wave: all of it is saved when the wave is preempted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    pc: u32,
    /// Busy time still to serve, in nanoseconds.
    owed: u64,
    scalars: [u32; SCALAR_REGISTERS],
    vectors: [[u32; LANES]; VECTOR_REGISTERS],
}

/// The result of [`Wave::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Busy for that many nanoseconds, possibly none; then another step follows.
    Busy(u64),
    /// Waits for the waves of its work-group that have not ended; another step follows when all of
    /// them wait.
    Barrier,
    End,
    /// Faulted; another step faults again.
    Fault(WaveFault),
}

impl Wave {
    /// A wave before its first instruction.
    pub fn start(launch: &Launch) -> Self {
        let Launch { group, groups, wave, waves, arguments } = *launch;
        let [region, packet, work, region_bytes] = arguments;
        let mut scalars = [0; SCALAR_REGISTERS];
        scalars[..8].copy_from_slice(&[
            group,
            groups,
            wave,
            waves,
            region,
            packet,
            work,
            region_bytes,
        ]);
        Self { pc: 0, owed: 0, scalars, vectors: [[0; LANES]; VECTOR_REGISTERS] }
    }

    /// Executes instructions until the wave is busy, waits or ends; at most [`STEP_MAX`] of them.
    ///
    /// An instruction takes `instruction_ns`, `work` the time it names, `barrier` and `end` none.
    /// Time spent before a barrier or an end is reported first, and they in the next step.
    pub fn step(
        &mut self,
        program: &Program,
        lds: &mut [u8],
        memory: &mut Memory,
        instruction_ns: u32,
    ) -> Step {
        let mut elapsed = 0;
        for _ in 0..STEP_MAX {
            let Some(instruction) = program.instruction(self.pc) else {
                return Step::Fault(WaveFault::PastEnd { pc: self.pc });
            };
            match self.execute(instruction, lds, memory) {
                Ok(Flow::Next) => self.pc += 1,
                Ok(Flow::Go(target)) => self.pc = target,
                Ok(Flow::Work(ns)) => {
                    self.pc += 1;
                    return Step::Busy(elapsed + u64::from(ns));
                }
                Ok(Flow::Barrier | Flow::End) if elapsed > 0 => return Step::Busy(elapsed),
                Ok(Flow::Barrier) => {
                    self.pc += 1;
                    return Step::Barrier;
                }
                Ok(Flow::End) => return Step::End,
                Err(fault) => return Step::Fault(fault),
            }
            elapsed += u64::from(instruction_ns);
        }
        Step::Busy(elapsed)
    }

    pub fn pc(&self) -> u32 {
        self.pc
    }

    /// Remaining busy time in nanoseconds when the wave was preempted.
    pub fn owed(&self) -> u64 {
        self.owed
    }

    /// Sets the remaining busy time, for the restore.
    pub fn set_owed(&mut self, ns: u64) {
        self.owed = ns;
    }

    pub fn scalars(&self) -> &[u32; SCALAR_REGISTERS] {
        &self.scalars
    }

    pub fn vectors(&self) -> &[[u32; LANES]; VECTOR_REGISTERS] {
        &self.vectors
    }
}

/// What follows an instruction.
pub(super) enum Flow {
    Next,
    Go(u32),
    /// The next one, that many nanoseconds later.
    Work(u32),
    Barrier,
    End,
}

impl Wave {
    /// Executes an instruction, except for its effect on the program counter.
    pub(super) fn execute(
        &mut self,
        instruction: Instruction,
        lds: &mut [u8],
        memory: &mut Memory,
    ) -> Result<Flow, WaveFault> {
        match instruction {
            Instruction::ScalarMove { to, from } => *self.scalar_mut(to) = self.value(from),
            Instruction::VectorMove { to, from } => *self.vector_mut(to) = self.values(from),
            Instruction::Lane { to } => *self.vector_mut(to) = [0, 1, 2, 3, 4, 5, 6, 7],
            Instruction::First { to, from } => *self.scalar_mut(to) = self.vector(from)[0],
            Instruction::ScalarCompute { operator, to, left, right } => {
                *self.scalar_mut(to) = operator.apply(self.scalar(left), self.value(right));
            }
            Instruction::VectorCompute { operator, to, left, right } => {
                let mut lanes = self.vector(left);
                for (left, right) in lanes.iter_mut().zip(self.values(right)) {
                    *left = operator.apply(*left, right);
                }
                *self.vector_mut(to) = lanes;
            }
            Instruction::ScalarAccess { space, access, data, address, offset } => {
                let address = self.scalar(address).wrapping_add(offset);
                let word = self.scalar_mut(data);
                access_word(bytes_of(space, lds, memory), space, access, address, word)?;
            }
            Instruction::VectorAccess { space, access, data, address, offset } => {
                let bytes = bytes_of(space, lds, memory);
                let addresses = self.vector(address);
                for (word, address) in self.vector_mut(data).iter_mut().zip(addresses) {
                    access_word(bytes, space, access, address.wrapping_add(offset), word)?;
                }
            }
            Instruction::Branch { condition, left, right, target } => {
                if condition.holds(self.scalar(left), self.value(right)) {
                    return Ok(Flow::Go(target));
                }
            }
            Instruction::Jump { target } => return Ok(Flow::Go(target)),
            Instruction::Work { ns } => return Ok(Flow::Work(self.value(ns))),
            Instruction::Barrier => return Ok(Flow::Barrier),
            Instruction::End => return Ok(Flow::End),
        }
        Ok(Flow::Next)
    }

    // PANIC: a register's index is below the number of registers, by the registers' invariants.

    fn scalar(&self, register: ScalarRegister) -> u32 {
        self.scalars[register.index()]
    }

    fn scalar_mut(&mut self, register: ScalarRegister) -> &mut u32 {
        &mut self.scalars[register.index()]
    }

    fn vector(&self, register: VectorRegister) -> [u32; LANES] {
        self.vectors[register.index()]
    }

    fn vector_mut(&mut self, register: VectorRegister) -> &mut [u32; LANES] {
        &mut self.vectors[register.index()]
    }

    fn value(&self, operand: ScalarOperand) -> u32 {
        match operand {
            ScalarOperand::Register(register) => self.scalar(register),
            ScalarOperand::Immediate(number) => number,
        }
    }

    fn values(&self, operand: VectorOperand) -> [u32; LANES] {
        match operand {
            VectorOperand::Vector(register) => self.vector(register),
            VectorOperand::Scalar(operand) => [self.value(operand); LANES],
        }
    }
}

fn bytes_of<'a>(space: Space, lds: &'a mut [u8], memory: &'a mut Memory) -> &'a mut [u8] {
    match space {
        Space::Global => memory.bytes_mut(),
        Space::Lds => lds,
    }
}

/// Moves one word between a register and memory.
fn access_word(
    bytes: &mut [u8],
    space: Space,
    access: Access,
    address: u32,
    word: &mut u32,
) -> Result<(), WaveFault> {
    match access {
        Access::Load => {
            *word = load_word(bytes, space, address)?;
            Ok(())
        }
        Access::Store => store_word(bytes, space, address, *word),
        Access::Add => {
            let sum = load_word(bytes, space, address)?.wrapping_add(*word);
            store_word(bytes, space, address, sum)
        }
    }
}

/// What a program did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaveFault {
    #[error("address {address:#x} of {space} is not a multiple of 4")]
    Misaligned { space: Space, address: u32 },
    #[error("address {address:#x} is outside of {space}")]
    OutOfBounds { space: Space, address: u32 },
    #[error("there is no instruction {pc}; programs finish with `end`")]
    PastEnd { pc: u32 },
    /// Reported by the reference only, which has no time limit.
    #[error("the program does not end")]
    Endless,
}

pub const SAVED_BYTES: usize = 4 + 8 + 4 * SCALAR_REGISTERS + 4 * LANES * VECTOR_REGISTERS;

impl Wave {
    /// Appends the wave's [`SAVED_BYTES`] to a save area.
    pub fn save(&self, area: &mut Vec<u8>) {
        area.reserve(SAVED_BYTES);
        area.extend(self.pc.to_le_bytes());
        area.extend(self.owed.to_le_bytes());
        for word in self.scalars.iter().chain(self.vectors.as_flattened()) {
            area.extend(word.to_le_bytes());
        }
    }

    /// The wave that was saved as these bytes, if they are exactly [`SAVED_BYTES`].
    pub fn restore(bytes: &[u8]) -> Option<Self> {
        let (pc, rest) = bytes.split_first_chunk()?;
        let (owed, rest) = rest.split_first_chunk()?;
        let (words, rest) = rest.as_chunks();
        let words: &[[u8; 4]; SCALAR_REGISTERS + LANES * VECTOR_REGISTERS] =
            words.try_into().ok()?;
        let words = words.map(u32::from_le_bytes);
        let (scalars, lanes) = words.split_first_chunk()?;
        let vectors = lanes.as_chunks().0.try_into().ok()?;
        rest.is_empty().then_some(Self {
            pc: u32::from_le_bytes(*pc),
            owed: u64::from_le_bytes(*owed),
            scalars: *scalars,
            vectors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Space;

    #[test]
    fn every_bit_of_a_wave_is_saved_once() {
        let image: Vec<u8> = (0_u8..251).cycle().take(SAVED_BYTES).collect();
        let wave = Wave::restore(&image).unwrap();
        assert_eq!(wave.pc, 0x0302_0100);
        assert_eq!(wave.owed, 0x0b0a_0908_0706_0504);
        assert_eq!(wave.scalars[0], 0x0f0e_0d0c);
        let mut area = vec![7];
        wave.save(&mut area);
        assert_eq!(area[0], 7, "saving appends");
        assert_eq!(area[1..], image);
    }

    #[test]
    fn images_of_the_wrong_size_are_refused() {
        let image = vec![0; SAVED_BYTES + 4];
        for bytes in (0..image.len()).filter(|bytes| *bytes != SAVED_BYTES) {
            assert_eq!(Wave::restore(&image[..bytes]), None, "{bytes}");
        }
    }

    /// One wave with its program and memory.
    struct TestWave {
        program: Program,
        wave: Wave,
        lds: Vec<u8>,
        memory: Memory,
    }

    impl TestWave {
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
            let mut test = Self::new(&format!("{text}\nend"));
            assert_eq!(test.step(0), Step::End);
            test
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
        let wave = TestWave::new("end").wave;
        let mut scalars = [0; SCALAR_REGISTERS];
        scalars[..8].copy_from_slice(&[10, 11, 12, 13, 14, 15, 16, 17]);
        assert_eq!(*wave.scalars(), scalars);
        assert_eq!(*wave.vectors(), [[0; LANES]; VECTOR_REGISTERS]);
        assert_eq!((wave.pc(), wave.owed()), (0, 0));
    }

    #[test]
    fn moves_copy_and_broadcast() {
        let test =
            TestWave::ended("mov s8, 5\nmov s9, s8\nlane v0\nmov v1, v0\nmov v2, s9\nmov v3, 6");
        assert_eq!(test.wave.scalars()[8..10], [5, 5]);
        assert_eq!(test.wave.vectors()[1], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(test.wave.vectors()[2], [5; LANES]);
        assert_eq!(test.wave.vectors()[3], [6; LANES]);
        let test = TestWave::ended("lane v0\nadd v0, v0, 9\nfirst s8, v0");
        assert_eq!(test.wave.scalars()[8], 9);
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
            let test = TestWave::ended(&format!(
                "mov s8, {left}\nmov s9, {right}\n{name} s10, s8, s9\n{name} s11, s8, {right}\n\
                 mov v0, s8\nmov v1, s9\n{name} v2, v0, v1\n{name} v3, v0, s9\n\
                 {name} v0, v0, {right}"
            ));
            assert_eq!(test.wave.scalars()[10..12], [result; 2], "{name}");
            for register in [0, 2, 3] {
                assert_eq!(test.wave.vectors()[register], [result; LANES], "{name} v{register}");
            }
        }
        let lanes = TestWave::ended("lane v0\nmul v1, v0, v0").wave.vectors()[1];
        assert_eq!(lanes, [0, 1, 4, 9, 16, 25, 36, 49]);
    }

    #[test]
    fn scalar_accesses_move_one_word() {
        for kind in ["global", "lds"] {
            let test = TestWave::ended(&format!(
                ".lds 64\nmov s8, 4\nmov s9, 0x01020304\n{kind}_store [s8 + 8], s9\nmov s10, 1\n\
                 {kind}_add [s8 + 8], s10\nmov s11, 12\n{kind}_load s12, [s11]"
            ));
            assert_eq!(test.wave.scalars()[12], 0x0102_0305, "{kind}");
            let (used, unused) = match kind {
                "lds" => (&test.lds[..], test.memory.bytes()),
                _ => (test.memory.bytes(), &test.lds[..]),
            };
            assert_eq!(used[8..20], [0, 0, 0, 0, 5, 3, 2, 1, 0, 0, 0, 0], "{kind}");
            assert_eq!(unused, [0; 64], "{kind}");
        }
    }

    #[test]
    fn vector_accesses_move_a_word_for_each_lane() {
        for kind in ["global", "lds"] {
            // Backwards in memory, so that lane and place differ; then two lanes to each word.
            let test = TestWave::ended(&format!(
                ".lds 64\nlane v0\nmov v1, 28\nshl v2, v0, 2\nsub v1, v1, v2\n\
                 {kind}_store [v1 + 32], v0\nmov s8, 56\n{kind}_load s9, [s8]\n\
                 {kind}_load v3, [v2 + 32]\nshr v4, v0, 1\nshl v4, v4, 2\nmov v5, 3\n\
                 {kind}_add [v4], v5\n{kind}_load v6, [v2]"
            ));
            assert_eq!(test.wave.scalars()[9], 1, "{kind}");
            assert_eq!(test.wave.vectors()[3], [7, 6, 5, 4, 3, 2, 1, 0], "{kind}");
            assert_eq!(test.wave.vectors()[6], [6, 6, 6, 6, 0, 0, 0, 0], "{kind}");
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
                let test = TestWave::ended(&format!(
                    "mov s8, {left}\nmov s9, {right}\nbranch_{name} s8, {right}, number\n\
                     jump next\n\
                     number: mov s10, 1\nnext: branch_{name} s8, s9, register\nend\n\
                     register: mov s11, 1"
                ));
                assert_eq!(test.wave.scalars()[10..12], [u32::from(taken); 2], "{name}");
            }
        }
    }

    #[test]
    fn work_comes_with_the_time_of_the_instructions_before_it() {
        let mut test = TestWave::new("mov s8, 1\nmov s8, 2\nwork 100\nwork s6\nwork 0\nend");
        assert_eq!(test.step(4), Step::Busy(108));
        assert_eq!(test.step(4), Step::Busy(16));
        assert_eq!(test.step(4), Step::Busy(0));
        assert_eq!(test.step(4), Step::End);
        assert_eq!(test.step(4), Step::End, "it stays ended");
    }

    #[test]
    fn time_before_a_barrier_or_an_end_is_not_lost() {
        let mut test = TestWave::new("mov s8, 1\nbarrier\nmov s8, 2\nend");
        assert_eq!(test.step(3), Step::Busy(3));
        assert_eq!(test.step(3), Step::Barrier);
        assert_eq!(test.wave.scalars()[8], 1);
        assert_eq!(test.step(3), Step::Busy(3));
        assert_eq!(test.wave.scalars()[8], 2);
        assert_eq!(test.step(3), Step::End);
    }

    #[test]
    fn endless_computation_pauses_after_every_step() {
        let mut test = TestWave::new("loop: add s8, s8, 1\njump loop");
        assert_eq!(test.step(2), Step::Busy(2 * u64::from(STEP_MAX)));
        assert_eq!(test.step(2), Step::Busy(2 * u64::from(STEP_MAX)));
        assert_eq!(test.wave.scalars()[8], STEP_MAX);
    }

    #[test]
    fn faults_name_the_address() {
        let (global, lds) = (Space::Global, Space::Lds);
        for (text, fault) in [
            (
                "mov s8, 2\nglobal_load s9, [s8]",
                WaveFault::Misaligned { space: global, address: 2 },
            ),
            ("global_store [s8 + 64], s9", WaveFault::OutOfBounds { space: global, address: 64 }),
            ("lane v0\nlds_load v1, [v0]", WaveFault::Misaligned { space: lds, address: 1 }),
            ("lds_add [s8 + 8], s9", WaveFault::OutOfBounds { space: lds, address: 8 }),
            (
                "mov v0, 4\nlds_store [v0 + 4], v1",
                WaveFault::OutOfBounds { space: lds, address: 8 },
            ),
            ("mov s8, 1", WaveFault::PastEnd { pc: 1 }),
            ("jump over\nend\nover:", WaveFault::PastEnd { pc: 2 }),
        ] {
            assert_eq!(TestWave::fault(&format!(".lds 8\n{text}")), fault, "{text}");
        }
    }

    #[test]
    fn a_fault_comes_back_at_the_same_place() {
        let mut test = TestWave::new("mov s8, 1\nglobal_load s9, [s8]\nend");
        let fault = Step::Fault(WaveFault::Misaligned { space: Space::Global, address: 1 });
        assert_eq!(test.step(1), fault);
        assert_eq!(test.wave.pc(), 1);
        assert_eq!(test.step(1), fault);
    }
}
