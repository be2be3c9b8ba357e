//! Ends of a load that come from outside: signals, the end of a round, and a limit on its time.

use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The exit code of a program that a second signal ended: 128 and SIGTERM.
const KILLED: i32 = 143;

/// How long the exit of the program may take.
const EXIT_MAX: Duration = Duration::from_secs(5);

const POLL: Duration = Duration::from_millis(200);

#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    /// The rounds up to this one are over.
    ended: Arc<AtomicU64>,
    /// The round that this value ends, if any.
    round: Option<u64>,
}

impl Stop {
    /// SIGTERM and SIGINT ask to stop; the second one ends the program at once.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let stop = Self::default();
        for signal in [SIGTERM, SIGINT] {
            // In this order: the shutdown looks at the flag before the first signal sets it.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                KILLED,
                Arc::clone(&stop.asked),
            )
            .map_err(cannot)?;
            signal_hook::flag::register(signal, Arc::clone(&stop.asked)).map_err(cannot)?;
        }
        Ok(stop)
    }

    /// The same, but further signals have no effect: the kernel sends one for each thread of a
    /// parent process that dies.
    pub(crate) fn on_many_signals() -> Result<Self, Failure> {
        let stop = Self::default();
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop.asked)).map_err(cannot)?;
        }
        Ok(stop)
    }

    /// The same for one round, which may end before the load does.
    pub(crate) fn in_round(&self, round: u64) -> Self {
        Self { round: Some(round), ..self.clone() }
    }

    /// Ends the rounds up to this one.
    pub(crate) fn end_round(&self, round: u64) {
        self.ended.fetch_max(round, Ordering::Relaxed);
    }

    pub(crate) fn is_asked(&self) -> bool {
        // ORDERING: both are independent flags.
        self.asked.load(Ordering::Relaxed)
            || self.round.is_some_and(|round| round <= self.ended.load(Ordering::Relaxed))
    }

    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}

fn cannot(error: std::io::Error) -> Failure {
    Failure::run(format_args!("cannot handle signals: {error}"))
}

/// A limit on the time of the program, because a device may never answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeLimit {
    /// By `CLOCK_MONOTONIC`; 0 is never.
    until_ns: Arc<AtomicU64>,
}

impl TimeLimit {
    /// Ends the program after that long, whatever it waits for, unless the limit is moved.
    pub(crate) fn after(time: Duration) -> Self {
        let limit = Self::default();
        limit.set(time);
        let watched = limit.clone();
        std::thread::spawn(move || {
            while !watched.is_over(Monotonic.now_ns()) {
                std::thread::sleep(POLL);
            }
            let _ = writeln!(
                std::io::stderr(),
                "gpreempt-load: the device did not answer in time; exiting without it"
            );
            leave();
        });
        limit
    }

    /// Moves the limit to that long from now.
    pub(crate) fn set(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // ORDERING: an independent value.
        self.until_ns.store(Monotonic.now_ns().saturating_add(time), Ordering::Relaxed);
    }

    /// Removes the limit, while the load only waits for orders.
    pub(crate) fn lift(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let until = self.until_ns.load(Ordering::Relaxed);
        until > 0 && now_ns >= until
    }
}

/// Ends the program with exit code 1, without waiting for the device.
#[expect(clippy::exit, reason = "destroying objects that the device is using waits for it")]
pub(crate) fn leave() -> ! {
    std::thread::spawn(|| {
        // Exit handlers of libraries might wait for the device too.
        std::thread::sleep(EXIT_MAX);
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_round_does_not_end_the_next() {
        let stop = Stop::default();
        let (first, second) = (stop.in_round(1), stop.in_round(2));
        stop.end_round(1);
        assert_eq!((first.is_asked(), second.is_asked(), stop.is_asked()), (true, false, false));
        first.ask();
        assert!(second.is_asked() && stop.is_asked());
    }

    #[test]
    fn a_time_limit_can_be_moved_and_lifted() {
        let limit = TimeLimit::default();
        let now = Monotonic.now_ns();
        assert!(!limit.is_over(u64::MAX));
        limit.set(Duration::from_secs(100));
        assert!(!limit.is_over(now) && limit.is_over(now + 200_000_000_000));
        limit.lift();
        assert!(!limit.is_over(u64::MAX));
    }
}
