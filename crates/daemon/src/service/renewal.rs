//! What happens after we stood still for so long that the keeper undid everything.
//!
//! Then nothing is as the scheduler believes, and what a worker was about to do when it stood still
//! it has done since, with nobody to undo it. So everything is put back once more, and all begins
//! anew: the session, its keeper, the devices, the scheduler. Processes keep what they were given.

use gpreempt_core::driver::Driver;

use super::Service;
use super::hardware_check::{HardwareCheck, places};
use super::setup::controllers;

impl Service {
    /// Begins anew if the keeper has ended the session, or is about to.
    pub(super) fn look_after_session(&mut self) -> Result<(), String> {
        if self.guard.was_left_alone() { self.begin_again() } else { Ok(()) }
    }

    /// Begins another session and meets everybody again.
    pub(super) fn begin_again(&mut self) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!(
                "the keeper undid everything and there is no new session ({error}), so nothing \
                 may be changed"
            )
        };
        self.log.warn(
            "gpreemptd stood still for so long that the keeper put everything back; a new session \
             begins",
        );
        self.roster.forget_places();
        // What cannot be put back is in the journal, and whoever keeps that tries again.
        let _ = self.backends.release_all();
        let ledger = self.guard.begin_again().map_err(|error| failed(&error))?;
        let config = *self.driver.scheduler().config();
        self.driver = Driver::new(config).map_err(|error| failed(&error))?;
        self.backends =
            controllers(&self.options, &self.config, &ledger, &self.waker, &mut self.log)
                .map_err(|error| failed(&error))?;
        let asked = places(&self.options, &self.backends.kinds());
        let journal = self.guard.journal().clone();
        self.hardware = HardwareCheck::start(asked, journal, ledger, self.waker.clone())
            .map_err(|error| failed(&error))?;
        self.queue_suspensions = Default::default();
        self.chronicle = Default::default();
        self.history = Default::default();
        self.backlog.forget_all();
        self.meet_everybody();
        Ok(())
    }
}
