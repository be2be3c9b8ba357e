//! Memory that a load holds besides what its kernels use (`--memory`), on a CUDA device.
//!
//! It is filled once and never written again, so one check at the end finds what any move of it to
//! the host and back has changed, and costs the load nothing before.

use crate::cuda::{Context, CudaError, DeviceMemory};
use crate::lines::MemoryCheck;

/// Every piece has a word of its own, so that pages that were exchanged are found. A page of the
/// driver has 2 MiB.
const PIECE_WORDS: usize = 1 << 18;

pub(crate) struct HeldMemory {
    memory: DeviceMemory,
}

impl HeldMemory {
    /// Allocates and fills `bytes`.
    pub(crate) fn allocate(context: &Context, bytes: u64) -> Result<Self, CudaError> {
        let words = usize::try_from(bytes / 4).unwrap_or(usize::MAX);
        let memory = DeviceMemory::zeroed(context, words)?;
        for (piece, first) in (0..).zip((0..words).step_by(PIECE_WORDS)) {
            memory.fill(first, PIECE_WORDS.min(words - first), pattern(piece))?;
        }
        Ok(Self { memory })
    }

    /// Compares every word. Fills and copies are in order, so it waits for the fill.
    pub(crate) fn check(&self) -> Result<MemoryCheck, CudaError> {
        let words = self.memory.word_count();
        let mut read = vec![0; PIECE_WORDS.min(words)];
        let mut is_exact = true;
        for (piece, first) in (0..).zip((0..words).step_by(PIECE_WORDS)) {
            let part = &mut read[..PIECE_WORDS.min(words - first)];
            self.memory.read_part(first, part)?;
            is_exact &= part.iter().all(|word| *word == pattern(piece));
        }
        Ok(MemoryCheck::new(words as u64 * 4, is_exact))
    }
}

/// A bijection, so that no two pieces have the same word.
fn pattern(piece: u32) -> u32 {
    piece.wrapping_mul(0x9e37_79b1) ^ 0x5bd1_e995
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_piece_of_a_large_device_has_a_word_of_its_own() {
        let pieces = 0..(192 << 10);
        let words: BTreeSet<u32> = pieces.clone().map(pattern).collect();
        assert_eq!(words.len(), pieces.len());
        assert!(!words.contains(&0));
    }
}
