//! Recognises a process whose requests come periodically (video frames, control loops, batching
//! ticks) and tells when to hold the device for the next one.
//!
//! ```text
//!  request              place the hold     expected            give up
//!     |---------------------|-----------------|-------------------|----> time
//!     |<------------------ period ----------->|
//!                           |<---- lead ----->|<---- jitter ----->|
//!                           |<---- at most a tenth of the period ->|
//! ```
//!
//! The lead is one switch, the jitter, which is at least the time between two samples, and half of
//! that time. A process with more jitter than fits, or whose idle time would cost the others more
//! than the switch costs the process, gets no predictions.

use crate::hold::HoldLimits;
use crate::time::{Duration, Instant};

/// Intervals between requests that are kept.
const INTERVALS: usize = 8;
/// Of these, so many may deviate by any amount: a frame may be dropped.
const OUTLIERS: usize = 1;
/// Rings are sampled this often, so a request is noticed up to this much late.
const SAMPLE: Duration = Duration::from_micros(100);
/// A hold is placed in a sample, which is that late on average.
const LATE: Duration = Duration::from_micros(50);
/// After so many misses in a row the process has to become periodic anew.
const MISSES_MAX: u32 = 3;
/// The part of a period for which the device waits at most.
const PART_OF_PERIOD: u64 = 10;

/// The arrivals of one process.
#[derive(Clone, Debug, Default)]
pub struct ArrivalPredictor {
    last: Option<Instant>,
    intervals: [Duration; INTERVALS],
    /// How many of them are known.
    known: usize,
    next: Option<ArrivalWindow>,
    /// Predictions since the last request that was predicted.
    misses: u32,
    /// The last 64 predictions: a bit each, set if a request came, the last one lowest.
    outcomes: u64,
    predictions: u32,
}

/// When the device is held for a request that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ArrivalWindow {
    begin: Instant,
    end: Instant,
    period: Duration,
}

impl ArrivalPredictor {
    /// The first submission of a request. A switch to its process takes `switch`.
    pub fn request_began(&mut self, now: Instant, limits: &HoldLimits, switch: Duration) {
        let skipped = core::mem::take(&mut self.misses);
        if let Some(window) = self.next.take() {
            let is_hit = window.begin <= now && now < window.end;
            self.note(is_hit);
            if !is_hit {
                self.misses = skipped + 1;
            }
        }
        if let Some(last) = self.last.replace(now) {
            let intervals = u64::from(skipped) + 1;
            self.intervals.rotate_right(1);
            self.intervals[0] = Duration::from_nanos(now.since(last).as_nanos() / intervals);
            self.known = (self.known + 1).min(INTERVALS);
        }
        if self.misses >= MISSES_MAX {
            self.known = 0;
            self.misses = 0;
        }
        self.next = self.window_after(now, limits, switch);
    }

