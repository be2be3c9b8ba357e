//! The clocks of a load: `CLOCK_MONOTONIC`, by which everything is measured, and the clock of a
//! CUDA device, whose times are converted to it.
//!
//! The two run at slightly different speeds, so they are compared before and after a measurement,
//! and times between are interpolated.

use std::time::Duration;

use gpreempt_device::keeper::monotonic_ns;

use crate::cuda::{Context, Event, HostMemory, Stream};
use crate::failure::Failure;
use crate::kernels::Kernel;
use crate::workload::{Workload, WorkloadSpec};

pub(crate) trait Clock {
    /// How long before its end a wait stops sleeping and spins.
    const SPIN: Duration;

    /// Nanoseconds since an epoch that never changes while the program runs.
    fn now_ns(&self) -> u64 {
        monotonic_ns()
    }

    /// Returns at that time; at once if it has passed.
    fn wait_until(&self, ns: u64) {
        let left = Duration::from_nanos(ns.saturating_sub(self.now_ns()));
        if let Some(asleep) = left.checked_sub(Self::SPIN) {
            std::thread::sleep(asleep);
        }
        while self.now_ns() < ns {
            std::hint::spin_loop();
        }
    }

    /// Keeps the processor busy for that long, as a program does between kernels.
    fn spin(&self, ns: u64) {
        let end = self.now_ns() + ns;
        while self.now_ns() < end {
            std::hint::spin_loop();
        }
    }

    /// Sleeps for about that long; a short pause is not worth a sleep.
    fn pause(&self, ns: u64) {
        if ns < 20_000 {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(Duration::from_nanos(ns));
        }
    }
}

/// `CLOCK_MONOTONIC`: other programs on the machine read the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Monotonic;

/// The same clock with waits that leave the processors to the emulated GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepingClock;

impl Clock for Monotonic {
    /// A sleep ends late by less than this on a machine with a GPU.
    const SPIN: Duration = Duration::from_micros(1_000);
}

impl Clock for SleepingClock {
    const SPIN: Duration = Duration::from_micros(100);
}

/// How long the device publishes its time in one comparison.
const COMPARED: Duration = Duration::from_millis(2);
/// A device that does not answer for this long never will.
const LIMIT: Duration = Duration::from_secs(30);

/// One moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockPair {
    host_ns: u64,
    device_ns: u64,
}

/// Compares the clocks with a kernel that publishes the device's time.
pub(crate) struct ClockComparison {
    workload: Workload,
    mark: Event,
}

/// The clock of the device between two comparisons.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceClock {
    pub(crate) first: ClockPair,
    pub(crate) last: ClockPair,
}

impl ClockComparison {
    pub(crate) fn new(context: &Context, stream: &Stream) -> Result<Self, Failure> {
        let spec = WorkloadSpec::new(Kernel::Clock, COMPARED);
        let workload = Workload::prepare(context, stream, &spec)?;
        Ok(Self { workload, mark: Event::plain(context)? })
    }

    /// Compares the clocks. The host reads the device's time a little after the device wrote it,
    /// so the reading in which the device is furthest ahead is the most accurate one.
    pub(crate) fn compare(&self, stream: &Stream) -> Result<ClockPair, Failure> {
        // PANIC: the clock kernel is prepared with host memory.
        let host = self.workload.host().expect("memory shared with the kernel");
        self.workload.launch(stream)?;
        stream.record(&self.mark)?;
        let begin = Monotonic.now_ns();
        let mut best: Option<ClockPair> = None;
        loop {
            let is_over = self.mark.is_reached()?;
            let device_ns = wide(host, 0);
            let moment = ClockPair { host_ns: Monotonic.now_ns(), device_ns };
            if device_ns > 0 && best.is_none_or(|best| moment.ahead() > best.ahead()) {
                best = Some(moment);
            }
            if is_over {
                return best.ok_or_else(|| Failure::run("the device did not publish its time"));
            }
            if Duration::from_nanos(moment.host_ns - begin) > LIMIT {
                return Err(Failure::Stuck);
            }
        }
    }
}

impl ClockPair {
    /// How far the device's clock is ahead of the host's.
    fn ahead(self) -> i128 {
        i128::from(self.device_ns) - i128::from(self.host_ns)
    }
}

impl DeviceClock {
    /// The host's time for a time of the device.
    pub(crate) fn host_ns(&self, device_ns: u64) -> u64 {
        let Self { first, last } = self;
        let past = i128::from(device_ns) - i128::from(first.device_ns);
        let device = (i128::from(last.device_ns) - i128::from(first.device_ns)).max(1);
        let drift = last.ahead() - first.ahead();
        let host = i128::from(device_ns) - first.ahead() - past * drift / device;
        u64::try_from(host).unwrap_or(0)
    }
}

/// A 64-bit value that the device writes as one; both words are of the same write.
pub(crate) fn wide(host: &HostMemory, first: usize) -> u64 {
    loop {
        let high = host.load(first + 1);
        let low = host.load(first);
        if host.load(first + 1) == high {
            return u64::from(high) << 32 | u64::from(low);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_never_ends_early() {
        let due = Monotonic.now_ns() + 700_000;
        Monotonic.wait_until(due);
        assert!(Monotonic.now_ns() >= due);
        let begin = Monotonic.now_ns();
        Monotonic.spin(50_000);
        assert!(Monotonic.now_ns() >= begin + 50_000);
    }

    #[test]
    fn times_are_interpolated_between_clocks_that_drift() {
        let clock = DeviceClock {
            first: ClockPair { host_ns: 1_000, device_ns: 51_000 },
            last: ClockPair { host_ns: 2_001_000, device_ns: 2_053_000 },
        };
        assert_eq!(clock.host_ns(51_000), 1_000);
        assert_eq!(clock.host_ns(2_053_000), 2_001_000);
        assert_eq!(clock.host_ns(1_052_000), 1_001_000);
    }

    #[test]
    fn times_outside_the_comparisons_are_extrapolated() {
        let moment = |ns| ClockPair { host_ns: ns, device_ns: ns + 500 };
        let clock = DeviceClock { first: moment(1_000), last: moment(2_000) };
        assert_eq!(clock.host_ns(900), 400);
        assert_eq!(clock.host_ns(9_500), 9_000);
        assert_eq!(clock.host_ns(0), 0);
    }
}

/// A clock for tests, which only the tested code moves.
#[cfg(test)]
pub(crate) mod testing {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::Clock;

    #[derive(Clone, Default)]
    pub(crate) struct FakeClock {
        now_ns: Rc<Cell<u64>>,
        /// How far each reading moves it.
        tick_ns: u64,
    }

    impl FakeClock {
        /// A clock that moves by 100 ns at each reading, so that polling loops end.
        pub(crate) fn ticking() -> Self {
            Self { tick_ns: 100, ..Self::default() }
        }

        /// The time, without moving it.
        pub(crate) fn time(&self) -> u64 {
            self.now_ns.get()
        }
    }

    impl Clock for FakeClock {
        const SPIN: std::time::Duration = std::time::Duration::ZERO;

        fn now_ns(&self) -> u64 {
            self.spin(self.tick_ns);
            self.time()
        }

        fn wait_until(&self, ns: u64) {
            self.now_ns.set(self.time().max(ns));
        }

        fn spin(&self, ns: u64) {
            self.now_ns.set(self.time() + ns);
        }

        fn pause(&self, ns: u64) {
            self.spin(ns);
        }
    }
}
