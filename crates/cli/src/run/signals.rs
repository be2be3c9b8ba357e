//! Signals to us are meant for the program.

use std::io;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;

use crate::failure::Failure;

/// Those that are passed on.
const SIGNALS: [Signal; 6] =
    [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];

/// Which signals came.
pub(super) struct Signals(Vec<(Signal, Arc<AtomicBool>)>);

impl Signals {
    /// From now on they are noted, and have no effect on us.
    pub(super) fn new() -> Result<Self, Failure> {
        let mut flags = Vec::new();
        for signal in SIGNALS {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal.as_raw(), Arc::clone(&flag))
                .map_err(Failure::run)?;
            flags.push((signal, flag));
        }
        Ok(Self(flags))
    }

    /// Passes on what came since.
    pub(super) fn forward(&self, child: &Child) {
        for (signal, flag) in &self.0 {
            if flag.swap(false, Ordering::Relaxed)
                && !was_heard(*signal)
                && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
            {
                // If it has just ended, it is not waited for yet, so nobody else has its number.
                let _ = kill_process(pid, *signal);
            }
        }
    }
}

/// Whether the program has it already: a terminal sends what its keys mean to everybody in front of
/// it. A program that gets Ctrl-C twice would take it for impatience.
fn was_heard(signal: Signal) -> bool {
    let is_in_front = tcgetpgrp(io::stdin()).is_ok_and(|front| front == getpgrp());
    matches!(signal, Signal::INT | Signal::QUIT) && is_in_front
}
