//! How long a held context may be idle before its hold is released.
//!
//! A *gap* is the time from the end of a context's work to its next submission. With a threshold
//! `T`, a gap `g` costs
//!
//! ```text
//! g                     if g <= T: the device was kept idle for g, and the hold bridged the gap
//! T + release cost      if g >  T: the device was kept idle for T in vain, and two switches delay
//!                       the held program; its time counts `weight` times that of the others
//! ```
//!
//! The threshold that equals the release cost is *break-even*: whatever the gaps are, it costs at
//! most twice what knowing each of them in advance would. A threshold that is learnt from the gaps
//! of the program costs less, as long as the program goes on as before. So the learnt threshold is
//! used only after it has cost less than break-even over `TRIAL` gaps, and only until it has cost
//! more.

use crate::time::Duration;

/// How much longer than the longest gap that it bridges a learnt threshold is: samples may be late.
const MARGIN: Duration = Duration::from_micros(75);
/// How many gaps a learnt threshold has to be cheaper for before it is used.
const TRIAL: u32 = 64;
/// The histogram halves after gaps that cost so many release costs: hundreds of tiny gaps are no
/// reason to forget a few long ones.
const HALVE_AFTER: u64 = 16;
/// How many gaps are needed to learn from.
const GAPS_ENOUGH: u32 = 16;
/// The advantage of a learnt threshold counts up to so many release costs, so that it is given up
/// soon after the program changes.
const ADVANTAGE_MAX: u64 = 8;
/// Upper edges of the buckets of the first octave, in nanoseconds: 50 us times powers of the fourth
/// root of two.
const EDGES: [u64; 4] = [50_000, 59_460, 70_711, 84_090];
/// From 50 us to 43 ms. Longer gaps are in a bucket of their own, which no threshold bridges.
const BUCKETS: usize = 40;
/// The weight of a new gap. Weights are halved from time to time and stay integers.
const NEW: u64 = 256;

/// The release threshold of one context.
#[derive(Clone, Debug)]
pub struct ReleaseThreshold {
    release_cost: Duration,
    max: Duration,
    histogram: GapHistogram,
    /// The threshold that the histogram makes cheapest.
    learnt: Option<Duration>,
    is_learnt_used: bool,
    /// By how many nanoseconds the learnt threshold was cheaper than break-even: since its trial
    /// began, or since it is used.
    advantage: i64,
    /// Gaps since then.
    gaps: u32,
}

impl ReleaseThreshold {
    /// The shortest threshold: samples are 100 us apart.
    pub const MIN: Duration = Duration::from_micros(150);

    /// A threshold that has seen no gap. It never exceeds `max`.
    pub fn new(release_cost: Duration, max: Duration) -> Self {
        Self {
            release_cost,
            max,
            histogram: GapHistogram {
                buckets: [Bucket::default(); BUCKETS + 1],
                cost: Duration::ZERO,
            },
            learnt: None,
            is_learnt_used: false,
            advantage: 0,
            gaps: 0,
        }
    }

    /// The threshold to use now.
    pub fn current(&self) -> Duration {
        self.learnt.filter(|_| self.is_learnt_used).unwrap_or_else(|| self.break_even())
    }

    /// Whether the current threshold is learnt from the program's gaps.
    pub const fn is_learnt(&self) -> bool {
        self.is_learnt_used
    }

    /// What a gap costs with a threshold.
    pub fn cost(&self, threshold: Duration, gap: Duration) -> Duration {
        if gap <= threshold { gap } else { threshold + self.release_cost }
    }

    /// The cost of a release was measured anew.
    pub fn set_release_cost(&mut self, release_cost: Duration) {
        self.release_cost = release_cost;
    }

    /// Takes in a gap of the program.
    pub fn learn(&mut self, gap: Duration) {
        if let Some(learnt) = self.learnt {
            self.judge(learnt, gap);
        }
        self.histogram.add(gap, self.release_cost);
        self.gaps += 1;
        if self.learnt.is_none() && self.gaps >= GAPS_ENOUGH || self.gaps >= TRIAL {
            self.begin_next();
        }
    }

    fn break_even(&self) -> Duration {
        self.clamp(self.release_cost)
    }

    fn clamp(&self, threshold: Duration) -> Duration {
        threshold.max(Self::MIN).min(self.max)
    }

