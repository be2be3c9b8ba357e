//! Tasks and queues that somebody took off their devices, whatever their priority.
//!
//! A queue is suspended if its task is or if it is itself; each of them is ended by itself. Who is
//! suspended is not in anybody's way and does not starve: for everybody else it is as if it had no
//! work. All queues of a task are taken off, also those that look idle, because nobody could stop
//! them soon enough once they are not.

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
            self.update_suspension(queue);
        }
        Ok(())
    }

    pub(super) fn suspend_queue(&mut self, id: QueueId, suspended: bool) -> Result<(), EventError> {
        self.queue_mut(id)?.own_suspended = suspended;
        self.update_suspension(id);
        Ok(())
    }

    /// Brings a queue in line with what was said of it and of its task.
    fn update_suspension(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(&id) else {
            return;
        };
        let is_task_off = self.tasks.get(&queue.task).is_some_and(|task| task.suspended);
        let suspended = is_task_off || queue.own_suspended;
        queue.suspended = suspended;
        let (task, device_id, lane) = (queue.task, queue.device, queue.lane);
        if suspended && let Some(device) = self.devices.get(&device_id) {
            // What it does not use is not charged.
            let key = device.seat_key(task, id);
            self.leave_turn(device_id, lane, key, false);
        }
        self.reseat(id);
    }

    /// Whether any member of a gang or a queue of one is suspended: then none of them can go on.
    pub(super) fn is_suspended(&self, gang: GangId) -> bool {
        let members = self.gangs.get(&gang).into_iter().flat_map(|gang| gang.tasks.iter());
        members.filter_map(|task| self.tasks.get(task)).any(|task| {
            let is_off = |id: &QueueId| self.queues.get(id).is_some_and(|queue| queue.suspended);
            task.suspended || task.queues.iter().any(is_off)
        })
    }

    pub(crate) fn is_task_suspended(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|task| task.suspended)
    }
}
