//! How long a context was busy, and how long of that it had work but was off the engine.
//!
//! ```text
//!   off    on        idle   on           idle ...
//!  |-----|--------|......|--------|...................> time
//!  |<------- busy period -------->|
//! ```
//!
//! A busy period is a request: it begins with work and ends with the last of it. Idle time within
//! it is the program's own. A hold watcher takes a sample every 100 us, and reports sums.

use crate::time::{Duration, Instant};

/// What a sample says of the time since the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineSample {
    /// The context has work, as far as that is known.
    pub has_work: bool,
    /// It was off the engine.
    pub is_off: bool,
}

/// A context without work for longer than that has finished its request, unless it is held: then
/// its hold lasts for as long as more work is expected.
pub const GAP_MAX: Duration = Duration::from_micros(1_500);

/// Sums are reported after this much busy time, which is what a choice of slices needs.
pub const REPORT_BUSY: Duration = Duration::from_millis(5);
/// And of a context with less work this often.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The busy periods of one context.
#[derive(Clone, Debug, Default)]
pub struct BusyPeriods {
    sampled_at: Option<Instant>,
    is_in_period: bool,
    /// Since the last work: part of the period if there is more.
    tail: BusyTime,
    sum: BusyTime,
    reported_at: Instant,
    /// The packets that were submitted until then.
    reported_packets: u64,
}

/// A length of busy periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BusyTime {
    /// The length.
    pub busy: Duration,
    /// How long of that the context was off the engine.
    pub off: Duration,
    /// The packets that were submitted meanwhile.
    pub packets: u64,
}

impl BusyTime {
    fn add(&mut self, more: Self) {
        self.busy += more.busy;
        self.off += more.off;
        self.packets += more.packets;
    }
}

impl BusyPeriods {
    /// Takes in a sample of a context whose requests have gaps of at most `gap_max`, and which has
    /// submitted that many packets. Returns the sums since the last report when a report is due.
    pub fn take(
        &mut self,
        now: Instant,
        sample: EngineSample,
        gap_max: Duration,
        packets: u64,
    ) -> Option<BusyTime> {
        let passed = self.sampled_at.replace(now).map_or(Duration::ZERO, |at| now.since(at));
        let off = if sample.is_off { passed } else { Duration::ZERO };
        if sample.has_work || self.is_in_period {
            self.tail.add(BusyTime { busy: passed, off, packets: 0 });
        }
        if sample.has_work {
            self.is_in_period = true;
            self.sum.add(core::mem::take(&mut self.tail));
        } else if self.tail.busy > gap_max {
            self.is_in_period = false;
            self.tail = BusyTime::default();
        }
        let is_due = self.sum.busy >= REPORT_BUSY || now.since(self.reported_at) >= REPORT_EVERY;
        (is_due && !self.sum.busy.is_zero()).then(|| {
            self.reported_at = now;
            let before = core::mem::replace(&mut self.reported_packets, packets);
            BusyTime { packets: packets.saturating_sub(before), ..core::mem::take(&mut self.sum) }
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const WORK: EngineSample = EngineSample { has_work: true, is_off: false };
    const OFF: EngineSample = EngineSample { has_work: true, is_off: true };
    const IDLE: EngineSample = EngineSample { has_work: false, is_off: false };
    const OFF_IDLE: EngineSample = EngineSample { has_work: false, is_off: true };
    const GAP: Duration = Duration::from_millis(2);

    /// Each sample is that of 1 ms. Returns the sums of all reports, in ms.
    fn sums(samples: &[EngineSample]) -> (u64, u64) {
        let mut periods = BusyPeriods::default();
        let (mut busy, mut off) = (0, 0);
        let all = [&[IDLE], samples, &[IDLE; 200]].concat();
        for (sample, ms) in all.into_iter().zip(1..) {
            if let Some(time) = periods.take(Instant::from_nanos(ms * 1_000_000), sample, GAP, 0) {
                busy += time.busy.as_micros();
                off += time.off.as_micros();
            }
        }
        (busy / 1_000, off / 1_000)
    }

    #[test]
    fn gaps_belong_to_a_period_and_what_follows_it_does_not() {
        assert_eq!(sums(&[OFF, OFF, WORK, IDLE, WORK]), (5, 2));
        assert_eq!(sums(&[WORK, IDLE, IDLE, IDLE, WORK]), (2, 0));
        assert_eq!(sums(&[]), (0, 0));
        // Off the engine between two kernels counts if there is a second one.
        assert_eq!(sums(&[WORK, OFF_IDLE, WORK]), (3, 1));
        assert_eq!(sums(&[WORK, OFF_IDLE]), (1, 0));
    }

    #[test]
    fn long_periods_are_reported_while_they_last() {
        let mut periods = BusyPeriods::default();
        let report = |ms: u64| periods.take(Instant::from_nanos(ms * 1_000_000), WORK, GAP, 3 * ms);
        let reports: Vec<BusyTime> = (1..=100).filter_map(report).collect();
        assert_eq!((reports.len(), reports[9].packets), (19, 15));
    }
}