    /// Compares the learnt threshold with break-even in this gap.
    fn judge(&mut self, learnt: Duration, gap: Duration) {
        let signed = |cost: Duration| i64::try_from(cost.as_nanos()).unwrap_or(i64::MAX);
        let saved = signed(self.cost(self.break_even(), gap)) - signed(self.cost(learnt, gap));
        self.advantage = self.advantage.saturating_add(saved);
        if self.is_learnt_used {
            self.advantage = self.advantage.min(signed(self.release_cost.times(ADVANTAGE_MAX)));
            if self.advantage < 0 {
                // The program changed.
                self.is_learnt_used = false;
                self.begin_next();
            }
        }
    }

    /// Ends a trial, or adjusts the threshold in use to what the histogram shows now.
    fn begin_next(&mut self) {
        if !self.is_learnt_used {
            // A trial of `TRIAL` gaps, not one that was just ended because the program changed.
            let has_won = self.learnt.is_some() && self.gaps >= TRIAL && self.advantage > 0;
            self.is_learnt_used = has_won;
            self.advantage = 0;
            if has_won {
                self.gaps = 0;
                return;
            }
        }
        self.gaps = 0;
        self.learnt = Some(self.clamp(self.histogram.cheapest(self.release_cost, self.max)));
    }
}

/// Gaps by their length. Older gaps count less.
#[derive(Clone, Debug)]
struct GapHistogram {
    buckets: [Bucket; BUCKETS + 1],
    /// What the gaps cost since the histogram halved.
    cost: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    weight: u64,
    /// Weight times nanoseconds.
    sum: u64,
}

/// The upper edge of a bucket.
const fn edge(bucket: usize) -> Duration {
    Duration::from_nanos(EDGES[bucket % EDGES.len()] << (bucket / EDGES.len()))
}

impl GapHistogram {
    fn add(&mut self, gap: Duration, release_cost: Duration) {
        let index = (0..BUCKETS).find(|&bucket| gap <= edge(bucket)).unwrap_or(BUCKETS);
        let bucket = &mut self.buckets[index];
        bucket.weight += NEW;
        // The sum of the last bucket is not used; its gaps have no upper limit.
        bucket.sum += NEW * gap.min(edge(BUCKETS)).as_nanos();
        self.cost += gap.min(release_cost);
        if self.cost >= release_cost.times(HALVE_AFTER) {
            self.cost = Duration::ZERO;
            for bucket in &mut self.buckets {
                bucket.weight /= 2;
                bucket.sum /= 2;
            }
        }
    }

