//! When the requests of a load are due.

use gpreempt_core::time::Duration;
use gpreempt_sim::prng::Prng;

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Always the same time apart, the first at `phase`.
    Periodic {
        every: Duration,
        /// From the beginning to the first.
        phase: Duration,
    },
    /// Independent of each other.
    Poisson { mean: Duration },
    /// Bursts with idle times between them, as users produce them.
    Bursty { mean: Duration },
    /// `depth` requests are always in flight.
    BackToBack { depth: u32 },
}

impl Arrivals {
    /// The average distance of two requests, where it is not as they come.
    pub fn mean(&self) -> Option<Duration> {
        match *self {
            Self::Periodic { every, .. } => Some(every),
            Self::Poisson { mean } | Self::Bursty { mean } => Some(mean),
            Self::BackToBack { .. } => None,
        }
    }

    /// The times of requests up to `end`, where they are left to chance: the same for the same
    /// seed, so that a GPU and the simulator can be given the same ones.
    pub fn times(&self, end: Duration, seed: u64) -> Option<Vec<Duration>> {
        match *self {
            Self::Poisson { mean } => Some(poisson(mean, end, seed)),
            Self::Bursty { mean } => Some(bursty(mean, end, seed)),
            Self::Periodic { .. } | Self::BackToBack { .. } => None,
        }
    }
}

fn poisson(mean: Duration, end: Duration, seed: u64) -> Vec<Duration> {
    let mut chance = Prng::new(seed).branch(0x9015);
    let mut now = Duration::ZERO;
    let next = || {
        now += chance.exponential(mean);
        (now < end).then_some(now)
    };
    std::iter::from_fn(next).collect()
}

/// How much closer requests are in a burst than on average.
const BURST: u64 = 4;
/// Requests of a burst, on average.
const BURST_REQUESTS: u64 = 12;

/// The times of bursty requests up to `end`: the same for the same seed.
///
/// In a burst requests are independent, four times as dense as on average; the quiet time after
/// it is such that the average comes out. No recorded trace is available, so one is generated.
fn bursty(mean: Duration, end: Duration, seed: u64) -> Vec<Duration> {
    let mut chance = Prng::new(seed).branch(0xb0b5);
    let close = Duration::from_nanos((mean.as_nanos() / BURST).max(1));
    let quiet = mean.times(BURST_REQUESTS).saturating_sub(close.times(BURST_REQUESTS));
    let mut times = Vec::new();
    let mut now = Duration::ZERO;
    loop {
        let requests = chance.between(1, 2 * BURST_REQUESTS - 1);
        for _ in 0..requests {
            now += chance.exponential(close);
            if now >= end {
                return times;
            }
            times.push(now);
        }
        now += chance.exponential(quiet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_have_the_configured_average_and_are_bursts() {
        let mean = Duration::from_millis(10);
        let times = bursty(mean, Duration::from_millis(2_000_000), 3);
        let average = 2_000_000_000 / times.len();
        assert!((9_000..11_000).contains(&average), "{average} us");
        // Independent requests are closer than a quarter of the average for 22 % of the time.
        let close = times
            .windows(2)
            .filter(|pair| pair[1].saturating_sub(pair[0]) < Duration::from_micros(2_500));
        let share = close.count() * 100 / times.len();
        assert!(share > 50, "{share} %");
        assert!(times.is_sorted());
    }

    #[test]
    fn independent_requests_have_the_configured_average() {
        let times = poisson(Duration::from_millis(4), Duration::from_millis(80_000), 1);
        assert!((19_000..21_000).contains(&times.len()), "{}", times.len());
        assert!(times.is_sorted());
    }

    #[test]
    fn a_seed_names_one_trace() {
        let mean = Duration::from_millis(1);
        for arrivals in [Arrivals::Poisson { mean }, Arrivals::Bursty { mean }] {
            let trace = |seed| arrivals.times(Duration::from_millis(100), seed).unwrap();
            assert_eq!(trace(7), trace(7));
            assert_ne!(trace(7), trace(8));
            // A longer one begins with the shorter one.
            let longer = arrivals.times(Duration::from_millis(200), 7).unwrap();
            assert_eq!(longer[..trace(7).len()], trace(7));
        }
    }
}
