//! Taking processes in and putting them back.

use gpreempt_core::id::{QueueId, TaskId};

use super::worker::Job;
use super::{Device, NvidiaBackend};
use crate::act::{Act, UndoError};
use crate::controller::{
    AdoptError, Controller, DeviceName, HintWatching, HoldReporting, Note, Rescanning,
    UnadoptedProcesses,
};
use crate::nvidia::survey::{self, GpuProcess};
use crate::process::ProcessKey;

impl Controller for NvidiaBackend {
    fn kind(&self) -> &'static str {
        "nvidia"
    }

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), AdoptError> {
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
        self.forget_hints(task);
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

    fn poll_note(&mut self) -> Option<Note> {
        self.take_reports();
        self.notes.pop_front()
    }

    fn release_all(&mut self) -> Result<(), UndoError> {
        // Holds are released first: that takes no call.
        self.holds = None;
        for device in &mut self.devices {
            device.worker.stop();
        }
        self.ledger.undo_all(|act| matches!(act, Act::Nvidia(_)))
    }

    fn hint_watching(&mut self) -> Option<&mut dyn HintWatching> {
        Some(self)
    }

    fn hold_reporting(&self) -> Option<&dyn HoldReporting> {
        Some(self)
    }

    fn unadopted(&mut self) -> Option<&mut dyn UnadoptedProcesses> {
        Some(self)
    }

    fn rescanning(&mut self) -> Option<&mut dyn Rescanning> {
        Some(self)
    }
}

impl Rescanning for NvidiaBackend {
    fn set_rescan(&mut self, every: std::time::Duration) {
        self.scout.set_rescan(every);
    }
}
