//! The best-effort load loop: keeps a device's queue full and counts what completes.
//!
//! The loop never waits inside a driver, because the rate of a queue that is preempted must be
//! reported as zero, not left out. The device is behind [`LaunchQueue`]: a CUDA stream
//! (`best_effort`) or a ring of the emulated GPU (`emulated`).

use std::time::Duration;

use crate::clock::Clock;
use crate::failure::Failure;
use crate::lines::{Total, Window};
use crate::stop::Stop;

/// The longest wait without checking whether a signal or the runner ended the load.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// A queue of a device with a fixed number of launch slots, which are used in turn.
pub(crate) trait LaunchQueue {
    /// Submits a work item into a free slot.
    fn submit(&mut self, slot: usize) -> Result<(), Failure>;

    fn is_complete(&mut self, slot: usize) -> Result<bool, Failure>;

    /// Waits until the item in `slot` may be complete, but at most `max`.
    fn wait(&mut self, slot: usize, max: Duration) -> Result<(), Failure>;
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipeline {
    /// Work items in flight.
    pub(crate) depth: usize,
    /// How long new items are submitted.
    pub(crate) seconds: u64,
    /// Length of the window of one rate line.
    pub(crate) report_ms: u64,
    /// How long items in flight may take after the end.
    pub(crate) drain: Duration,
}

impl Pipeline {
    /// Runs until the time is over or `stop` is set, then until all items are complete or the
    /// time to drain is over.
    pub(crate) fn run(
        self,
        queue: &mut impl LaunchQueue,
        clock: &impl Clock,
        stop: &Stop,
        mut report: impl FnMut(Window) -> Result<(), Failure>,
    ) -> Result<Total, Failure> {
        let from_ns = clock.now_ns();
        let mut end = from_ns + self.seconds * 1_000_000_000;
        let every = self.report_ms * 1_000_000;
        let mut window = Window { from_ns, until_ns: from_ns + every, count: 0, total: 0 };
        let (mut submitted, mut completed) = (0u64, 0u64);
        let mut until_ns = from_ns;
        loop {
            let now = clock.now_ns();
            if stop.is_asked() {
                end = end.min(now);
            }
            if now >= window.until_ns && now < end {
                let count = completed - window.total;
                report(Window { until_ns: now, count, total: completed, ..window })?;
                // Late reports do not make later ones late.
                let until_ns = window.until_ns + (now - window.until_ns) / every * every + every;
                window = Window { from_ns: now, until_ns, count: 0, total: completed };
            }
            if completed < submitted && queue.is_complete(self.slot(completed))? {
                completed += 1;
                until_ns = clock.now_ns();
            } else if now < end && submitted - completed < self.depth as u64 {
                queue.submit(self.slot(submitted))?;
                submitted += 1;
            } else {
                let is_drained = completed == submitted;
                let late = Duration::from_nanos(now.saturating_sub(end));
                if now >= end && (is_drained || late > self.drain) {
                    return Ok(Total { from_ns, until_ns, count: completed, is_drained });
                }
                let next = if now < end { end.min(window.until_ns) } else { u64::MAX };
                let max = Duration::from_nanos(next.saturating_sub(now)).min(WAIT_MAX);
                queue.wait(self.slot(completed), max)?;
            }
        }
    }

    fn slot(self, item: u64) -> usize {
        // PANIC: a remainder of a usize fits one.
        usize::try_from(item % self.depth as u64).expect("a slot")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::testing::FakeClock;

    /// One item after the other, 1 ms each, and none at all while the queue is preempted.
    struct FakeQueue<'a> {
        clock: &'a FakeClock,
        complete_at: Vec<u64>,
        free_at: u64,
        preempted: std::ops::Range<u64>,
        in_flight: i64,
    }

    const MS: u64 = 1_000_000;

