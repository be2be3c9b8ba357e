//! A client that asks no faster than the daemon allows: it waits a little instead of being thrown
//! out for a flood.

use std::thread::sleep;
use std::time::{Duration, Instant};

use gpreempt_core::time::Instant as CoreInstant;

use crate::server::Limits;
use crate::token_bucket::TokenBucket;

/// How long to wait for the next token: less than the time in which one comes.
const NAP: Duration = Duration::from_micros(200);

/// What a session may still send.
#[derive(Debug)]
pub(super) struct Pace {
    begun: Instant,
    bucket: TokenBucket,
}

impl Pace {
    /// A session that begins now. The daemon's bucket has more room than this one, so that
    /// packets that come to it all at once still fit.
    pub(super) fn new() -> Self {
        let Limits { packets_burst, packets_per_second, .. } = Limits::default();
        let [burst, rate] = [packets_burst, packets_per_second].map(|limit| limit / 5 * 4);
        Self { begun: Instant::now(), bucket: TokenBucket::new(burst, rate, CoreInstant::ZERO) }
    }

    /// Returns when one more packet may be sent.
    pub(super) fn wait(&mut self) {
        while !self.take() {
            sleep(NAP);
        }
    }

    fn take(&mut self) -> bool {
        let elapsed = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.bucket.take(CoreInstant::from_nanos(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_does_not_flood() {
        let limits = Limits::default();
        let mut daemon =
            TokenBucket::new(limits.packets_burst, limits.packets_per_second, CoreInstant::ZERO);
        let mut pace = Pace::new();
        for packet in 0..limits.packets_burst * 2 {
            pace.wait();
            let now = u64::try_from(pace.begun.elapsed().as_nanos()).unwrap();
            assert!(daemon.take(CoreInstant::from_nanos(now)), "packet {packet}");
        }
    }
}
