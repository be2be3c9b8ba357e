//! The end: every process is asked to end, and nothing may be left.

use std::time::{Duration, Instant};

use gpreempt_device::journal::Journal;

use super::run::KillLoop;
use super::{orphans, proc};

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl KillLoop<'_> {
    /// Ends every process in good order, and looks at what is left.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.goes_on = false;
        self.until("commands have not ended", |running| !running.has_clients())?;
        // The loads first, while there is a process that could still keep them stopped.
        for load in &mut self.loads {
            load.ask_to_end();
        }
        self.until("loads have not ended", |running| {
            running.loads.iter().all(|load| load.pid().is_none())
        })?;
        self.owner.ask_to_end(self.site.mode);
        let message = "the daemon, or the private session, has not ended";
        self.until(message, |running| running.owner.pid().is_none())?;
        self.until("a keeper has not ended", |running| {
            orphans::look_after(&running.known()).is_empty()
        })?;
        for gpu in &self.gpus {
            gpu.ask_to_end();
        }
        self.until("an emulated GPU has not ended", |running| {
            running.gpus.iter().all(|gpu| gpu.pid().is_none())
        })?;
        let sessions = Journal::at(self.site.stage.state())?.sessions()?.len();
        if sessions > 0 {
            self.tally.fail(format!("{sessions} sessions are left in the journal"));
        }
        for stray in proc::inhabitants(self.site.stage.root()) {
            self.tally.fail(format!("process {stray} is left"));
        }
        for file in self.site.leftovers()? {
            self.tally.fail(format!("{file} is left"));
        }
        Ok(())
    }

    fn until(&mut self, problem: &str, is_so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            if Instant::now() > until {
                self.tally.fail(format!("{problem} after {PATIENCE:?}"));
                return Ok(());
            }
            self.tick()?;
        }
        Ok(())
    }
}
