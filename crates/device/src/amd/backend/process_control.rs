//! The [`Controller`] of the AMD backend: starts and ends the control of a process.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_core::id::{QueueId, TaskId};

use super::worker::Worker;
use super::{AdoptedProcess, AmdBackend, Device};
use crate::amd::gauge::SysfsGauge;
use crate::amd::queue::queues_of;
use crate::amd::stop_method::PatchedCalls;
use crate::change::UndoError;
use crate::controller::{
    AdoptError, Controller, ControllerReport, DeviceName, DeviceSearch, NumberedQueues,
    PriorityForwarding, Rescanning, StopMethodReporting,
};
use crate::gauge::DeviceGauge;
use crate::process::ProcessKey;

/// How long workers may take to revert their changes. Less than the keeper's time limit.
const RELEASE_MAX: Duration = Duration::from_secs(3);

impl AmdBackend {
    /// Starts to control the process of a task.
    pub(super) fn begin(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.get(&task) else { return };
        let process = adopted.process;
        if process.check().is_err() {
            return;
        }
        self.begin_reading(process);
        if self.instance.patched_calls == PatchedCalls::Usable {
            self.begin_in_batch(task);
            return;
        }
        // The worker of an earlier task must release the process first.
        let before = self.leaving.iter().position(|(key, _)| *key == process);
        let before = before.map(|at| self.leaving.swap_remove(at).1);
        let means = (self.instance.clone(), self.undo_log.clone(), self.mqds.clone());
        match Worker::start(means, (task, process), before, self.reports.clone()) {
            Ok(worker) => {
                if let Some(adopted) = self.tasks.get_mut(&task) {
                    adopted.worker = Some(worker);
                }
            }
            Err(error) => {
                let problem = format!("process {process} cannot be controlled: {error}");
                self.notes.push_back(ControllerReport::Problem(problem));
            }
        }
    }

    /// Removes a task. Its controller reverts the changes to the process.
    pub(super) fn let_go(&mut self, task: TaskId) {
        let Some(mut adopted) = self.tasks.remove(&task) else { return };
        self.queues.retain(|_, target| target.task != task);
        self.end_readings();
        self.judge_costs();
        if adopted.in_batch {
            self.leave_batch(task);
            return;
        }
        match adopted.worker.take() {
            Some(mut worker) => {
                worker.end();
                self.leaving.push((adopted.process, worker));
            }
            // The old controller is still reverting its changes.
            None if adopted.is_moving => {}
            // Nothing was changed; the journal only records that the process is controlled.
            None => {
                let _ = self.undo_log.undo_process(adopted.process);
            }
        }
    }
}

impl Controller for AmdBackend {
    fn kind(&self) -> &'static str {
        "amd"
    }

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), AdoptError> {
        if self.tasks.contains_key(&task) || self.task_of(process).is_some() {
            return Err(AdoptError::Twice(process));
        }
        process.check()?;
        self.undo_log.claim(process)?;
        let adopted = AdoptedProcess {
            process,
            worker: None,
            limit: None,
            in_batch: false,
            is_moving: false,
            priority: None,
        };
        self.tasks.insert(task, adopted);
        self.notes.retain(|note| *note != ControllerReport::Appeared(process));
        // A session would make a process use KFD that does not.
        if self.users.contains(&process) {
            self.begin(task);
        }
        Ok(())
    }

    fn release(&mut self, task: TaskId) {
        self.let_go(task);
        self.leaving.retain(|(_, worker)| !worker.has_ended());
    }

    fn users(&mut self) -> Vec<ProcessKey> {
        self.take_reports();
        let users: BTreeSet<ProcessKey> = self.users.iter().copied().collect();
        self.notes
            .retain(|note| !matches!(note, ControllerReport::Appeared(key) if users.contains(key)));
        users.into_iter().collect()
    }

    fn devices(&self) -> Vec<DeviceName> {
        let name = |(index, device): (usize, &Device)| DeviceName {
            id: self.numbering.device(index),
            uuid: device.uuid.clone(),
        };
        self.devices.iter().enumerate().map(name).collect()
    }

    fn queues_of(&self, task: TaskId) -> Vec<QueueId> {
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        own.map(|(queue, _)| *queue).collect()
    }

    fn device_search(&self, process: ProcessKey) -> DeviceSearch {
        let sysfs = self.instance.paths.sysfs.clone();
        let devices = self.devices.iter().map(|device| (device.gpu_id, device.uuid.clone()));
        let devices: Vec<(u32, String)> = devices.collect();
        Box::new(move || {
            let queues = queues_of(&sysfs, process.pid).unwrap_or_default();
            let is_used = |gpu_id: u32| queues.iter().any(|queue| queue.gpu_id == gpu_id);
            let used = devices.into_iter().filter(|(gpu_id, _)| is_used(*gpu_id));
            used.map(|(_, uuid)| uuid).collect()
        })
    }

    fn poll_report(&mut self) -> Option<ControllerReport> {
        self.take_reports();
        self.notes.pop_front()
    }

    fn release_all(&mut self) -> Result<(), UndoError> {
        self.watcher.stop();
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.let_go(task));
        let end = Instant::now() + RELEASE_MAX;
        let mut result = Ok(());
        if let Some(batch) = &mut self.batch
            && !batch.stop_by(end)
        {
            result = Err(UndoError::SilentDevice("the patched KFD"));
        }
        for (process, mut worker) in self.leaving.drain(..) {
            let undone = if worker.has_ended_by(end) {
                // What the worker could not revert.
                self.undo_log.undo_process(process)
            } else {
                // The kernel ends the session when this program ends, and the keeper reverts what
                // the journal records.
                Err(UndoError::Silent(process))
            };
            result = result.and(undone);
        }
        result
    }

    fn numbered_queues(&self) -> Option<&dyn NumberedQueues> {
        Some(self)
    }

    fn priority_forwarding(&mut self) -> Option<&mut dyn PriorityForwarding> {
        Some(self)
    }

    fn gauge(&self) -> Option<Box<dyn DeviceGauge>> {
        Some(Box::new(SysfsGauge::new(self.instance.paths.clone())))
    }

    fn stop_method_reporting(&self) -> Option<&dyn StopMethodReporting> {
        Some(self)
    }

    fn rescanning(&mut self) -> Option<&mut dyn Rescanning> {
        Some(self)
    }
}

impl NumberedQueues for AmdBackend {
    fn native(&self, queue: QueueId) -> Option<u64> {
        let name = self.queues.get(&queue)?.listed.entry.queue_id;
        // A whole process has no queue id.
        (name != u32::MAX).then_some(name.into())
    }
}

impl Rescanning for AmdBackend {
    fn set_rescan(&mut self, every: Duration) {
        self.watcher.set_every(every);
    }
}
