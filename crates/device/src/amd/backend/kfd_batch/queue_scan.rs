//! Lists the queues of all batched processes, and checks whether the in-kernel scheduler is on.

use std::collections::BTreeMap;

use gpreempt_core::id::TaskId;

use super::super::report::{Report, StopUnit};
use super::{BatchThread, Seen};
use crate::amd::abi::block::QueueType;
use crate::amd::abi::trap::QueueEntry;
use crate::amd::queue::{Kind, Line, listing, queues_of};
use crate::amd::session::QueueGeneration;
use crate::controller::Disconnected;

/// How many scans in a row may find no list before it counts as gone.
const MISSES_MAX: u8 = 3;
/// How many scans in a row may list a preempted queue as running before it counts as resumed: the
/// list may be older than the call.
const DOUBTS_MAX: u8 = 3;

impl BatchThread {
    /// Reports changes since the last scan.
    pub(super) fn look(&mut self) -> Result<(), Disconnected> {
        self.look_at_scheduler()?;
        if self.processes.is_empty() {
            return Ok(());
        }
        let lines = match listing(&self.instance.paths.debugfs) {
            Ok(lines) => Some(lines),
            // The list may be back in the next scan, and has more information than sysfs.
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
        let tasks: Vec<TaskId> = self.processes.keys().copied().collect();
        for task in tasks {
            let Some(batched) = self.processes.get(&task) else { continue };
            let pid = batched.process.pid;
            // The process watcher reports the end of a process.
            if batched.process.check().is_err() {
                continue;
            }
            let listed = if lines.is_some() {
                self.believed(task, by_pid.remove(&pid).unwrap_or_default())
            } else {
                // Unknown, so nothing is reported.
                let Some(listed) = self.listed_in_sysfs(task, pid) else { continue };
                listed
            };
            self.tell_queues(task, listed)?;
        }
        Ok(())
    }

    fn lose_list(&mut self, error: &std::io::Error) -> Result<(), Disconnected> {
        if !std::mem::take(&mut self.has_list) {
            return Ok(());
        }
        let file = self.instance.paths.debugfs.join("queues");
        let sentence = format!(
            "AMD: the list of queues is gone ({}: {error}); queues are found in sysfs, and all of \
             them count as busy until debugfs is there again",
            file.display()
        );
        self.reports.send(Report::Unlisted(Some(sentence)))
    }

    fn find_list(&mut self) -> Result<(), Disconnected> {
        let was_lost = !std::mem::replace(&mut self.has_list, true) && self.misses > 0;
        self.misses = 0;
        if was_lost { self.reports.send(Report::Unlisted(None)) } else { Ok(()) }
    }

    /// Reports that the in-kernel scheduler was enabled or disabled. The core then resumes all
    /// queues except suspended ones.
    fn look_at_scheduler(&mut self) -> Result<(), Disconnected> {
        let schedules = self.instance.kernel_schedules();
        if schedules == self.schedules {
            return Ok(());
        }
        self.schedules = schedules;
        if schedules {
            self.hand_all_over()?;
        }
        self.reports.send(Report::KernelSchedules(schedules))
    }

    /// A preempted queue that runs was resumed by another program. It is left out once, so that the
    /// scheduler sees it vanish and reappear.
    fn believed(&mut self, task: TaskId, lines: Vec<Line>) -> Vec<StopUnit> {
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
            } else if let Some(generation) = self.generation(task, line.entry.queue_id, line.serial)
            {
                listed.push(StopUnit::queue(generation, line.entry));
            }
        }
        listed
    }

    /// Without debugfs: queue ids, but no rings.
    fn listed_in_sysfs(&mut self, task: TaskId, pid: u32) -> Option<Vec<StopUnit>> {
        let queues = match queues_of(&self.instance.paths.sysfs, pid) {
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
            let generation = self.generation(task, entry.queue_id, 0)?;
            listed.push(StopUnit::without_rings(generation, entry));
        }
        Some(listed)
    }

    /// The generation of a queue id: a new one if the serial number differs.
    fn generation(&mut self, task: TaskId, queue: u32, serial: u64) -> Option<QueueGeneration> {
        let batched = self.processes.get_mut(&task)?;
        let seen = batched.seen.entry(queue);
        let seen = seen.or_insert_with(|| Seen { generation: QueueGeneration::next(), serial });
        if serial == 0 || seen.serial == serial {
            // Without the list there is no serial number; calls use the known one.
            return Some(seen.generation);
        }
        if seen.serial == 0 {
            seen.serial = serial;
            return Some(seen.generation);
        }
        *seen = Seen { generation: QueueGeneration::next(), serial };
        let generation = seen.generation;
        // The queue with the old serial number is gone, with its preemption and its own priority.
        batched.own_priorities.remove(&queue);
        self.held.remove(&(task, queue));
        Some(generation)
    }

    fn tell_queues(&mut self, task: TaskId, listed: Vec<StopUnit>) -> Result<(), Disconnected> {
        let Some(batched) = self.processes.get_mut(&task) else { return Ok(()) };
        if batched.listed.as_ref() == Some(&listed) {
            return Ok(());
        }
        let is_there = |queue: u32| listed.iter().any(|it| it.entry.queue_id == queue);
        self.held.retain(|name, _| name.0 != task || is_there(name.1));
        batched.own_priorities.retain(|queue, _| is_there(*queue));
        batched.seen.retain(|queue, _| is_there(*queue));
        let before = batched.listed.replace(listed.clone()).unwrap_or_default();
        let is_known = |it: &StopUnit| before.iter().any(|known| known.is_same(it));
        let has_new = !listed.iter().all(is_known);
        self.reports.send(Report::Queues { task, queues: listed, fresh: false })?;
        if has_new { self.hand_over_again(task) } else { Ok(()) }
    }
}
