//! The controller side of the backend: adopts processes, releases them and reverts their changes.

use std::time::{Duration, Instant};

use gpreempt_core::id::{QueueId, TaskId};

use super::worker::Job;
use super::{Device, NvidiaBackend};
use crate::change::{GpuChange, UndoError};
use crate::controller::{
    AdoptError, Controller, ControllerReport, DeviceName, DeviceSearch, HintWatching,
    HoldReporting, Rescanning, UnadoptedProcesses,
};
use crate::eviction::EvictDevice;
use crate::gauge::DeviceGauge;
use crate::nvidia::gauge::NvmlGauge;
use crate::nvidia::process_discovery::GpuProcess;
use crate::process::ProcessKey;

impl Controller for NvidiaBackend {
    fn kind(&self) -> &'static str {
        "nvidia"
    }

    fn adopt(&mut self, task: TaskId, process: ProcessKey) -> Result<(), AdoptError> {
        if let Some(inspected) = self.appeared.remove(&process) {
            return self.adopt_inspected(task, &inspected, self.context_options);
        }
        self.claim(task, process, self.context_options)?;
        // An inspection takes milliseconds, so the watcher makes it.
        self.watcher.watch(process, Vec::new());
        Ok(())
    }

    fn release(&mut self, task: TaskId) {
        let Some(adopted) = self.tasks.remove(&task) else { return };
        self.watcher.forget(adopted.key);
        for queue in self.queues_of(task) {
            self.drop_hold(queue);
        }
        self.forget_hints(task);
        self.queues.retain(|_, state| state.task() != task);
        if self.devices.is_empty() {
            // Nothing was changed in it; the journal only says that this process claimed it.
            let _ = self.undo_log.undo_process(adopted.key);
        }
        // Each worker may still have orders for it, so each reverts what there is after those.
        for device in &self.devices {
            device.worker.order(Job::Undo(adopted.key));
        }
    }

    /// The watcher's thread finds them, because listing the open files of all processes takes as
    /// long as their users like. Those that it has not reported soon are reported when found.
    fn users(&mut self) -> Vec<ProcessKey> {
        /// The longest wait for the first inspection of all processes, which usually takes a few
        /// milliseconds.
        const WAIT_MAX: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        while !self.is_scanned && begun.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(1));
            self.take_reports();
        }
        self.appeared.keys().copied().collect()
    }

    fn devices(&self) -> Vec<DeviceName> {
        let name = |(index, device): (usize, &Device)| DeviceName {
            id: self.numbering.device(index),
            uuid: device.uuid.clone(),
        };
        self.devices.iter().enumerate().map(name).collect()
    }

    fn queues_of(&self, task: TaskId) -> Vec<QueueId> {
        let own = self.queues.iter().filter(|(_, state)| state.task() == task);
        own.map(|(queue, _)| *queue).collect()
    }

    fn device_search(&self, process: ProcessKey) -> DeviceSearch {
        let uuids = self.appeared.get(&process).map(GpuProcess::uuids).unwrap_or_default();
        Box::new(|| uuids)
    }

    fn poll_report(&mut self) -> Option<ControllerReport> {
        self.take_reports();
        self.notes.pop_front()
    }

    fn release_all(&mut self) -> Result<(), UndoError> {
        // Holds are released first: that takes no call to the driver.
        self.holds = None;
        for device in &mut self.devices {
            device.worker.stop();
        }
        self.undo_log.undo_all(|act| matches!(act, GpuChange::Nvidia(_)))
    }

    fn hint_watching(&mut self) -> Option<&mut dyn HintWatching> {
        Some(self)
    }

    fn gauge(&self) -> Option<Box<dyn DeviceGauge>> {
        Some(Box::new(NvmlGauge::default()))
    }

    fn evict_device(&self) -> Option<EvictDevice> {
        Some(EvictDevice::Nvidia)
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
    fn set_rescan(&mut self, every: Duration) {
        self.watcher.set_rescan(every);
    }
}
