//! The ends that a load does not choose itself: a signal, and a bound on its time.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;

/// The exit code of a program that a second signal ended: 128 and SIGTERM.
const KILLED: i32 = 143;

/// How long the end of the program may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How often a bound is looked at.
const LOOK: Duration = Duration::from_millis(200);

/// Whether the load was asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    /// The rounds up to this one are over.
    ended: Arc<AtomicU64>,
    /// The round that this is about, if it is about one.
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

    /// The same, but however many come, they only ask: a parent of several threads that dies says
    /// so more than once.
    pub(crate) fn on_many_signals() -> Result<Self, Failure> {
        let stop = Self::default();
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&stop.asked)).map_err(cannot)?;
        }
        Ok(stop)
    }

    /// The same for one round, which may be over before the load is.
    pub(crate) fn in_round(&self, round: u64) -> Self {
        Self { round: Some(round), ..self.clone() }
    }

    /// Asks those who are in a round up to this one.
    pub(crate) fn end_round(&self, round: u64) {
        self.ended.fetch_max(round, Ordering::Relaxed);
    }

    /// Whether it was.
    pub(crate) fn is_asked(&self) -> bool {
        // ORDERING: both stand for themselves, nothing else is read because of them.
        self.asked.load(Ordering::Relaxed)
            || self.round.is_some_and(|round| round <= self.ended.load(Ordering::Relaxed))
    }

    /// Asks.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}

fn cannot(error: std::io::Error) -> Failure {
    Failure::run(format_args!("cannot handle signals: {error}"))
}

/// The end of the program's patience: a device may never answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bound {
    /// By `CLOCK_MONOTONIC`; 0 is never.
    until_ns: Arc<AtomicU64>,
}

impl Bound {
    /// Ends the program after that long, whatever it waits for, unless it is set anew.
    pub(crate) fn after(time: Duration) -> Self {
        let bound = Self::default();
        bound.set(time);
        let watched = bound.clone();
        std::thread::spawn(move || {
            while !watched.is_over(Monotonic.now_ns()) {
                std::thread::sleep(LOOK);
            }
            let _ = writeln!(
                std::io::stderr(),
                "gpreempt-load: the device did not answer in time, given up"
            );
            leave();
        });
        bound
    }

    /// From now on, that long.
    pub(crate) fn set(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // ORDERING: the number stands for itself.
        self.until_ns.store(Monotonic.now_ns().saturating_add(time), Ordering::Relaxed);
    }

    /// No end, because nothing is waited for but orders.
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
        // Libraries have their say at the end of a program, and might wait for the device too.
        std::thread::sleep(LAST_WORDS);
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    });
    std::process::exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_round_is_not_that_of_the_next() {
        let stop = Stop::default();
        let (first, second) = (stop.in_round(1), stop.in_round(2));
        stop.end_round(1);
        assert_eq!((first.is_asked(), second.is_asked(), stop.is_asked()), (true, false, false));
        first.ask();
        assert!(second.is_asked() && stop.is_asked());
    }

    #[test]
    fn a_bound_can_be_moved_and_lifted() {
        let bound = Bound::default();
        let now = Monotonic.now_ns();
        assert!(!bound.is_over(u64::MAX));
        bound.set(Duration::from_secs(100));
        assert!(!bound.is_over(now) && bound.is_over(now + 200_000_000_000));
        bound.lift();
        assert!(!bound.is_over(u64::MAX));
    }
}
