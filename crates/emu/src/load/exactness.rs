//! The proof that every kernel ran exactly once, in order and whole.

use std::fmt;

use serde::Serialize;

/// What every word of the kernel `mix` is after some launches. It depends on each of them, and on
/// their order; all words are the same because all begin as zero.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected {
    word: u32,
    launches: u32,
}

impl Expected {
    /// The number that the next launch mixes in.
    pub(crate) fn next_number(self) -> u32 {
        self.launches
    }

    /// One more launch.
    pub(crate) fn launch(&mut self) {
        self.word = self
            .word
            .wrapping_mul(1_664_525)
            .wrapping_add(self.launches)
            .wrapping_add(1_013_904_223);
        self.launches = self.launches.wrapping_add(1);
    }
}

/// What the memory says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Exactness {
    result: Verdict,
    /// What every word must be.
    expected: u32,
    /// How many words there are.
    words: usize,
    /// How many are something else.
    wrong: usize,
    /// The first that is.
    first_wrong: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Pass,
    Fail,
}

impl Exactness {
    /// What `memory` says after the launches.
    pub(crate) fn of(memory: &[u8], expected: Expected) -> Self {
        let words: Vec<u32> = memory
            .chunks_exact(4)
            .filter_map(|chunk| chunk.first_chunk().map(|chunk| u32::from_le_bytes(*chunk)))
            .collect();
        let expected = expected.word;
        let wrong = words.iter().filter(|word| **word != expected).count();
        // No words prove nothing.
        let is_pass = wrong == 0 && !words.is_empty();
        Self {
            result: if is_pass { Verdict::Pass } else { Verdict::Fail },
            expected,
            words: words.len(),
            wrong,
            first_wrong: words.into_iter().find(|word| *word != expected),
        }
    }

    pub(crate) fn is_pass(&self) -> bool {
        self.result == Verdict::Pass
    }
}

impl fmt::Display for Exactness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, words, wrong, .. } = self;
        if self.is_pass() {
            return write!(f, "pass: all {words} words are {expected}");
        }
        write!(f, "FAIL: {wrong} of {words} words are not {expected}")?;
        self.first_wrong.map_or(Ok(()), |word| write!(f, ", the first is {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_sim::isa::Program;
    use gpreempt_sim::kernels::built_in;
    use gpreempt_sim::memory::Memory;
    use gpreempt_sim::reference::{Grid, run_reference};

    /// The memory after launches with these numbers.
    fn memory(numbers: &[u32]) -> Vec<u8> {
        let program = Program::assemble("mix", built_in("mix").unwrap()).unwrap();
        let mut memory = Memory::new(96);
        let grid = Grid { groups: 3, waves: 1 };
        for &number in numbers {
            run_reference(&program, grid, [0, number, 1_000, 96], &mut memory).unwrap();
        }
        memory.bytes().to_vec()
    }

    #[test]
    fn the_expected_word_is_what_the_kernel_leaves() {
        let mut expected = Expected::default();
        for _ in 0..5 {
            expected.launch();
        }
        assert!(Exactness::of(&memory(&[0, 1, 2, 3, 4]), expected).is_pass());
        for wrong in [&[0, 1, 2, 3][..], &[0, 1, 2, 3, 3], &[0, 2, 1, 3, 4], &[0, 1, 2, 3, 4, 4]] {
            assert!(!Exactness::of(&memory(wrong), expected).is_pass(), "{wrong:?}");
        }
        assert!(!Exactness::of(&[], expected).is_pass());
    }
}
