//! A pause in which everything must come in order by itself.

use std::time::{Duration, Instant};

use gpreempt_wire::state::Snapshot;

use super::load::Load;
use super::stage::Stage;

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is asked.
const ASK: Duration = Duration::from_millis(50);

impl Stage<'_> {
    /// Kills nobody until the daemon answers, knows every device and every load, and has stopped
    /// somebody.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut missing = "nobody was asked".to_owned();
        let mut asked = Instant::now();
        let mut was_stopped = false;
        while Instant::now() < until {
            self.tick()?;
            was_stopped |= self.watch.stopped > 0;
            if asked.elapsed() < ASK {
                continue;
            }
            asked = Instant::now();
            let snapshot = self.daemon.snapshot(self.scene);
            match self.missing(snapshot.as_ref()) {
                Some(what) => missing = what,
                None if was_stopped => {
                    self.tally.settled += 1;
                    return Ok(());
                }
                None => missing = "nobody is stopped by anybody".to_owned(),
            }
        }
        self.tally.fail(format!("after {PATIENCE:?} without kills {missing}"));
        Ok(())
    }

    /// What is not as it should be.
    fn missing(&self, snapshot: Option<&Snapshot>) -> Option<String> {
        let Some(snapshot) = snapshot else { return Some("the daemon does not answer".to_owned()) };
        if self.daemon.pid() != Some(snapshot.daemon.pid) {
            return Some("another daemon answers".to_owned());
        }
        if snapshot.devices.len() != self.gpus.len() {
            let (known, there) = (snapshot.devices.len(), self.gpus.len());
            return Some(format!("the daemon knows {known} of {there} devices"));
        }
        let task_of = |load: &Load| {
            let pid = load.pid()?;
            snapshot.tasks.iter().find(|task| task.pid == pid)
        };
        let is_known = |load: &Load| {
            task_of(load).is_some_and(|task| !task.queues.is_empty() && task.priority.is_some())
        };
        let unknown = self.loads.iter().find(|load| !is_known(load))?;
        let (pid, task, problems) = (unknown.pid(), task_of(unknown), &snapshot.problems);
        Some(format!(
            "load {pid:?} is not scheduled: {task:?}; the daemon's problems: {problems:?}"
        ))
    }
}
