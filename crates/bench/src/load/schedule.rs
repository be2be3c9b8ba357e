//! Due times of requests, fixed before the first one runs: nanoseconds from the beginning, without
//! an end except for traces.

use gpreempt_core::time::Duration;
use gpreempt_sim::prng::Prng;

pub(crate) type Schedule = Box<dyn Iterator<Item = u64>>;

/// Always the same time apart, the first at `phase_ns`.
pub(crate) fn periodic(every_ns: u64, phase_ns: u64) -> Schedule {
    let due = move |index: u64| index.saturating_mul(every_ns).saturating_add(phase_ns);
    Box::new((0..).map(due))
}

/// Independent of each other; a seed names one schedule.
pub(crate) fn poisson(mean_ns: u64, seed: u64) -> Schedule {
    let (mut chance, mut due_ns) = (Prng::new(seed), 0_u64);
    let next = move || {
        let gap = chance.exponential(Duration::from_nanos(mean_ns));
        due_ns = due_ns.saturating_add(gap.as_nanos());
        Some(due_ns)
    };
    Box::new(std::iter::from_fn(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periodic_requests_do_not_drift() {
        let due = |phase_ns| periodic(10_000_000, phase_ns).take(1001).collect::<Vec<u64>>();
        assert_eq!(due(0)[..3], [0, 10_000_000, 20_000_000]);
        assert_eq!(due(0)[1000], 10_000_000_000);
        assert_eq!(due(3_000_000)[..2], [3_000_000, 13_000_000]);
    }

    #[test]
    fn poisson_requests_have_the_right_mean_and_spread() {
        let due: Vec<u64> = poisson(1_000_000, 1).take(20_000).collect();
        let mean = due[19_999] / 20_000;
        assert!((980_000..1_020_000).contains(&mean), "{mean}");
        // e^-1 of all gaps are longer than the mean.
        let longer = due.windows(2).filter(|pair| pair[1] - pair[0] > 1_000_000).count();
        assert!((7_150..7_560).contains(&longer), "{longer}");
        assert!(due.is_sorted());
    }

    #[test]
    fn a_seed_names_one_schedule() {
        let first = |seed| poisson(1_000_000, seed).nth(9);
        assert_eq!(first(7), first(7));
        assert_ne!(first(7), first(8));
    }
}
