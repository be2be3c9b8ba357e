//! When the loop has to turn although nothing happened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A timer of the kernel, on the clock of [`gpreempt_device::keeper::monotonic_ns`].
#[derive(Debug)]
pub(super) struct Alarm {
    timer: OwnedFd,
    due_ns: u64,
}

impl Alarm {
    /// A turn that begins later than this after its time is late.
    pub(super) const LATE_NS: u64 = 1_000_000;

    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: timerfd_create(TimerfdClockId::Monotonic, flags)?, due_ns: u64::MAX })
    }

    /// Rings at that time, and not before.
    pub(super) fn set(&mut self, at_ns: u64) -> io::Result<()> {
        // Zero would switch it off.
        self.due_ns = at_ns.max(1);
        let seconds = i64::try_from(self.due_ns / 1_000_000_000).unwrap_or(i64::MAX);
        let nanos = i64::try_from(self.due_ns % 1_000_000_000).unwrap_or(0);
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: seconds, tv_nsec: nanos };
        let when = Itimerspec { it_interval: never, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &when)?;
        Ok(())
    }

    /// Takes note that it rang. Returns whether the loop is late.
    pub(super) fn take(&self, now_ns: u64) -> bool {
        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
        now_ns > self.due_ns.saturating_add(Self::LATE_NS)
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn rings(alarm: &Alarm) -> bool {
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn it_rings_when_its_time_has_come_and_says_whether_that_was_long_ago() {
        let mut alarm = Alarm::new().unwrap();
        assert!(!rings(&alarm));
        alarm.set(0).unwrap();
        assert!(rings(&alarm));
        assert!(alarm.take(Alarm::LATE_NS + 2) && !alarm.take(Alarm::LATE_NS));
        assert!(!rings(&alarm));
        alarm.set(u64::MAX).unwrap();
        assert!(!rings(&alarm));
    }
}
