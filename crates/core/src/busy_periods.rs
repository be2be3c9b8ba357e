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
//!
//! Not all time off the engine is lost. A program that submits ahead of the device (eager PyTorch)
//! is not slowed while it keeps submitting: the device executes what has piled up faster than the
//! program submitted it. Time off is lost when the program waits:
//!
//! ```text
//!   engine    on |     off      |     on              on              on
//!   program   submits ......... | submits ......      waits ...       submits, all is fetched
//!   time off                 deferred                 lost: as long   after a while no longer
//!                                                     as it waits     deferred
//! ```
//!
//! What is deferred is also caught up when the context leaves the engine before its slice is over.
//! Lost time is not less than what the program waits longer than alone, as far as samples show when
//! it submits. What is not caught up within 20 ms is lost too.

use crate::time::{Duration, Instant};

/// What a sample says of the time since the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineSample {
    /// The context has work, as far as that is known.
    pub has_work: bool,
    /// It was off the engine.
    pub is_off: bool,
    /// Submitted work waits to be fetched.
    pub is_pending: bool,
    /// The engine may switch to another context when this one has no work: it is not held.
    pub may_yield: bool,
}

/// A context without work for longer than that has finished its request, unless it is held: then
/// its hold lasts for as long as more work is expected.
pub const GAP_MAX: Duration = Duration::from_micros(1_500);

/// Sums are reported after this much busy time, which is what a choice of slices needs.
pub const REPORT_BUSY: Duration = Duration::from_millis(5);
/// And of a context with less work this often.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// A program that submitted between two samples did not wait for so much of the time between them.
const AHEAD_MAX: Duration = Duration::from_micros(200);
/// The device has caught up with a program that submitted for so long without any of it waiting to
/// be fetched, and for three times as long as the deferred time: what piled up meanwhile then has
/// been executed if the program alone occupies up to three quarters of the device. Hardware fetches
/// some work ahead of executing it, so rings alone do not tell.
const CAUGHT_UP_AFTER: Duration = Duration::from_micros(500);
const CAUGHT_UP_TIMES: u64 = 3;
/// Off the engine, a context may have work that was fetched and does not show. A period does not
/// end then, unless it takes this long.
const OFF_MAX: Duration = Duration::from_millis(20);
/// A context that may yield and leaves the engine after less than this has no work left: every
/// slice of a plan without holds is longer.
const YIELDED_MAX: Duration = Duration::from_micros(1_500);
/// Deferred time is lost if the device has not caught up after that.
const DEFERRED_MAX: Duration = Duration::from_millis(20);

/// The time off the engine during which the program submitted more, and may not notice it.
#[derive(Clone, Copy, Debug, Default)]
struct DeferredTime {
    length: Duration,
    since: Instant,
    /// The last time between two samples, which is deferred if the program submits in the next too.
    /// A program that waits for each kernel submits once and then waits.
    candidate: Duration,
    /// For how long nothing that was submitted has waited.
    caught_up: Duration,
    /// How long the context has been on the engine.
    on_engine: Duration,
}

impl DeferredTime {
    /// Takes in the time between two samples of a busy period. Returns how much is lost.
    fn take(
        &mut self,
        now: Instant,
        passed: Duration,
        sample: EngineSample,
        has_submitted: bool,
    ) -> Duration {
        let candidate = core::mem::take(&mut self.candidate);
        if sample.is_off {
            let on_engine = core::mem::take(&mut self.on_engine);
            if sample.may_yield && !on_engine.is_zero() && on_engine < YIELDED_MAX {
                self.length = Duration::ZERO;
            }
            self.caught_up = Duration::ZERO;
            if !has_submitted {
                return passed + candidate + self.expired(now);
            }
            if self.length.is_zero() {
                self.since = now;
            }
            self.length += candidate;
            self.candidate = passed.min(AHEAD_MAX);
            return passed.saturating_sub(self.candidate) + self.expired(now);
        }
        self.on_engine += passed;
        let mut lost = candidate;
        if has_submitted && !candidate.is_zero() {
            if self.length.is_zero() {
                self.since = now;
            }
            self.length += core::mem::take(&mut lost);
        }
        lost + self.take_on_engine(now, passed, sample, has_submitted)
    }

