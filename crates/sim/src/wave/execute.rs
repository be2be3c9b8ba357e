//! What each instruction does to a wave.

use super::{Wave, WaveFault};
use crate::isa::{
    Access, Instruction, LANES, ScalarOperand, ScalarRegister, Space, VectorOperand, VectorRegister,
};
use crate::memory::{Memory, load_word, store_word};

/// How a wave goes on after an instruction.
pub(super) enum Flow {
    /// With the next one.
    Next,
    /// With that one.
    Go(u32),
    /// With the next one, so many nanoseconds later.
    Work(u32),
    /// With the next one, when all waves of the work-group are here.
    Barrier,
    /// Not at all.
    End,
}

impl Wave {
    /// Does everything an instruction does, except to the program counter.
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
