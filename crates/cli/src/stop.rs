//! Ctrl-C and the like, for commands that have something to put in order first.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

use crate::failure::Failure;

/// Whether this command was told to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on such a signal is only noted.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            register(signal, Arc::clone(&flag)).map_err(Failure::run)?;
        }
        Ok(Self(flag))
    }

    /// The same, but a second Ctrl-C ends the program at once: for those who leave nothing behind
    /// that does not end or is not undone by itself. The other signals may come twice without
    /// anybody being impatient: `timeout` tells its child and then everybody around.
    pub(crate) fn on_signals_impatient() -> Result<Self, Failure> {
        let stop = Self::on_signals()?;
        let typed = Arc::new(AtomicBool::new(false));
        // In this order: the shutdown looks at the flag before the first one sets it.
        register_conditional_shutdown(SIGINT, 128 + SIGINT, Arc::clone(&typed))
            .map_err(Failure::run)?;
        register(SIGINT, typed).map_err(Failure::run)?;
        Ok(stop)
    }

    /// The flag itself, for others who look.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Whether one came.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
