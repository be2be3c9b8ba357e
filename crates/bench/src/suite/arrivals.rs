//! When requests are due.

use gpreempt_core::time::Duration;
use gpreempt_fields::{Fields, ReadError};
use gpreempt_sim::prng::Prng;

pub(super) const KEYS: &[&str] =
    &["every_us", "phase_us", "poisson_us", "bursty_us", "back_to_back"];

/// The longest distance of two requests: a minute.
const US_MAX: u64 = 60_000_000;
const DEPTH_MAX: u32 = 128;

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Always the same time apart, the first at `phase`.
    Periodic {
        /// From one to the next.
        every: Duration,
        /// From the beginning to the first.
        phase: Duration,
    },
    /// Independent of each other.
    Poisson {
        /// The average distance.
        mean: Duration,
    },
    /// Quiet times and bursts, as people and their programs make them.
    Bursty {
        /// The average distance.
        mean: Duration,
    },
    /// As soon as there is room: that many are always under way.
    BackToBack {
        /// How many.
        depth: u32,
    },
}

impl Arrivals {
    /// Reads the table `arrivals` of a load.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, ReadError> {
        let (kind, _) =
            fields.exactly_one(&["every_us", "poisson_us", "bursty_us", "back_to_back"])?;
        if kind != "every_us" && fields.optional("phase_us").is_some() {
            return Err(fields.error_at("phase_us", "is used only with `every_us`"));
        }
        match kind {
            "every_us" => Ok(Self::Periodic {
                every: fields.duration("every_us", 10..=US_MAX, None)?,
                phase: fields.duration("phase_us", 0..=US_MAX, Duration::ZERO)?,
            }),
            "poisson_us" => {
                Ok(Self::Poisson { mean: fields.duration("poisson_us", 10..=US_MAX, None)? })
            }
            "bursty_us" => {
                Ok(Self::Bursty { mean: fields.duration("bursty_us", 10..=US_MAX, None)? })
            }
            _ => Ok(Self::BackToBack { depth: fields.u32("back_to_back", 1..=DEPTH_MAX, None)? }),
        }
    }

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
/// it is such that the average comes out. Nobody's recorded trace is at hand, so this one is made.
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
    fn bursts_have_the_wished_average_and_are_bursts() {
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
    fn independent_requests_have_the_wished_average() {
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
