//! When the loop has to turn although nothing happened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gpreempt_core::time::Duration;
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

    /// How late the loop is, now that it rang. It rings until it is set again, which every turn
    /// does: reading it as well would be one more system call in each of them.
    pub(super) const fn late(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.due_ns))
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
    fn it_rings_when_its_time_has_come_and_says_how_long_ago_that_was() {
        let mut alarm = Alarm::new().unwrap();
        assert!(!rings(&alarm));
        alarm.set(0).unwrap();
        assert!(rings(&alarm));
        assert_eq!([0, 1, 31].map(|now_ns| alarm.late(now_ns).as_nanos()), [0, 0, 30]);
        assert!(rings(&alarm), "until it is set again");
        alarm.set(u64::MAX).unwrap();
        assert!(!rings(&alarm));
    }
}