    /// When to give up waiting, if the device is to be held now for a request that is expected.
    pub fn expects_until(&mut self, now: Instant) -> Option<Instant> {
        let window = self.next?;
        if now < window.end {
            return (window.begin <= now).then_some(window.end);
        }
        self.note(false);
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            *self =
                Self { outcomes: self.outcomes, predictions: self.predictions, ..Self::default() };
        } else {
            let (begin, end) = (window.begin + window.period, window.end + window.period);
            self.next = Some(ArrivalWindow { begin, end, ..window });
        }
        None
    }

    /// When [`Self::expects_until`] answers next.
    pub fn next_at(&self) -> Option<Instant> {
        self.next.map(|window| window.begin)
    }

    /// The part of the last 64 predictions for which a request came, in per cent. None while
    /// requests are not predicted.
    pub fn hit_percent(&self) -> Option<u32> {
        let count = self.predictions.min(u64::BITS);
        (self.next.is_some() && count > 0).then(|| self.outcomes.count_ones() * 100 / count)
    }

    fn note(&mut self, is_hit: bool) {
        self.outcomes = self.outcomes << 1 | u64::from(is_hit);
        self.predictions = self.predictions.saturating_add(1);
    }

    fn window_after(
        &self,
        now: Instant,
        limits: &HoldLimits,
        switch: Duration,
    ) -> Option<ArrivalWindow> {
        if self.known < INTERVALS {
            return None;
        }
        let mut sorted = self.intervals;
        sorted.sort_unstable();
        let median = sorted[INTERVALS / 2];
        let deviation = |interval: Duration| {
            Duration::from_nanos(interval.as_nanos().abs_diff(median.as_nanos()))
        };
        let mut deviations = self.intervals.map(deviation);
        deviations.sort_unstable();
        let usual = deviations[INTERVALS - 1 - OUTLIERS];
        let inliers = self.intervals.iter().filter(|&&interval| deviation(interval) <= usual);
        let (sum, count) =
            inliers.fold((0, 0), |(sum, count), interval| (sum + interval.as_nanos(), count + 1));
        let period = Duration::from_nanos(sum / count);
        // Each request was noticed at a sample, so its time is known no better.
        let jitter = usual.max(SAMPLE);
        let lead = switch + jitter + LATE;
        let wait_max = Duration::from_nanos(period.as_nanos() / PART_OF_PERIOD);
        let wait = (lead + jitter + SAMPLE).min(wait_max);
        // The others lose the lead; the process gains one switch, and its time counts more.
        let pays = lead < switch.times(u64::from(limits.latency_weight));
        if wait < lead + SAMPLE || !pays {
            return None;
        }
        let begin = now + period.saturating_sub(lead);
        Some(ArrivalWindow { begin, end: begin + wait, period })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SWITCH: Duration = Duration::from_micros(185);

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    /// What happened to a process with requests at these times, sampled every 100 us.
    #[derive(Debug, Default)]
    struct Outcome {
        requests: u32,
        hits: u32,
        /// Time spent waiting for requests.
        waited_us: u64,
        percent: Option<u32>,
    }

    fn run(requests: impl IntoIterator<Item = u64>) -> Outcome {
        let mut predictor = ArrivalPredictor::default();
        let limits = HoldLimits::default();
        let (mut outcome, mut now) = (Outcome::default(), 0);
        for request in requests {
            let mut waits = false;
            while now < request {
                now += 100;
                waits = predictor.expects_until(at(now)).is_some();
                outcome.waited_us += if waits { 100 } else { 0 };
            }
            outcome.requests += 1;
            outcome.hits += u32::from(waits);
            predictor.request_began(at(now), &limits, SWITCH);
        }
        outcome.percent = predictor.hit_percent();
        outcome
    }

    /// A number from 0 to `end`, the same in every run.
    fn noise(index: u64, end: u64) -> u64 {
        (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % end
    }

    #[test]
    fn periodic_requests_are_expected() {
        for period in [5_000, 7_770, 16_667, 100_000] {
            let outcome = run((1..=500).map(|index| index * period));
            assert!(outcome.hits + 10 >= outcome.requests, "{period}: {outcome:?}");
            assert!(outcome.waited_us * 10 <= 500 * period, "{period}: {outcome:?}");
            assert_eq!(outcome.percent, Some(100), "{period}");
        }
    }

    #[test]
    fn a_little_jitter_and_dropped_frames_do_not_matter() {
        let outcome = run((1..=500).map(|index| index * 16_667 + noise(index, 200)));
        assert!(outcome.hits * 10 >= outcome.requests * 9, "{outcome:?}");
        let frames = (1..=500).filter(|index| index % 40 != 0).map(|index| index * 16_667);
        let outcome = run(frames);
        assert!(outcome.hits * 10 >= outcome.requests * 9, "{outcome:?}");
    }

    #[test]
    fn what_is_too_frequent_to_pay_or_not_periodic_is_not_expected() {
        assert_eq!(run((1..=500).map(|index| index * 2_000)).hits, 0);
        let random = run((1..=500).scan(0, |now, index| {
            *now += 1_000 + noise(index, 8_000);
            Some(*now)
        }));
        assert!(random.waited_us < 10_000 && random.percent.is_none(), "{random:?}");
    }

    #[test]
    fn after_three_misses_nothing_is_expected() {
        let mut predictor = ArrivalPredictor::default();
        for index in 1..=20_u64 {
            predictor.request_began(at(index * 10_000), &HoldLimits::default(), SWITCH);
        }
        let mut waited = 0;
        for now in (200_000..1_000_000).step_by(100) {
            waited += u32::from(predictor.expects_until(at(now)).is_some());
        }
        assert!((1..=3 * 5).contains(&waited), "{waited} samples");
        assert_eq!(predictor.next_at(), None);
        assert_eq!(predictor.hit_percent(), None);
    }

    proptest! {
        /// Whatever the requests are, the device waits for at most a tenth of the time, and three
        /// windows after the last.
        #[test]
        fn waiting_takes_at_most_a_tenth_of_the_time(
            intervals in prop::collection::vec(
                prop_oneof![Just(5_000), Just(10_000), 1_100..40_000_u64], 1..300
            )
        ) {
            let times = intervals.iter().scan(0, |now, interval| {
                *now += interval;
                Some(*now)
            });
            let outcome = run(times);
            let total: u64 = intervals.iter().sum();
            prop_assert!(outcome.waited_us * 10 <= total + 30_000, "{outcome:?} of {total}");
        }
    }
}
