//! Reproducible random numbers: the stream depends on nothing but its seed.
//!
//! xoshiro256**, seeded through splitmix64. There is no floating point, so a seed means the
//! same run on every machine.

use gpreempt_core::time::Duration;

#[derive(Clone, Debug)]
pub struct Prng {
    state: [u64; 4],
}

impl Prng {
    pub fn new(seed: u64) -> Self {
        let mut mixer = seed;
        let mut next = || {
            mixer = mixer.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = mixer;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        };
        Self { state: [next(), next(), next(), next()] }
    }

    /// An independent stream for one purpose, so that drawing more for another changes nothing.
    pub fn branch(&self, purpose: u64) -> Self {
        Self::new(self.state[0] ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub fn any(&mut self) -> u64 {
        let result = self.state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = self.state[1] << 17;
        self.state[2] ^= self.state[0];
        self.state[3] ^= self.state[1];
        self.state[1] ^= self.state[2];
        self.state[0] ^= self.state[3];
        self.state[2] ^= shifted;
        self.state[3] = self.state[3].rotate_left(45);
        result
    }

    /// A number from 0 to `bound - 1`, all equally likely.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        let product = u128::from(self.any()) * u128::from(bound);
        // CAST: the product of two 64-bit numbers, shifted down by 64, fits in 64 bits.
        u64::try_from(product >> 64).expect("the high half of a product")
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True `numerator` times out of `denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    ///
    /// # Panics
    /// If there are no choices.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let index = self.below(choices.len() as u64);
        // PANIC: the index is below the length, which is a usize.
        &choices[usize::try_from(index).expect("an index")]
    }

    /// An exponentially distributed duration.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        let uniform = self.any() | 1;
        // -ln(u / 2^64) = (64 - log2 u) * ln 2, in 32 fractional bits.
        let bits = (64u128 << 32) - u128::from(log2_q32(uniform));
        let scaled = bits * LN2_Q32 * u128::from(mean.as_nanos());
        Duration::from_nanos(u64::try_from(scaled >> 64).unwrap_or(u64::MAX))
    }
}

/// The natural logarithm of 2, times 2^32.
const LN2_Q32: u128 = 2_977_044_472;

/// log2 of a number that is not zero, times 2^32, by squaring the mantissa bit by bit.
fn log2_q32(number: u64) -> u64 {
    let whole = 63 - number.leading_zeros();
    let mut mantissa = u128::from(number) << (63 - whole);
    let mut fraction = 0u64;
    for _ in 0..32 {
        mantissa = (mantissa * mantissa) >> 63;
        fraction <<= 1;
        if mantissa >= 1 << 64 {
            mantissa >>= 1;
            fraction |= 1;
        }
    }
    (u64::from(whole) << 32) | fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_names_one_stream_for_ever() {
        let mut prng = Prng::new(1);
        let first = [prng.any(), prng.any(), prng.any()];
        assert_eq!(
            first,
            [12_966_619_160_104_079_557, 9_600_361_134_598_540_522, 10_590_380_919_521_690_900]
        );
    }

    #[test]
    fn numbers_stay_in_range_and_reach_both_ends() {
        let mut prng = Prng::new(7);
        let mut seen = [0u32; 6];
        for _ in 0..6000 {
            let number = prng.between(10, 15);
            seen[usize::try_from(number - 10).unwrap()] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }

    #[test]
    fn waits_are_memoryless_with_the_right_mean() {
        let mut prng = Prng::new(3);
        let mean = Duration::from_micros(10);
        let waits: Vec<u64> = (0..20_000).map(|_| prng.exponential(mean).as_nanos()).collect();
        let average = waits.iter().sum::<u64>() / 20_000;
        assert!((9_800..10_200).contains(&average), "{average}");
        let longer = waits.iter().filter(|&&wait| wait > 10_000).count();
        // e^-1 of all waits are longer than the mean.
        assert!((7_158..7_558).contains(&longer), "{longer}");
    }
}