    fn take_on_engine(
        &mut self,
        now: Instant,
        passed: Duration,
        sample: EngineSample,
        has_submitted: bool,
    ) -> Duration {
        if self.length.is_zero() {
            return Duration::ZERO;
        }
        if !has_submitted {
            let lost = passed.min(self.length);
            self.length = self.length.saturating_sub(lost);
            return lost;
        }
        if sample.is_pending {
            self.caught_up = Duration::ZERO;
        } else {
            self.caught_up += passed;
            if self.caught_up >= CAUGHT_UP_AFTER.max(self.length.times(CAUGHT_UP_TIMES)) {
                self.length = Duration::ZERO;
            }
        }
        self.expired(now)
    }

    fn expired(&mut self, now: Instant) -> Duration {
        if now.since(self.since) < DEFERRED_MAX {
            return Duration::ZERO;
        }
        core::mem::take(&mut self.length)
    }
}

/// The busy periods of one context.
#[derive(Clone, Debug, Default)]
pub struct BusyPeriods {
    sampled_at: Option<Instant>,
    /// The packets that were submitted until then.
    sampled_packets: u64,
    deferred: DeferredTime,
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
    /// How long of that the program waited for it.
    pub lost: Duration,
    /// The packets that were submitted meanwhile.
    pub packets: u64,
}

impl BusyTime {
    /// The length without the time off the engine.
    const fn without_off(self) -> Duration {
        self.busy.saturating_sub(self.off)
    }

