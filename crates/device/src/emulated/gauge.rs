//! The emulator's own count of how long each process and each device executed, and of their memory.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::emulator::control::{Control, Options};

use super::uuid;
use crate::gauge::{Busy, DeviceFacts, DeviceGauge, DeviceReading, ProcessReading};

/// A connection of its own, so that a reading never delays a control call.
pub(super) struct EmulatorGauge {
    socket: PathBuf,
    control: Option<Control>,
    /// The last count of each queue: a closed queue takes its count with it.
    counted: BTreeMap<QueueId, Duration>,
    /// What each client executed on each device, queues that were closed included.
    executed: BTreeMap<(TaskId, u32), Duration>,
}

impl EmulatorGauge {
    pub(super) fn new(socket: PathBuf) -> Self {
        Self { socket, control: None, counted: BTreeMap::new(), executed: BTreeMap::new() }
    }

    fn try_read(&mut self) -> Result<Vec<DeviceReading>, EmuError> {
        let control = match &mut self.control {
            Some(control) => control,
            // Another emulator counts from zero.
            none => {
                self.counted.clear();
                self.executed.clear();
                none.insert(Control::connect(&self.socket, Options::default())?)
            }
        };
        let listing = control.list()?;
        let mut counted = BTreeMap::new();
        for queue in &listing.queues {
            let total = match control.usage(queue.queue) {
                Ok(usage) => usage.busy,
                // It was closed meanwhile.
                Err(EmuError::Refused(_)) => continue,
                Err(error) => return Err(error),
            };
            let before = self.counted.get(&queue.queue).copied().unwrap_or_default();
            *self.executed.entry((queue.task, queue.device.0)).or_default() +=
                total.saturating_sub(before);
            counted.insert(queue.queue, total);
        }
        self.counted = counted;
        let pids: BTreeMap<TaskId, u32> =
            listing.tasks.iter().map(|task| (task.task, task.pid)).collect();
        self.executed.retain(|(task, _), _| pids.contains_key(task));
        let memory = control.memory()?;
        let mut readings = Vec::new();
        for (index, info) in listing.devices.iter().enumerate() {
            let mut processes: BTreeMap<u32, ProcessReading> = BTreeMap::new();
            for ((task, _), executed) in
                self.executed.iter().filter(|((_, device), _)| *device == info.device.0)
            {
                let reading = processes.entry(pids[task]).or_default();
                reading.executed = Some(reading.executed.unwrap_or_default() + *executed);
            }
            for usage in memory.processes.iter().filter(|usage| usage.device == info.device) {
                processes.entry(usage.pid).or_default().memory_kib =
                    Some(usage.device_bytes / 1_024);
            }
            let name = Some(info.name.as_str().to_owned());
            let of_device = memory.devices.iter().find(|memory| memory.device == info.device);
            readings.push(DeviceReading {
                uuid: uuid(&self.socket, index),
                facts: DeviceFacts {
                    name,
                    memory_used_kib: of_device.map(|memory| memory.used / 1_024),
                    memory_total_kib: of_device.map(|memory| memory.bytes / 1_024),
                    ..DeviceFacts::default()
                },
                busy: Some(Busy::Total(control.device_busy(info.device)?)),
                processes,
            });
        }
        Ok(readings)
    }
}

impl DeviceGauge for EmulatorGauge {
    fn read(&mut self) -> Vec<DeviceReading> {
        self.try_read().unwrap_or_else(|_| {
            // The backend reports an emulator that has ended.
            self.control = None;
            Vec::new()
        })
    }
}
