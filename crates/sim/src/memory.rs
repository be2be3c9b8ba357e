//! The memory that waves read and write: bytes, reached as little-endian words.
//!
//! Each task has its own, so an address means nothing outside its task.

use crate::isa::Space;
use crate::wave::WaveFault;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    bytes: Vec<u8>,
}

impl Memory {
    /// Zeroed memory.
    pub fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes] }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The word at a byte address.
    ///
    /// # Errors
    /// The address is not a multiple of four, or not in this memory.
    pub fn load(&self, address: u32) -> Result<u32, WaveFault> {
        load_word(&self.bytes, Space::Global, address)
    }

    /// Writes the word at a byte address.
    ///
    /// # Errors
    /// The address is not a multiple of four, or not in this memory.
    pub fn store(&mut self, address: u32, value: u32) -> Result<(), WaveFault> {
        store_word(&mut self.bytes, Space::Global, address, value)
    }

    /// Adds to the word at a byte address; the sum wraps.
    ///
    /// # Errors
    /// The address is not a multiple of four, or not in this memory.
    pub fn add(&mut self, address: u32, value: u32) -> Result<(), WaveFault> {
        let sum = self.load(address)?.wrapping_add(value);
        self.store(address, sum)
    }

    /// Takes the contents out and fills the memory with `filler`.
    pub(crate) fn replace(&mut self, filler: u8) -> Vec<u8> {
        let filled = vec![filler; self.bytes.len()];
        std::mem::replace(&mut self.bytes, filled)
    }

    /// Copies contents back that [`replace`](Self::replace) took out.
    pub(crate) fn put_back(&mut self, contents: &[u8]) {
        self.bytes.copy_from_slice(contents);
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// The word at `address` of `bytes`, which are memory of the kind `space`.
pub(crate) fn load_word(bytes: &[u8], space: Space, address: u32) -> Result<u32, WaveFault> {
    let start = word_start(space, address)?;
    match bytes.get(start..).and_then(<[u8]>::first_chunk) {
        Some(word) => Ok(u32::from_le_bytes(*word)),
        None => Err(WaveFault::OutOfBounds { space, address }),
    }
}

/// Writes the word at `address` of `bytes`, which are memory of the kind `space`.
pub(crate) fn store_word(
    bytes: &mut [u8],
    space: Space,
    address: u32,
    value: u32,
) -> Result<(), WaveFault> {
    let start = word_start(space, address)?;
    match bytes.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
        Some(word) => {
            *word = value.to_le_bytes();
            Ok(())
        }
        None => Err(WaveFault::OutOfBounds { space, address }),
    }
}

fn word_start(space: Space, address: u32) -> Result<usize, WaveFault> {
    if !address.is_multiple_of(4) {
        return Err(WaveFault::Misaligned { space, address });
    }
    usize::try_from(address).map_err(|_| WaveFault::OutOfBounds { space, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_little_endian_and_sums_wrap() {
        let mut memory = Memory::new(8);
        assert_eq!(memory.store(4, 0x0403_0201), Ok(()));
        assert_eq!(memory.bytes(), [0, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(memory.add(4, u32::MAX), Ok(()));
        assert_eq!(memory.load(4), Ok(0x0403_0200));
    }

    #[test]
    fn wrong_addresses_are_faults_and_change_nothing() {
        // Nine bytes: the last word is incomplete.
        let mut memory = Memory::new(9);
        let space = Space::Global;
        for address in [1, 2, 3, 6, u32::MAX] {
            let fault = WaveFault::Misaligned { space, address };
            assert_eq!(memory.load(address), Err(fault));
            assert_eq!(memory.store(address, 1), Err(fault));
            assert_eq!(memory.add(address, 1), Err(fault));
        }
        for address in [8, 12, u32::MAX - 3] {
            let fault = WaveFault::OutOfBounds { space, address };
            assert_eq!(memory.load(address), Err(fault));
            assert_eq!(memory.store(address, 1), Err(fault));
            assert_eq!(memory.add(address, 1), Err(fault));
        }
        assert_eq!(memory, Memory::new(9));
    }
}