    fn add(&mut self, more: Self) {
        self.busy += more.busy;
        self.off += more.off;
        self.lost += more.lost;
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
        let has_submitted = core::mem::replace(&mut self.sampled_packets, packets) != packets;
        if sample.has_work || self.is_in_period {
            let lost = self.deferred.take(now, passed, sample, has_submitted);
            self.tail.add(BusyTime { busy: passed, off, lost, packets: 0 });
        }
        if sample.has_work {
            self.is_in_period = true;
            self.sum.add(core::mem::take(&mut self.tail));
        } else if self.tail.without_off() > gap_max || self.tail.off > OFF_MAX {
            self.is_in_period = false;
            self.tail = BusyTime::default();
            self.deferred = DeferredTime::default();
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

    use proptest::prelude::*;

    use super::*;

    const IDLE: EngineSample =
        EngineSample { has_work: false, is_off: false, is_pending: false, may_yield: false };
    const WORK: EngineSample = EngineSample { has_work: true, ..IDLE };
    const OFF: EngineSample = EngineSample { is_off: true, ..WORK };
    const OFF_IDLE: EngineSample = EngineSample { is_off: true, ..IDLE };
    const GAP: Duration = Duration::from_millis(2);

    /// Each sample is that of 1 ms. Returns the sums of all reports, in ms.
    fn sums(samples: &[EngineSample]) -> (u64, u64) {
        let mut periods = BusyPeriods::default();
        let mut sum = BusyTime::default();
        let all = [&[IDLE], samples, &[IDLE; 200]].concat();
        for (sample, ms) in all.into_iter().zip(1..) {
            if let Some(time) = periods.take(Instant::from_nanos(ms * 1_000_000), sample, GAP, 0) {
                sum.add(time);
            }
        }
        assert_eq!(sum.lost, sum.off, "the program submits nothing meanwhile");
        (sum.busy.as_micros() / 1_000, sum.off.as_micros() / 1_000)
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

    /// A program that submits kernels and waits for the last one of each token, beside others that
    /// interrupt it.
    #[derive(Clone, Copy, Debug)]
    struct Program {
        /// Between two submissions, in us.
        submit: u64,
        /// A kernel, in us.
        kernel: u64,
        /// Kernels of a token.
        kernels: u64,
        tokens: u64,
        /// Time on and off the engine, in us.
        on: u64,
        off: u64,
        /// Whether the engine switches to others also when it has no work.
        yields: bool,
    }

    /// Kernels that hardware fetches before it executes them.
    const FETCHED_AHEAD: u64 = 16;

    /// Runs a program in steps of a microsecond, with a sample every 100. Returns how long it took
    /// and what was measured, in us.
    fn run(program: Program) -> (u64, BusyTime) {
        let Program { submit, kernel, kernels, tokens, on, off, yields } = program;
        let (mut periods, mut sum) = (BusyPeriods::default(), BusyTime::default());
        let (mut submitted, mut fetched, mut executed_us) = (0, 0, 0);
        let (mut next_at, mut moved_at, mut us, mut was_off) = (0, 0, 0, false);
        let mut in_cycle = 0;
        while executed_us < kernels * tokens * kernel {
            if yields && off > 0 && in_cycle < on && executed_us == submitted * kernel {
                in_cycle = on;
            }
            let is_off = in_cycle >= on && off > 0;
            in_cycle = (in_cycle + 1) % (on + off);
            was_off |= is_off;
            let executed = executed_us / kernel;
            let waits = submitted % kernels == 0 && executed < submitted;
            if submitted < kernels * tokens && us >= next_at && !waits {
                (submitted, next_at, moved_at) = (submitted + 1, us + submit, us);
            }
            if !is_off {
                executed_us += u64::from(executed_us < submitted * kernel);
                let may_fetch = submitted.min(executed + FETCHED_AHEAD);
                if may_fetch > fetched {
                    (fetched, moved_at) = (may_fetch, us);
                }
            }
            us += 1;
            if us % 100 == 0 {
                let is_pending = submitted > fetched;
                let has_work = is_pending || us - moved_at < 300;
                let sample = EngineSample {
                    has_work,
                    is_off: was_off && is_off,
                    is_pending,
                    may_yield: yields,
                };
                was_off = is_off;
                let reported =
                    periods.take(Instant::from_nanos(us * 1_000), sample, GAP, submitted);
                sum.add(reported.unwrap_or_default());
            }
        }
        sum.add(periods.sum);
        sum.add(periods.tail);
        // What is deferred at the end would be lost or caught up later.
        sum.lost += periods.deferred.length + periods.deferred.candidate;
        (us, sum)
    }

    /// How much longer a program takes for its interruptions, and what was measured, in us.
    fn slowed(program: Program) -> (u64, u64, u64) {
        let (alone, _) = run(Program { off: 0, ..program });
        let (beside, time) = run(program);
        (beside - alone, time.lost.as_micros(), time.off.as_micros())
    }

    /// An eager decoder: 250 kernels of 4 us for each token, submitted in 4 ms.
    const EAGER: Program = Program {
        submit: 16,
        kernel: 4,
        kernels: 250,
        tokens: 50,
        on: 8_000,
        off: 1_400,
        yields: false,
    };

    #[test]
    fn a_program_that_runs_ahead_loses_only_what_it_waits_for() {
        let (delay, lost, off) = slowed(EAGER);
        assert!(off > 25_000 && delay < off / 3 * 2, "{delay} {off}");
        assert!(delay <= lost && lost < off / 4 * 3, "{delay} {lost} {off}");
    }

    #[test]
    fn a_program_that_yields_in_its_gaps_loses_only_what_it_waits_for() {
        for off_each in [700, 1_400] {
            let open = Program { off: off_each, yields: true, ..EAGER };
            let (delay, lost, off) = slowed(open);
            assert!(off > 100_000 && delay < off / 2, "{delay} {off}");
            assert!(lost < off / 2 && lost + 5_000 > delay, "{delay} {lost} {off}");
        }
    }

    #[test]
    fn a_program_that_waits_for_each_kernel_loses_all_time_off_the_engine() {
        let waiting = Program { kernels: 1, submit: 30, kernel: 20, tokens: 5_000, ..EAGER };
        let (delay, lost, off) = slowed(waiting);
        assert_eq!(lost, off);
        assert!(lost.abs_diff(delay) < delay / 5, "{delay} {lost}");
    }

    #[test]
    fn a_program_that_the_engine_limits_loses_all_time_off_it() {
        let limited = Program { submit: 10, kernel: 60, kernels: 100, tokens: 40, ..EAGER };
        let (delay, lost, off) = slowed(limited);
        assert!(lost * 10 > delay * 9 && lost <= off, "{delay} {lost} {off}");
    }

    proptest! {
        /// Whatever the program and its interruptions, if it alone occupies up to three quarters of
        /// the device or all of it. Of each interruption and each wait, samples miss less
        /// than two of theirs.
        #[test]
        fn no_less_is_lost_than_the_program_waits_longer(
            submit in 5..60_u64,
            kernel in 2..80_u64,
            kernels in 1..300_u64,
            on in 2_000..10_000_u64,
            off in 200..3_000_u64,
            yields in any::<bool>(),
        ) {
            prop_assume!(kernel * 4 <= submit * 3 || kernel >= submit);
            let tokens = (200_000 / (submit.max(kernel) * kernels)).max(1);
            let (delay, lost, off_total) =
                slowed(Program { submit, kernel, kernels, tokens, on, off, yields });
            let unseen = 200 * (off_total / off + 1 + tokens);
            prop_assert!(lost + unseen >= delay.min(off_total), "{lost} {delay} {off_total}");
            prop_assert!(lost <= off_total, "{lost} {off_total}");
        }
    }
}
