//! Mutations of inputs for the normal tests: the same ones in every run, and no coverage is needed.

use gpreempt_sim::prng::Prng;

/// Pieces that readers treat specially: borders of numbers, and syntax of the formats.
const PIECES: &[&[u8]] = &[
    b"18446744073709551616",
    b"-9223372036854775808",
    b"4294967295",
    b"1e999",
    b"0x",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0\0\0\0\0",
    b"\0\0\0\x80",
    b"\n",
    b"\r\n",
    b"\"\"\"",
    b"[[",
    b"]",
    b"{",
    b"}",
    b"=",
    b"*",
    b"\\u0000",
    b"\x1b[2J",
    b"\xc3\x28",
];

/// Draws changed copies of inputs.
#[derive(Debug)]
pub struct Mutator<'a> {
    inputs: &'a [Vec<u8>],
    bytes_max: usize,
    prng: Prng,
}

impl<'a> Mutator<'a> {
    /// Mutations of `inputs`, of which there is at least one, each at most `bytes_max` long.
    pub fn new(inputs: &'a [Vec<u8>], bytes_max: usize, seed: u64) -> Self {
        Self { inputs, bytes_max, prng: Prng::new(seed) }
    }

    /// The next mutation: one input with up to eight changes.
    pub fn draw(&mut self) -> Vec<u8> {
        let mut bytes = self.prng.pick(self.inputs).clone();
        for _ in 0..self.prng.between(1, 8) {
            self.change(&mut bytes);
        }
        bytes.truncate(self.bytes_max);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let (start, end) = self.range(bytes.len());
        match self.prng.below(7) {
            0 => {
                if let Some(byte) = bytes.get_mut(start) {
                    *byte ^= 1 << self.prng.below(8);
                }
            }
            1 => {
                if let Some(byte) = bytes.get_mut(start) {
                    // CAST: one byte of the number is wanted.
                    *byte = self.prng.any().to_le_bytes()[0];
                }
            }
            2 => drop(bytes.drain(start..end)),
            3 => {
                let copy = bytes[start..end].to_vec();
                bytes.splice(start..start, copy);
            }
            4 => {
                let piece = self.prng.pick(PIECES);
                bytes.splice(start..start, piece.iter().copied());
            }
            5 => {
                let piece = self.prng.pick(PIECES);
                bytes.splice(start..end, piece.iter().copied());
            }
            _ => {
                let other = self.prng.pick(self.inputs);
                let (from, to) = self.range(other.len());
                bytes.splice(start..end, other[from..to].iter().copied());
            }
        }
    }

    /// A range within that many bytes. Short ones are more likely: most fields are short.
    fn range(&mut self, length: usize) -> (usize, usize) {
        let start = self.index(length);
        let longest = if self.prng.chance(3, 4) { 8 } else { length };
        (start, (start + self.index(longest)).min(length))
    }

    /// A number from 0 to `max`.
    fn index(&mut self, max: usize) -> usize {
        // CAST: a usize has 64 bits here, and the number is at most `max`.
        usize::try_from(self.prng.below(max as u64 + 1)).unwrap_or(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_reproducible_varied_and_bounded() {
        let inputs = [b"[service]\npriority = 3\n".to_vec(), Vec::new()];
        let draw = |seed| {
            let mut mutator = Mutator::new(&inputs, 64, seed);
            (0..500).map(|_| mutator.draw()).collect::<Vec<_>>()
        };
        let drawn = draw(1);
        assert_eq!(drawn, draw(1));
        assert_ne!(drawn, draw(2));
        assert!(drawn.iter().all(|bytes| bytes.len() <= 64));
        let different: std::collections::BTreeSet<_> = drawn.iter().collect();
        assert!(different.len() > 400, "{}", different.len());
    }
}
