//! The reference: a kernel executed without preemption, against which other runs are compared.

use crate::isa::Program;
use crate::memory::Memory;
use crate::wave::{Launch, Step, Wave, WaveFault};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub groups: u32,
    /// Per work-group.
    pub waves: u32,
}

/// Steps after which a wave counts as endless. Each has up to
/// [`STEP_MAX`](crate::wave::STEP_MAX) instructions, or one `work`.
pub const STEPS_MAX: u32 = 1 << 20;

/// Executes a whole kernel, one work-group after the other and its waves in order, without time.
///
/// # Errors
/// The first fault of a wave; what ran before it has changed the memory.
pub fn run_reference(
    program: &Program,
    grid: Grid,
    arguments: [u32; 4],
    memory: &mut Memory,
) -> Result<(), WaveFault> {
    let Grid { groups, waves } = grid;
    for group in 0..groups {
        let waves = (0..waves)
            .map(|wave| Wave::start(&Launch { group, groups, wave, waves, arguments }))
            .collect();
        run_group(program, waves, memory)?;
    }
    Ok(())
}

/// Executes one work-group: every wave to its next barrier, again and again until all have ended.
fn run_group(program: &Program, waves: Vec<Wave>, memory: &mut Memory) -> Result<(), WaveFault> {
    let mut lds = vec![0; program.lds_bytes()];
    let mut waiting: Vec<(Wave, u32)> = waves.into_iter().map(|wave| (wave, 0)).collect();
    while !waiting.is_empty() {
        let mut arrived = Vec::with_capacity(waiting.len());
        for (mut wave, mut steps) in waiting {
            loop {
                if steps == STEPS_MAX {
                    return Err(WaveFault::Endless);
                }
                steps += 1;
                match wave.step(program, &mut lds, memory, 0) {
                    Step::Busy(_) => {}
                    Step::Barrier => {
                        arrived.push((wave, steps));
                        break;
                    }
                    Step::End => break,
                    Step::Fault(fault) => return Err(fault),
                }
            }
        }
        waiting = arrived;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Space;

    const GRID: Grid = Grid { groups: 2, waves: 3 };

    fn run(text: &str) -> Result<Memory, WaveFault> {
        let program = Program::assemble("test", text).unwrap();
        let mut memory = Memory::new(64);
        run_reference(&program, GRID, [0; 4], &mut memory)?;
        Ok(memory)
    }

    #[test]
    fn every_wave_of_every_group_runs_once() {
        let memory = run("
            mul s8, s0, s3
            add s8, s8, s2
            shl s9, s8, 2
            add s8, s8, 1
            global_add [s9], s8
            end")
        .unwrap();
        let words: Vec<u32> = (0..8).map(|word| memory.load(4 * word).unwrap()).collect();
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 0, 0]);
    }

    #[test]
    fn barriers_wait_for_the_waves_that_have_not_ended() {
        // Wave 2 ends at once. Wave 0 reads what wave 1 leaves in the LDS before the barrier.
        let memory = run("
            .lds 4
            branch_eq s2, 2, done
            branch_eq s2, 0, wait
            add s8, s0, 40
            lds_store [s15], s8
            wait: barrier
            branch_ne s2, 0, done
            lds_load s9, [s15]
            shl s10, s0, 2
            global_store [s10], s9
            done: end")
        .unwrap();
        assert_eq!((memory.load(0), memory.load(4)), (Ok(40), Ok(41)));
    }

    #[test]
    fn endless_loops_and_faults_are_reported() {
        assert_eq!(run("loop: jump loop"), Err(WaveFault::Endless));
        assert_eq!(run("loop: barrier\njump loop"), Err(WaveFault::Endless));
        let fault = WaveFault::OutOfBounds { space: Space::Global, address: 64 };
        assert_eq!(run("global_load s9, [s8 + 64]\nend"), Err(fault));
    }
}
