//! What there is: which queues the processes have, and whether the kernel schedules.

use std::collections::BTreeMap;

use gpreempt_core::id::TaskId;

use super::super::report::{Listed, Report};
use super::crew::{Crew, Seen};
use crate::amd::abi::block::QueueType;
use crate::amd::abi::trap::QueueEntry;
use crate::amd::queue::{Kind, Line, listing, queues_of};
use crate::amd::session::Epoch;
use crate::controller::Alone;

/// How often the list may be missing in succession before that is believed.
const MISSES_MAX: u8 = 3;
/// How often a queue that we hold may be seen running before it is believed: the list may be older
/// than our call.
const DOUBTS_MAX: u8 = 3;

impl Crew {
    /// Looks, and tells what is different.
    pub(super) fn look(&mut self) -> Result<(), Alone> {
        self.look_at_scheduler()?;
        if self.aboard.is_empty() {
            return Ok(());
        }
        let lines = match listing(&self.site.places.debugfs) {
            Ok(lines) => Some(lines),
            // It may be there again the moment after, and says more than the names alone.
            Err(_) if self.has_list && self.misses + 1 < MISSES_MAX => {
                self.misses += 1;
                return Ok(());
            }
            Err(error) => {
                self.misses = MISSES_MAX;
                self.lose_list(&error)?;
                None
            }
        };
        if lines.is_some() {
            self.find_list()?;
        }
        let mut by_pid: BTreeMap<u32, Vec<Line>> = BTreeMap::new();
        for line in lines.iter().flatten().filter(|line| line.kind == Kind::Compute) {
            by_pid.entry(line.pid).or_default().push(*line);
        }
        let tasks: Vec<TaskId> = self.aboard.keys().copied().collect();
        for task in tasks {
            let Some(aboard) = self.aboard.get(&task) else { continue };
            let pid = aboard.process.pid;
            // A number may belong to somebody else by now; that shows elsewhere.
            if aboard.process.check().is_err() {
                continue;
            }
            let listed = if lines.is_some() {
                self.believed(task, by_pid.remove(&pid).unwrap_or_default())
            } else {
                // Nobody knows, so nothing is different from before.
                let Some(listed) = self.listed_in_sysfs(task, pid) else { continue };
                listed
            };
            self.tell_queues(task, listed)?;
        }
        Ok(())
    }

    /// There is no list any more, if there ever was one.
    fn lose_list(&mut self, error: &std::io::Error) -> Result<(), Alone> {
        if !std::mem::take(&mut self.has_list) {
            return Ok(());
        }
        let file = self.site.places.debugfs.join("queues");
        let sentence = format!(
            "AMD: the list of queues is gone ({}: {error}); queues are found in sysfs, and all of \
             them count as busy until debugfs is there again",
            file.display()
        );
        self.reports.send(Report::Unlisted(Some(sentence)))
    }

    /// There is one.
    fn find_list(&mut self) -> Result<(), Alone> {
        let was_lost = !std::mem::replace(&mut self.has_list, true) && self.misses > 0;
        self.misses = 0;
        if was_lost { self.reports.send(Report::Unlisted(None)) } else { Ok(()) }
    }

    /// The kernel's scheduler was switched on or off. What we keep off is let on by whoever hears
    /// of it, but for what somebody suspended.
    fn look_at_scheduler(&mut self) -> Result<(), Alone> {
        let schedules = self.site.kernel_schedules();
        if schedules == self.schedules {
            return Ok(());
        }
        self.schedules = schedules;
        if schedules {
            self.hand_all_over()?;
        }
        self.reports.send(Report::KernelSchedules(schedules))
    }

    /// A queue that we hold and that runs was resumed by somebody: for the scheduler the one it
    /// knew is gone. It is left out once.
    fn believed(&mut self, task: TaskId, lines: Vec<Line>) -> Vec<Listed> {
        let mut listed = Vec::new();
        for line in lines {
            let name = (task, line.entry.queue_id);
            let is_doubtful = match self.held.get_mut(&name) {
                Some(doubts) if !line.is_preempted => {
                    *doubts += 1;
                    *doubts >= DOUBTS_MAX
                }
                Some(doubts) => {
                    *doubts = 0;
                    false
                }
                None => false,
            };
            if is_doubtful {
                self.held.remove(&name);
            } else if let Some(epoch) = self.epoch(task, line.entry.queue_id, line.serial) {
                listed.push(Listed::queue(epoch, line.entry));
            }
        }
        listed
    }

    /// Without debugfs: names, and nobody knows where the rings are.
    fn listed_in_sysfs(&mut self, task: TaskId, pid: u32) -> Option<Vec<Listed>> {
        let queues = match queues_of(&self.site.places.sysfs, pid) {
            Ok(queues) => queues,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(_) => return None,
        };
        let queues = queues.into_iter().filter(|queue| queue.kind == Kind::Compute);
        let mut listed = Vec::new();
        for queue in queues {
            let entry = QueueEntry {
                queue_id: queue.queue_id,
                gpu_id: queue.gpu_id,
                // CAST: `QueueType` has 32 bits.
                queue_type: QueueType::ComputeAql as u32,
                ..QueueEntry::default()
            };
            let epoch = self.epoch(task, entry.queue_id, 0)?;
            listed.push(Listed::without_rings(epoch, entry));
        }
        Some(listed)
    }

    /// Since when the queue of that number is the one that it is.
    fn epoch(&mut self, task: TaskId, queue: u32, serial: u64) -> Option<Epoch> {
        let aboard = self.aboard.get_mut(&task)?;
        let seen = aboard.seen.entry(queue);
        let seen = seen.or_insert_with(|| Seen { epoch: Epoch::next(), serial });
        if serial == 0 || seen.serial == serial {
            // Without the list nobody can tell, and whatever we ask for names the one we know.
            return Some(seen.epoch);
        }
        if seen.serial == 0 {
            seen.serial = serial;
            return Some(seen.epoch);
        }
        *seen = Seen { epoch: Epoch::next(), serial };
        let epoch = seen.epoch;
        // What we held is gone, and nobody asked for this one, or said how important it is.
        aboard.own_priorities.remove(&queue);
        self.held.remove(&(task, queue));
        Some(epoch)
    }

    fn tell_queues(&mut self, task: TaskId, listed: Vec<Listed>) -> Result<(), Alone> {
        let Some(aboard) = self.aboard.get_mut(&task) else { return Ok(()) };
        if aboard.listed.as_ref() == Some(&listed) {
            return Ok(());
        }
        let is_there = |queue: u32| listed.iter().any(|it| it.entry.queue_id == queue);
        self.held.retain(|name, _| name.0 != task || is_there(name.1));
        aboard.own_priorities.retain(|queue, _| is_there(*queue));
        aboard.seen.retain(|queue, _| is_there(*queue));
        let before = aboard.listed.replace(listed.clone()).unwrap_or_default();
        let is_known = |it: &Listed| before.iter().any(|known| known.is_same(it));
        let has_new = !listed.iter().all(is_known);
        self.reports.send(Report::Queues { task, queues: listed, fresh: false })?;
        if has_new { self.hand_over_again(task) } else { Ok(()) }
    }
}
