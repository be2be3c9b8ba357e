//! Taking processes in and putting them back.

use std::sync::Weak;

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::priority::Priority;

use super::worker::Job;
use super::{Device, NvidiaBackend};
use crate::controller::{Controller, DeviceName, HintSight, HoldStatus, Note};
use crate::nvidia::survey::{self, GpuProcess};
use crate::process::ProcessKey;

impl Controller for NvidiaBackend {
    fn kind(&self) -> &'static str {
        "nvidia"
    }

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), String> {
        if let Some(seen) = self.appeared.remove(&process) {
            return self.adopt_seen(task, &seen, self.wishes);
        }
        self.hold(task, process, self.wishes)?;
        // To look takes milliseconds, so the scout does it, who has seen nothing yet.
        self.scout.watch(process, Vec::new());
        Ok(())
    }

    fn release(&mut self, task: TaskId) {
        let Some(attached) = self.tasks.remove(&task) else { return };
        self.scout.forget(attached.key);
        for queue in self.queues_of(task) {
            self.drop_hold(queue);
        }
        self.forget_hint(task);
        self.queues.retain(|_, target| !target.is_of(task));
        if self.devices.is_empty() {
            // Nothing was ever done to it; only that it is ours was written down.
            let _ = self.ledger.undo_process(attached.key);
        }
        // Each worker may still have something to do to it, so each undoes what there is then.
        for device in &self.devices {
            device.worker.give(Job::Undo(attached.key));
        }
    }

    fn users(&mut self) -> Vec<ProcessKey> {
        let found = survey::survey().unwrap_or_default();
        let mut users = Vec::new();
        for process in found.into_iter().filter(GpuProcess::has_groups) {
            users.push(process.info.key);
            self.appeared.insert(process.info.key, process);
        }
        users
    }

    fn devices(&self) -> Vec<DeviceName> {
        let name = |(index, device): (usize, &Device)| DeviceName {
            id: self.numbering.device(index),
            uuid: device.uuid.clone(),
        };
        self.devices.iter().enumerate().map(name).collect()
    }

    fn queues_of(&self, task: TaskId) -> Vec<QueueId> {
        let own = self.queues.iter().filter(|(_, target)| target.is_of(task));
        own.map(|(queue, _)| *queue).collect()
    }

    fn uuids_of(&self, process: ProcessKey) -> Vec<String> {
        self.appeared.get(&process).map(GpuProcess::uuids).unwrap_or_default()
    }

    fn set_others(&mut self, priority: Option<Priority>) {
        // The method of the type, which comes before the trait's.
        self.set_others(priority);
    }

    fn set_rescan(&mut self, every: std::time::Duration) {
        self.scout.set_rescan(every);
    }

    fn hint(&mut self, task: TaskId, begins: bool) {
        self.hint_hold(task, begins);
    }

    fn watch_hints(&mut self, task: TaskId, sight: Weak<dyn HintSight>) {
        self.watch_hints_of(task, sight);
    }

    fn hold_of(&self, queue: QueueId) -> Option<HoldStatus> {
        self.hold_status(queue)
    }

    fn poll_note(&mut self) -> Option<Note> {
        self.take_reports();
        self.notes.pop_front()
    }

    fn release_all(&mut self) -> Result<(), String> {
        // Whoever is held for is let go of first: that takes no call.
        self.holds = None;
        for device in &mut self.devices {
            device.worker.stop();
        }
        // AMD's are for their own workers, who do not wait for ever.
        self.ledger.undo_all(|act| !act.is_amd())
    }
}
