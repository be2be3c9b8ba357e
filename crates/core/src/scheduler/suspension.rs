//! Tasks that somebody took off their devices, whatever their priority.
//!
//! A suspended task is not in anybody's way and does not starve: for everybody else it is as if it
//! had no work. All of its queues are taken off, also those that look idle, because nobody could
//! stop them soon enough once they are not.

use alloc::vec::Vec;

use super::Scheduler;
use crate::event::EventError;
use crate::id::{GangId, QueueId, TaskId};

impl Scheduler {
    pub(super) fn suspend_task(&mut self, id: TaskId, suspended: bool) -> Result<(), EventError> {
        let task = self.tasks.get_mut(&id).ok_or(EventError::UnknownTask(id))?;
        task.suspended = suspended;
        let queues: Vec<QueueId> = task.queues.iter().copied().collect();
        for queue in queues {
            self.suspend_queue(queue, suspended);
        }
        Ok(())
    }

    fn suspend_queue(&mut self, id: QueueId, suspended: bool) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        queue.suspended = suspended;
        let (task, device_id, lane) = (queue.task, queue.device, queue.lane);
        if suspended && let Some(device) = self.devices.get(&device_id) {
            // What it does not use is not charged.
            let key = device.seat_key(task, id);
            self.leave_turn(device_id, lane, key, false);
        }
        self.reseat(id);
    }

    /// Whether any member of a gang is suspended: then none of them can go on.
    pub(super) fn is_suspended(&self, gang: GangId) -> bool {
        let members = self.gangs.get(&gang).into_iter().flat_map(|gang| gang.tasks.iter());
        members.into_iter().any(|task| self.is_task_suspended(*task))
    }

    pub(crate) fn is_task_suspended(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| task.suspended)
    }
}
