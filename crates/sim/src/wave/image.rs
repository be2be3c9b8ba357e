//! A wave as bytes: what the device writes to the save area and reads back from it.
//!
//! ```text
//! offset  bytes
//!      0      4  program counter
//!      4      8  busy time still to serve, in nanoseconds
//!     12     64  scalar registers
//!     76    256  vector registers, lane by lane
//! ```

use super::Wave;
use crate::isa::{LANES, SCALAR_REGISTERS, VECTOR_REGISTERS};

/// The size of a saved wave.
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
}
