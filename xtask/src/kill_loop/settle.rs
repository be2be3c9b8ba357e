//! A pause in which everything must come in order by itself.

use std::time::{Duration, Instant};

use gpreempt_wire::state::Snapshot;

use super::load::Load;
use super::run::KillLoop;

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is asked.
const ASK: Duration = Duration::from_millis(50);

impl KillLoop<'_> {
    /// Kills nothing until the daemon, or the private session, answers, knows every device and
    /// every load that it schedules, and has stopped a queue.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut missing = "nothing was asked".to_owned();
        let mut asked = Instant::now();
        let mut was_stopped = false;
        while Instant::now() < until && !self.tally.is_hopeless() {
            self.tick()?;
            was_stopped |= self.watch.stopped > 0;
            if asked.elapsed() < ASK {
                continue;
            }
            asked = Instant::now();
            let snapshot = self.owner.snapshot(self.site);
            match self.missing(snapshot.as_ref()) {
                Some(what) => missing = what,
                None if was_stopped => {
                    self.tally.settled += 1;
                    return Ok(());
                }
                None => missing = "no queue is stopped".to_owned(),
            }
        }
        self.tally.fail(format!("after {PATIENCE:?} without kills {missing}"));
        Ok(())
    }

    /// What is not as it should be.
    fn missing(&self, snapshot: Option<&Snapshot>) -> Option<String> {
        let Some(snapshot) = snapshot else {
            return Some("no scheduling process answers".to_owned());
        };
        if self.owner.pid() != Some(snapshot.daemon.pid) {
            return Some(format!("process {} answers instead", snapshot.daemon.pid));
        }
        if snapshot.devices.len() != self.gpus.len() {
            let (known, there) = (snapshot.devices.len(), self.gpus.len());
            return Some(format!("{known} of {there} devices are known"));
        }
        let task_of = |load: &Load| {
            let pid = load.pid()?;
            snapshot.tasks.iter().find(|task| task.pid == pid)
        };
        let is_known = |load: &Load| {
            task_of(load).is_some_and(|task| !task.queues.is_empty() && task.priority.is_some())
        };
        let is_scheduled = |load: &&Load| self.owner.schedules(self.site.mode, load);
        let scheduled: Vec<&Load> = self.loads.iter().filter(is_scheduled).collect();
        if scheduled.is_empty() {
            return Some("no load is scheduled".to_owned());
        }
        let unknown = scheduled.into_iter().find(|load| !is_known(load))?;
        let (pid, task, problems) = (unknown.pid(), task_of(unknown), &snapshot.problems);
        Some(format!("load {pid:?} is not scheduled: {task:?}; reported problems: {problems:?}"))
    }
}
