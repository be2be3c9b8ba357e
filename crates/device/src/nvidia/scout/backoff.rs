//! When to look again.

use std::time::{Duration, Instant};

/// When to look again: soon at first, then ever more rarely.
#[derive(Debug)]
pub(super) struct Backoff {
    pub(super) at: Instant,
    wait: Duration,
}

impl Backoff {
    pub(super) const WAIT_MIN: Duration = Duration::from_millis(50);
    pub(super) const WAIT_UNSURE: Duration = Duration::from_millis(400);
    pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);

    pub(super) fn new(now: Instant) -> Self {
        Self { at: now + Self::WAIT_MIN, wait: Self::WAIT_MIN }
    }

    /// Something may have changed. However often that is said, looks are `WAIT_MIN` apart.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.wait = Self::WAIT_MIN;
        self.at = self.at.min(now + Self::WAIT_MIN);
    }

    pub(super) fn looked(&mut self, now: Instant, wait_max: Duration) {
        self.at = now + self.wait.min(wait_max);
        self.wait = (self.wait * 2).min(wait_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_become_rarer_until_something_happens() {
        let begin = Instant::now();
        let mut backoff = Backoff::new(begin);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let now = backoff.at;
            backoff.looked(now, Backoff::WAIT_MAX);
            waits.push((backoff.at - now).as_millis());
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        let now = backoff.at;
        backoff.looked(now, Duration::from_millis(700));
        assert_eq!(backoff.at - now, Duration::from_millis(700));
        backoff.at = now + Duration::from_millis(4000);
        backoff.hurry(now);
        assert_eq!(backoff.at, now + Backoff::WAIT_MIN);
        backoff.hurry(now + Duration::from_millis(10));
        assert_eq!(backoff.at, now + Backoff::WAIT_MIN, "hurrying does not postpone");
    }
}
