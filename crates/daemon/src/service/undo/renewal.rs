//! What happens after we stood still for so long that the keeper undid everything.
//!
//! Then nothing is as the scheduler believes, and what a worker was about to do when it stood still
//! it has done since, with nobody to undo it. So everything is put back once more, and all begins
//! anew: the session, its keeper, the devices, the scheduler. Processes keep what they were given.

use gpreempt_core::scheduler_loop::SchedulerLoop;

use crate::service::Service;
use crate::service::failure::{LoopError, RenewalError};
use crate::service::setup::controllers;
use crate::service::undo::hardware_check::{HardwareCheck, places};

impl Service {
    /// Begins anew if the keeper has ended the session, or is about to.
    pub(crate) fn look_after_session(&mut self) -> Result<(), LoopError> {
        if self.guard.was_left_alone() { self.begin_again() } else { Ok(()) }
    }

    /// Begins another session and meets everybody again.
    pub(crate) fn begin_again(&mut self) -> Result<(), LoopError> {
        self.telemetry.log.warn(
            "gpreemptd stood still for so long that the keeper put everything back; a new session \
             begins",
        );
        self.processes.roster.forget_places();
        // What cannot be put back is in the journal, and whoever keeps that tries again.
        let _ = self.devices.backends.release_all();
        Ok(self.replace_session()?)
    }

    fn replace_session(&mut self) -> Result<(), RenewalError> {
        let ledger = self.guard.begin_again()?;
        let config = *self.devices.scheduler().config();
        self.devices.driver = SchedulerLoop::new(config)?;
        let (rules, log) = (&self.processes.rules, &mut self.telemetry.log);
        self.devices.backends =
            controllers(&self.options, &rules.config, &ledger, &self.devices.waker, log)?;
        let asked = places(&self.options.devices, &self.devices.backends.kinds());
        let (journal, waker) = (self.guard.journal().clone(), self.devices.waker.clone());
        self.hardware = HardwareCheck::start(asked, journal, ledger, waker)?;
        self.devices.queue_suspensions = Default::default();
        self.telemetry.events = Default::default();
        self.telemetry.history = Default::default();
        self.processes.backlog.forget_all();
        self.processes.meet_everybody(&mut self.devices);
        Ok(())
    }
}
