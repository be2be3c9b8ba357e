//! Signals: for commands that clean up before they end, and for those that run a program.

use std::io;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, getpgrp, kill_process};
use rustix::termios::tcgetpgrp;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

use crate::failure::Failure;

/// Whether a signal asked this command to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on SIGINT, SIGTERM and SIGHUP only set the flag.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            register(signal, Arc::clone(&flag)).map_err(Failure::run)?;
        }
        Ok(Self(flag))
    }

    /// The same, but a second Ctrl-C ends the program at once: for commands whose changes end or
    /// are undone without them. The other signals may arrive twice from one sender: `timeout`
    /// signals its child and then the whole process group.
    pub(crate) fn on_signals_impatient() -> Result<Self, Failure> {
        let stop = Self::on_signals()?;
        let typed = Arc::new(AtomicBool::new(false));
        // In this order: the shutdown reads the flag before the second handler sets it.
        register_conditional_shutdown(SIGINT, 128 + SIGINT, Arc::clone(&typed))
            .map_err(Failure::run)?;
        register(SIGINT, typed).map_err(Failure::run)?;
        Ok(stop)
    }

    /// The flag itself, for other threads.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Signals that this process passes on to the program that it runs.
pub(crate) struct ForwardedSignals(Vec<(Signal, Arc<AtomicBool>)>);

impl ForwardedSignals {
    const ALL: [Signal; 6] =
        [Signal::INT, Signal::QUIT, Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2];

    /// From now on the signals are recorded, and have no effect on this process.
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut flags = Vec::new();
        for signal in Self::ALL {
            let flag = Arc::new(AtomicBool::new(false));
            register(signal.as_raw(), Arc::clone(&flag)).map_err(Failure::run)?;
            flags.push((signal, flag));
        }
        Ok(Self(flags))
    }

    /// Sends the child the signals that arrived since the last call.
    pub(crate) fn forward(&self, child: &Child) {
        for (signal, flag) in &self.0 {
            if flag.swap(false, Ordering::Relaxed)
                && !came_from_terminal(*signal)
                && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
            {
                // A child that has just ended was not waited for yet, so its pid is not reused.
                let _ = kill_process(pid, *signal);
            }
        }
    }
}

/// Whether the child has the signal already: a terminal sends the signals of its keys to the whole
/// foreground process group. A program that gets Ctrl-C twice may end without cleaning up.
fn came_from_terminal(signal: Signal) -> bool {
    let is_foreground = tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp());
    matches!(signal, Signal::INT | Signal::QUIT) && is_foreground
}
