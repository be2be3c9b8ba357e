//! The end: everybody is asked to go, and nothing may be left.

use std::time::{Duration, Instant};

use gpreempt_device::journal::Journal;

use super::stage::Stage;
use super::{orphans, proc};

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl Stage<'_> {
    /// Ends everybody in good order, and looks at what is left.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.goes_on = false;
        self.until("commands have not ended", |stage| !stage.has_clients())?;
        // The loads first, as long as there is somebody who could still keep them stopped.
        for load in &mut self.loads {
            load.ask_to_end();
        }
        self.until("loads have not ended", |stage| {
            stage.loads.iter().all(|load| load.pid().is_none())
        })?;
        self.daemon.ask_to_end();
        self.until("the daemon has not ended", |stage| stage.daemon.pid().is_none())?;
        self.until("a keeper has not ended", |stage| {
            orphans::look_after(&stage.known()).is_empty()
        })?;
        for gpu in &self.gpus {
            gpu.ask_to_end();
        }
        self.until("an emulated GPU has not ended", |stage| {
            stage.gpus.iter().all(|gpu| gpu.pid().is_none())
        })?;
        let sessions = Journal::at(self.scene.state())?.sessions()?.len();
        if sessions > 0 {
            self.tally.fail(format!("{sessions} sessions are left in the journal"));
        }
        for stray in proc::inhabitants(self.scene.folder()) {
            self.tally.fail(format!("process {stray} is left"));
        }
        for file in self.scene.leftovers()? {
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