    impl<'a> FakeQueue<'a> {
        fn new(clock: &'a FakeClock, depth: usize, preempted: std::ops::Range<u64>) -> Self {
            Self { clock, complete_at: vec![0; depth], free_at: 0, preempted, in_flight: 0 }
        }
    }

    impl LaunchQueue for FakeQueue<'_> {
        fn submit(&mut self, slot: usize) -> Result<(), Failure> {
            assert_eq!(self.complete_at[slot], 0, "the slot is in use");
            let mut complete_at = self.free_at.max(self.clock.time()).saturating_add(MS);
            if self.preempted.contains(&complete_at) {
                complete_at = self.preempted.end.saturating_add(MS);
            }
            self.free_at = complete_at;
            self.complete_at[slot] = complete_at;
            self.in_flight += 1;
            Ok(())
        }

        fn is_complete(&mut self, slot: usize) -> Result<bool, Failure> {
            let is_complete = self.complete_at[slot] <= self.clock.time();
            if is_complete {
                self.complete_at[slot] = 0;
                self.in_flight -= 1;
            }
            Ok(is_complete)
        }

        fn wait(&mut self, _slot: usize, _max: Duration) -> Result<(), Failure> {
            self.clock.pause(10_000);
            Ok(())
        }
    }

    const PIPELINE: Pipeline =
        Pipeline { depth: 4, seconds: 1, report_ms: 100, drain: Duration::from_secs(30) };

    #[test]
    fn an_undisturbed_queue_completes_everything_at_its_own_rate() {
        let clock = FakeClock::ticking();
        let mut queue = FakeQueue::new(&clock, 4, 0..0);
        let mut windows = Vec::new();
        let total = PIPELINE
            .run(&mut queue, &clock, &Stop::default(), |window| {
                windows.push(window);
                Ok(())
            })
            .unwrap();
        assert!(total.is_drained && queue.in_flight == 0);
        assert!((1000..=1004).contains(&total.count), "{total:?}");
        assert_eq!(windows.len(), 9, "the window that ends with the load is in the total");
        assert!(windows.iter().all(|window| (98..=102).contains(&window.count)), "{windows:?}");
        for pair in windows.windows(2) {
            assert_eq!(pair[1].from_ns, pair[0].until_ns);
            assert_eq!(pair[1].total, pair[0].total + pair[1].count);
        }
    }

    #[test]
    fn a_preempted_queue_reports_a_rate_of_zero() {
        let clock = FakeClock::ticking();
        let mut queue = FakeQueue::new(&clock, 4, 300 * MS..600 * MS);
        let mut counts = Vec::new();
        let total = PIPELINE
            .run(&mut queue, &clock, &Stop::default(), |window| {
                counts.push(window.count);
                Ok(())
            })
            .unwrap();
        assert_eq!(counts[3..6], [0, 0, 0], "{counts:?}");
        assert!(counts[6] > 90 && total.is_drained);
    }

    #[test]
    fn a_queue_that_never_completes_ends_the_load_after_the_time_to_drain() {
        let clock = FakeClock::ticking();
        let mut queue = FakeQueue::new(&clock, 4, 500 * MS..u64::MAX);
        let total = PIPELINE.run(&mut queue, &clock, &Stop::default(), |_| Ok(())).unwrap();
        assert!(!total.is_drained);
        assert!((495..=500).contains(&total.count), "{total:?}");
        assert!(clock.time() < 32_000 * MS);
    }

    #[test]
    fn a_signal_ends_the_submissions_and_the_count_includes_every_item() {
        let clock = FakeClock::ticking();
        let mut queue = FakeQueue::new(&clock, 4, 0..0);
        let stop = Stop::default();
        let mut reports = 0;
        let total = PIPELINE
            .run(&mut queue, &clock, &stop, |_| {
                reports += 1;
                stop.ask();
                Ok(())
            })
            .unwrap();
        assert_eq!(reports, 1);
        assert!(total.is_drained && queue.in_flight == 0);
        assert!((100..=105).contains(&total.count), "{total:?}");
    }
}
