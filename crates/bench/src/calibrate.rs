//! How much work makes a kernel of a wished length.

use std::time::Duration;

/// Rounds of measuring and scaling: the part that does not scale is small.
const ROUNDS: u32 = 4;
/// Where the search begins.
const FIRST_AMOUNT: u64 = 1_000;
/// A kernel shorter than any wish must not lead to one that is longer than all patience.
const LARGEST_STEP: f64 = 1_000.0;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Calibrated {
    /// How much a thread does.
    pub(crate) amount: u64,
    /// How long a kernel with that amount took.
    pub(crate) length: Duration,
}

impl Calibrated {
    /// A kernel `factor` times as long.
    pub(crate) fn times(self, factor: f64) -> Self {
        Self { amount: multiply(self.amount, factor), length: self.length.mul_f64(factor) }
    }
}

/// Finds the amount that takes `wished`, asking `measure` how long an amount takes.
pub(crate) fn calibrate<E>(
    wished: Duration,
    mut measure: impl FnMut(u64) -> Result<Duration, E>,
) -> Result<Calibrated, E> {
    let mut amount = FIRST_AMOUNT;
    let mut length = measure(amount)?;
    for _ in 0..ROUNDS {
        amount = scale(amount, length, wished);
        length = measure(amount)?;
    }
    Ok(Calibrated { amount, length })
}

/// Measurements of a kernel of that length: the shortest of several is the least disturbed.
pub(crate) fn samples(length: Duration) -> u32 {
    match length.as_micros() {
        0..20_000 => 5,
        20_000..100_000 => 2,
        _ => 1,
    }
}

/// Kernels in one measurement: short ones are measured back to back.
pub(crate) fn repetitions(length: Duration) -> u32 {
    match length.as_micros() {
        0..50 => 40,
        50..500 => 10,
        _ => 1,
    }
}

fn scale(amount: u64, length: Duration, wished: Duration) -> u64 {
    let factor = wished.as_secs_f64() / length.as_secs_f64().max(1e-9);
    multiply(amount, factor.clamp(1.0 / LARGEST_STEP, LARGEST_STEP))
}

fn multiply(amount: u64, factor: f64) -> u64 {
    // CAST: amounts are far below 2^53, where a float stops being exact.
    let scaled = amount as f64 * factor;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "never negative; a float too large becomes the largest u64"
    )]
    let scaled = scaled.round() as u64;
    scaled.clamp(1, 1 << 40)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// A device that takes 3 us and then 5 ns for each iteration.
    fn device(amount: u64) -> Result<Duration, Infallible> {
        Ok(Duration::from_nanos(3_000 + amount * 5))
    }

    #[test]
    fn the_length_is_met_within_one_percent() {
        for us in [10, 20, 400, 8_000, 1_000_000] {
            let wished = Duration::from_micros(us);
            let Ok(found) = calibrate(wished, device);
            let ratio = found.length.as_secs_f64() / wished.as_secs_f64();
            assert!((0.99..1.01).contains(&ratio), "{us} us: {found:?}");
        }
    }

    #[test]
    fn a_length_that_cannot_be_met_is_the_shortest_there_is() {
        let Ok(found) = calibrate(Duration::from_micros(1), device);
        assert!(found.amount < 20, "{found:?}");
    }
}
