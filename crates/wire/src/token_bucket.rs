//! A rate limit: a number of events at once, and a number of events per second.

use gpreempt_core::time::{Duration, Instant};

/// A token bucket. Time is an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    burst: u32,
    per_second: u32,
    tokens: u32,
    /// The time up to which tokens were added.
    filled: Instant,
}

impl TokenBucket {
    /// A full bucket: `burst` tokens, and `per_second` new ones every second.
    pub const fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        Self { burst, per_second, tokens: burst, filled: now }
    }

    /// Takes a token if there is one. A clock that goes back adds no tokens.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let taken = self.tokens.checked_sub(1);
        self.tokens = taken.unwrap_or(0);
        taken.is_some()
    }

    fn fill(&mut self, now: Instant) {
        const SECOND_NS: u64 = 1_000_000_000;
        let rate = u64::from(self.per_second);
        let waited_ns = now.since(self.filled).as_nanos();
        let Some(new) = waited_ns.checked_mul(rate).map(|tokens_ns| tokens_ns / SECOND_NS) else {
            // After so long the bucket is full.
            self.tokens = self.burst;
            self.filled = now;
            return;
        };
        let missing = u64::from(self.burst - self.tokens);
        if new >= missing {
            self.tokens = self.burst;
            // Time beyond a full bucket adds no tokens.
            self.filled = self.filled.max(now);
        } else if new > 0 {
            // The remainder of the division stays, or frequent calls would lower the rate.
            self.filled += Duration::from_nanos(new * SECOND_NS / rate);
            // PANIC: fewer than are missing.
            self.tokens += u32::try_from(new).expect("fewer tokens than the bucket holds");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_burst_passes_and_then_one_at_a_time() {
        let mut bucket = TokenBucket::new(3, 10, at_ms(0));
        assert_eq!([0; 4].map(|_| bucket.take(at_ms(0))), [true, true, true, false]);
        assert!(!bucket.take(at_ms(99)));
        assert!(bucket.take(at_ms(100)));
        assert!(!bucket.take(at_ms(199)));
        assert!(bucket.take(at_ms(200)));
    }

    #[test]
    fn a_long_wait_fills_the_bucket_and_no_more() {
        for wait in [at_ms(10_000), Instant::MAX] {
            let mut bucket = TokenBucket::new(2, u32::MAX, at_ms(0));
            assert!(bucket.take(at_ms(0)) && bucket.take(at_ms(0)));
            assert_eq!([0; 3].map(|_| bucket.take(wait)), [true, true, false]);
        }
    }

    #[test]
    fn frequent_calls_do_not_change_the_rate() {
        let mut bucket = TokenBucket::new(1, 1000, at_ms(0));
        let passed = (0..1_000_000).filter(|us| bucket.take(Instant::from_nanos(us * 1000)));
        assert_eq!(passed.count(), 1000);
    }

    #[test]
    fn a_clock_that_goes_back_adds_no_tokens() {
        let mut bucket = TokenBucket::new(1, 1000, at_ms(1000));
        assert!(bucket.take(at_ms(1000)));
        assert!(!bucket.take(at_ms(0)));
        assert!(!bucket.take(at_ms(1000)));
        assert!(bucket.take(at_ms(1001)));
    }

    #[test]
    fn a_bucket_that_never_fills_stays_empty() {
        let mut bucket = TokenBucket::new(1, 0, at_ms(0));
        assert!(bucket.take(at_ms(1)));
        assert!(!bucket.take(Instant::MAX));
        assert!(!TokenBucket::new(0, 5, at_ms(0)).take(Instant::MAX));
    }
}
