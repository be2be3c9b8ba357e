//! The clock of the device, told in the time of the processor.
//!
//! The two run at slightly different speeds, so they are compared before and after a measurement,
//! and what lies between is told in proportion.

use std::time::Duration;

use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, Event, HostMemory, Stream};
use crate::failure::Failure;
use crate::kernels::{Kernel, Registers};
use crate::workload::{Wish, Workload};

/// How long the device tells the time.
const LOOK: Duration = Duration::from_millis(2);
/// If it does not answer for so long, it never will.
const LIMIT: Duration = Duration::from_secs(30);

/// The same moment on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    host_ns: u64,
    device_ns: u64,
}

/// Something that can compare the clocks.
pub(crate) struct Comparison {
    workload: Workload,
    mark: Event,
}

/// The clock of the device between two comparisons.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceClock {
    /// Before.
    pub(crate) first: Moment,
    /// After.
    pub(crate) last: Moment,
}

impl Comparison {
    /// Compiles what is needed.
    pub(crate) fn new(context: &Context, stream: &Stream) -> Result<Self, Failure> {
        let wish = Wish {
            kernel: Kernel::Clock,
            registers: Registers::Few,
            shared_bytes: 0,
            length: LOOK,
            block: None,
            iterations: None,
            slots: 1,
            is_cooperative: false,
        };
        let workload = Workload::prepare(context, stream, &wish)?;
        Ok(Self { workload, mark: Event::plain(context)? })
    }

    /// Compares the clocks. What the device wrote was so a little before it is read, so the
    /// comparison in which the device is furthest ahead is the closest one.
    pub(crate) fn look(&self, stream: &Stream) -> Result<Moment, Failure> {
        // PANIC: the kernel that tells the time has memory of the host.
        let host = self.workload.host().expect("memory shared with the kernel");
        self.workload.launch(stream)?;
        stream.record(&self.mark)?;
        let begin = Monotonic.now_ns();
        let mut best: Option<Moment> = None;
        loop {
            let is_over = self.mark.is_reached()?;
            let device_ns = wide(host, 0);
            let moment = Moment { host_ns: Monotonic.now_ns(), device_ns };
            if device_ns > 0 && best.is_none_or(|best| moment.ahead() > best.ahead()) {
                best = Some(moment);
            }
            if is_over {
                return best.ok_or_else(|| Failure::run("the device did not tell the time"));
            }
            if Duration::from_nanos(moment.host_ns - begin) > LIMIT {
                return Err(Failure::Stuck);
            }
        }
    }
}

impl Moment {
    /// How far the device's clock is ahead of ours.
    fn ahead(self) -> i128 {
        i128::from(self.device_ns) - i128::from(self.host_ns)
    }
}

impl DeviceClock {
    /// The time of the processor when it was that late on the device.
    pub(crate) fn host_ns(&self, device_ns: u64) -> u64 {
        let Self { first, last } = self;
        let past = i128::from(device_ns) - i128::from(first.device_ns);
        let device = (i128::from(last.device_ns) - i128::from(first.device_ns)).max(1);
        let drift = last.ahead() - first.ahead();
        let host = i128::from(device_ns) - first.ahead() - past * drift / device;
        u64::try_from(host).unwrap_or(0)
    }
}

/// Two words that the device writes as one; read so that both are of the same time.
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
    fn clocks_that_drift_are_told_in_proportion() {
        let clock = DeviceClock {
            first: Moment { host_ns: 1_000, device_ns: 51_000 },
            last: Moment { host_ns: 2_001_000, device_ns: 2_053_000 },
        };
        assert_eq!(clock.host_ns(51_000), 1_000);
        assert_eq!(clock.host_ns(2_053_000), 2_001_000);
        assert_eq!(clock.host_ns(1_052_000), 1_001_000);
    }

    #[test]
    fn times_outside_are_told_too() {
        let moment = |ns| Moment { host_ns: ns, device_ns: ns + 500 };
        let clock = DeviceClock { first: moment(1_000), last: moment(2_000) };
        assert_eq!(clock.host_ns(900), 400);
        assert_eq!(clock.host_ns(9_500), 9_000);
        assert_eq!(clock.host_ns(0), 0);
    }
}
