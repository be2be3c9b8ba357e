//! The ends that a load does not choose itself: a signal, and a bound on its time.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Failure;

/// The exit code of a program that a second signal ended: 128 and SIGTERM.
const KILLED: i32 = 143;

/// How long the end of the program may take.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Whether the load was asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// SIGTERM and SIGINT ask to stop; the second one ends the program at once.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let stop = Self::default();
        for signal in [SIGTERM, SIGINT] {
            let cannot = |error| Failure::run(format_args!("cannot handle signals: {error}"));
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

    /// Whether it was.
    pub(crate) fn is_asked(&self) -> bool {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        self.asked.load(Ordering::Relaxed)
    }

    /// Asks.
    #[cfg(test)]
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }
}

/// Ends the program after `bound`, whatever it waits for: a device may never answer.
pub(crate) fn end_after(bound: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(bound);
        let seconds = bound.as_secs();
        let _ = writeln!(
            std::io::stderr(),
            "gpreempt-load: the device did not answer, given up after {seconds} s"
        );
        leave();
    });
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
