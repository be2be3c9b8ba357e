//! Due times of requests, fixed before the first one runs.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrivals {
    Periodic {
        every_ns: u64,
        /// From the beginning to the first.
        phase_ns: u64,
    },
    Poisson {
        mean_ns: u64,
        seed: u64,
    },
    /// At these times, ascending.
    Trace(Vec<u64>),
}

/// The due times in nanoseconds from the beginning; infinite except for traces.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    arrivals: Arrivals,
    chance: SplitMix,
    index: u64,
    poisson_ns: u64,
}

impl Schedule {
    pub(crate) fn new(arrivals: Arrivals) -> Self {
        let seed = match arrivals {
            Arrivals::Periodic { .. } | Arrivals::Trace(_) => 0,
            Arrivals::Poisson { seed, .. } => seed,
        };
        Self { arrivals, chance: SplitMix(seed), index: 0, poisson_ns: 0 }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let due = match &self.arrivals {
            Arrivals::Periodic { every_ns, phase_ns } => {
                self.index.saturating_mul(*every_ns).saturating_add(*phase_ns)
            }
            Arrivals::Trace(times) => *times.get(usize::try_from(self.index).ok()?)?,
            Arrivals::Poisson { mean_ns, .. } => {
                let gap = self.chance.exponential(*mean_ns);
                self.poisson_ns = self.poisson_ns.saturating_add(gap);
                self.poisson_ns
            }
        };
        self.index += 1;
        Some(due)
    }
}

/// Vigna's splitmix64.
#[derive(Clone, Debug)]
struct SplitMix(u64);

impl SplitMix {
    fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// An exponentially distributed time.
    fn exponential(&mut self, mean: u64) -> u64 {
        // CAST: 53 bits fit a float exactly; adding one half keeps it above 0 and below 1.
        let uniform = ((self.any() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let wait = -uniform.ln() * mean as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 38 means, never negative; a float too large becomes the largest u64"
        )]
        let wait = wait as u64;
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periodic_requests_do_not_drift() {
        let due = |phase_ns| {
            let arrivals = Arrivals::Periodic { every_ns: 10_000_000, phase_ns };
            Schedule::new(arrivals).take(1001).collect::<Vec<u64>>()
        };
        assert_eq!(due(0)[..3], [0, 10_000_000, 20_000_000]);
        assert_eq!(due(0)[1000], 10_000_000_000);
        assert_eq!(due(3_000_000)[..2], [3_000_000, 13_000_000]);
    }

    #[test]
    fn poisson_requests_have_the_right_mean_and_spread() {
        let arrivals = Arrivals::Poisson { mean_ns: 1_000_000, seed: 1 };
        let due: Vec<u64> = Schedule::new(arrivals).take(20_000).collect();
        let mean = due[19_999] / 20_000;
        assert!((980_000..1_020_000).contains(&mean), "{mean}");
        // e^-1 of all gaps are longer than the mean.
        let longer = due.windows(2).filter(|pair| pair[1] - pair[0] > 1_000_000).count();
        assert!((7_150..7_560).contains(&longer), "{longer}");
        assert!(due.is_sorted());
    }

    #[test]
    fn a_trace_is_followed_and_ends() {
        let due: Vec<u64> = Schedule::new(Arrivals::Trace(vec![3, 5, 5])).collect();
        assert_eq!(due, [3, 5, 5]);
    }

    #[test]
    fn a_seed_names_one_schedule() {
        let first = |seed| Schedule::new(Arrivals::Poisson { mean_ns: 1_000_000, seed }).nth(9);
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
    }
}