    /// The threshold with the least expected cost.
    fn cheapest(&self, release_cost: Duration, max: Duration) -> Duration {
        let all: u64 = self.buckets.iter().map(|bucket| bucket.weight).sum();
        let (mut bridged_weight, mut bridged_sum) = (0, 0);
        let mut cheapest = (u64::MAX, ReleaseThreshold::MIN);
        for (index, bucket) in self.buckets[..BUCKETS].iter().enumerate() {
            bridged_weight += bucket.weight;
            bridged_sum += bucket.sum;
            let threshold = edge(index) + MARGIN;
            if threshold > max {
                break;
            }
            let missed = all - bridged_weight;
            let cost = bridged_sum + missed * (threshold + release_cost).as_nanos();
            cheapest = cheapest.min((cost, threshold));
        }
        cheapest.1
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const COST: Duration = Duration::from_micros(1_480);
    const MAX: Duration = Duration::from_millis(50);

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    fn after(gaps: impl IntoIterator<Item = u64>) -> ReleaseThreshold {
        let mut threshold = ReleaseThreshold::new(COST, MAX);
        gaps.into_iter().for_each(|gap| threshold.learn(us(gap)));
        threshold
    }

    /// What all gaps cost, as they come.
    fn play(threshold: &mut ReleaseThreshold, gaps: &[Duration]) -> u64 {
        let mut cost = 0;
        for &gap in gaps {
            cost += threshold.cost(threshold.current(), gap).as_nanos();
            threshold.learn(gap);
        }
        cost
    }

    fn best_fixed(gaps: &[Duration]) -> u64 {
        let threshold = ReleaseThreshold::new(COST, MAX);
        let cost = |fixed: Duration| {
            gaps.iter().map(|&gap| threshold.cost(fixed, gap).as_nanos()).sum::<u64>()
        };
        let thresholds = gaps.iter().copied().filter(|gap| *gap <= MAX).chain([Duration::ZERO]);
        thresholds.map(cost).min().unwrap_or(0)
    }

    #[test]
    fn break_even_is_used_until_the_learnt_threshold_has_cost_less() {
        let request = || (0..20).map(|_| 50).chain([8_000]);
        assert_eq!(after(request()).current(), COST);
        let threshold = after((0..5).flat_map(|_| request()));
        assert!(threshold.is_learnt());
        assert_eq!(threshold.current(), ReleaseThreshold::MIN);
    }

    #[test]
    fn what_counts_is_cost_and_not_the_number_of_gaps() {
        // A request of an LLM server as its rings show it: hundreds of tiny gaps, then twelve
        // silences of 1.2 ms while a graph runs, then a pause. By number, nine of ten are tiny.
        let request = || (0..2_000).map(|_| 20).chain((0..12).map(|_| 1_200)).chain([40_000]);
        let threshold = after((0..8).flat_map(|_| request()));
        assert!(threshold.is_learnt());
        assert!((us(1_200)..us(1_500)).contains(&threshold.current()), "{}", threshold.current());
    }

    #[test]
    fn a_program_that_changes_falls_back_to_break_even_within_a_few_gaps() {
        let mut threshold = after((0..400).map(|gap| if gap % 20 == 0 { 9_000 } else { 60 }));
        assert!(threshold.is_learnt());
        let mut gaps = 0;
        while threshold.is_learnt() {
            threshold.learn(us(400));
            gaps += 1;
        }
        assert!(gaps <= 16, "{gaps}");
        assert_eq!(threshold.current(), COST);
        (0..200).for_each(|_| threshold.learn(us(400)));
        assert!(threshold.current() >= us(400));
    }

    #[test]
    fn no_threshold_exceeds_the_maximum() {
        let mut threshold = ReleaseThreshold::new(COST, us(500));
        for _ in 0..500 {
            assert!(threshold.current() <= us(500));
            threshold.learn(us(490));
        }
    }

    #[test]
    fn edges_grow_by_the_fourth_root_of_two() {
        for bucket in 1..BUCKETS {
            let ratio = edge(bucket).as_nanos() * 10_000 / edge(bucket - 1).as_nanos();
            assert!((11_885..=11_900).contains(&ratio), "{bucket}: {ratio}");
        }
    }

    /// A program that stays in each phase for some gaps. Within a phase, gaps are drawn from a few
    /// lengths.
    fn phases() -> impl Strategy<Value = Vec<Vec<Duration>>> {
        let length = prop_oneof![1..200_u64, 200..3_000_u64, 3_000..60_000_u64];
        let phase =
            (prop::collection::vec(length, 1..4), 1..600_usize).prop_flat_map(|(lengths, gaps)| {
                prop::collection::vec(prop::sample::select(lengths), gaps)
            });
        let as_gaps = |phase: Vec<u64>| phase.into_iter().map(us).collect();
        prop::collection::vec(phase.prop_map(as_gaps), 1..6)
    }

    proptest! {
        #[test]
        fn it_costs_at_most_twice_the_best_fixed_threshold_and_64_gaps_for_each_phase(
            phases in phases()
        ) {
            let mut threshold = ReleaseThreshold::new(COST, MAX);
            let cost: u64 = phases.iter().map(|gaps| play(&mut threshold, gaps)).sum();
            let best: u64 = phases.iter().map(|gaps| best_fixed(gaps)).sum();
            let changes = phases.len() as u64 * u64::from(TRIAL) * COST.as_nanos();
            prop_assert!(cost <= best * 2 + changes, "{cost} > 2 * {best} + {changes}");
        }

        /// Whatever the gaps are: each use of a learnt threshold ends with at most the gap in which
        /// it cost too much.
        #[test]
        fn arbitrary_gaps_cost_at_most_twice_what_knowing_them_would(
            gaps in prop::collection::vec(0..100_000_u64, 0..2_000)
        ) {
            let gaps: Vec<Duration> = gaps.into_iter().map(us).collect();
            let mut threshold = ReleaseThreshold::new(COST, MAX);
            let cost = play(&mut threshold, &gaps);
            let known: u64 = gaps.iter().map(|gap| gap.min(&COST).as_nanos()).sum();
            let uses = gaps.len() as u64 / u64::from(TRIAL) + 1;
            // Gaps shorter than the shortest threshold cost no more than with that one.
            let last = uses * (MAX + COST).as_nanos();
            prop_assert!(cost <= known * 2 + last, "{cost} > 2 * {known} + {last}");
        }
    }
}
