//! A wave: eight lanes that execute a kernel's program together.
//!
//! A wave knows nothing of time or of other waves. Its compute unit calls [`Wave::step`] whenever
//! the wave has nothing to wait for, and is told how long the wave is busy now, or that it waits.
//! What instructions do is visible at once; the time they take comes after.

mod execute;
mod fault;
mod image;

pub use fault::WaveFault;
pub use image::SAVED_BYTES;

use crate::isa::{LANES, Program, SCALAR_REGISTERS, VECTOR_REGISTERS};
use crate::memory::Memory;
use execute::Flow;

/// Most instructions of one step, so that a long computation can be interrupted as well.
pub const STEP_MAX: u32 = 64;

/// Everything that distinguishes one wave of a kernel at its start.
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

/// The state of one wave: all of it is saved when the wave is taken off the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wave {
    /// The next instruction.
    pc: u32,
    /// Busy time still to serve, in nanoseconds.
    owed: u64,
    scalars: [u32; SCALAR_REGISTERS],
    vectors: [[u32; LANES]; VECTOR_REGISTERS],
}

/// What became of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is busy for that many nanoseconds, possibly none; then it wants another step.
    Busy(u64),
    /// It waits for the waves of its work-group that have not ended, and wants another step when
    /// all of them wait.
    Barrier,
    /// It is done.
    End,
    /// It did something impossible, and so will another step.
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

    /// The number of the next instruction.
    pub fn pc(&self) -> u32 {
        self.pc
    }

    /// Busy time it still had to serve when it was taken off the device, in nanoseconds.
    pub fn owed(&self) -> u64 {
        self.owed
    }

    /// Notes busy time still to serve, in nanoseconds, for whoever brings the wave back.
    pub fn set_owed(&mut self, ns: u64) {
        self.owed = ns;
    }

    /// The scalar registers.
    pub fn scalars(&self) -> &[u32; SCALAR_REGISTERS] {
        &self.scalars
    }

    /// The lanes of the vector registers.
    pub fn vectors(&self) -> &[[u32; LANES]; VECTOR_REGISTERS] {
        &self.vectors
    }
}

#[cfg(test)]
mod tests;
