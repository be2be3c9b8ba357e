//! The latency of the loop: iterations that began late, and those that took too long.

use gpreempt_core::time::Duration;

/// Counts iterations that began late, and tells whether the loop itself caused it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoopLatency {
    /// Iterations that began more than [`Self::LATE`] after they were due.
    pub(crate) late: u64,
    /// Iterations that began when the next one was due already.
    pub(crate) missed: u64,
    /// The longest delay.
    pub(crate) worst: Duration,
    /// Iterations that used more than an interval of CPU time, so the loop itself was too slow. The
    /// others were late because the machine did not wake the daemon, or ran another process.
    pub(crate) overrun: u64,
    /// The most CPU time of one iteration.
    pub(crate) busiest: Duration,
    /// The CPU time of this thread when the last iteration began.
    used: Option<Duration>,
}

impl LoopLatency {
    const LATE: Duration = Duration::from_millis(1);

    /// An iteration begins so long after it was due, in a loop with that interval.
    pub(crate) fn note(&mut self, late: Duration, interval: Duration) {
        self.late += u64::from(late > Self::LATE);
        self.missed += u64::from(late > interval);
        self.worst = self.worst.max(late);
    }

    /// An iteration begins when this thread has used so much CPU time since its start.
    pub(crate) fn begin(&mut self, used: Duration, interval: Duration) {
        let took = self.used.map_or(Duration::ZERO, |before| used.saturating_sub(before));
        self.used = Some(used);
        self.overrun += u64::from(took > interval);
        self.busiest = self.busiest.max(took);
    }
}

/// The CPU time of this thread since its start.
pub(crate) fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let whole = u64::try_from(used.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    Duration::from_nanos(whole.saturating_add(u64::try_from(used.tv_nsec).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_iteration_that_begins_an_interval_too_late_is_missed() {
        let mut latency = LoopLatency::default();
        let interval = Duration::from_millis(5);
        for late_us in [0, 1_000, 1_001, 5_000, 5_001] {
            latency.note(Duration::from_micros(late_us), interval);
        }
        let LoopLatency { late, missed, worst, .. } = latency;
        assert_eq!((late, missed, worst), (3, 1, Duration::from_micros(5_001)));
    }

    #[test]
    fn cpu_time_of_the_loop_is_counted_apart_from_its_waits() {
        let mut latency = LoopLatency::default();
        let interval = Duration::from_millis(5);
        // CPU time before the first iteration does not count.
        for used_us in [700_000, 700_010, 705_010, 710_011] {
            latency.begin(Duration::from_micros(used_us), interval);
        }
        let LoopLatency { overrun, busiest, .. } = latency;
        assert_eq!((overrun, busiest), (1, Duration::from_micros(5_001)));
    }
}
