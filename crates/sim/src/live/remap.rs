//! All queues of a device taken off, and some of them put on again: what a driver does that can
//! only give the hardware a whole list.

use std::collections::BTreeSet;

use gpreempt_core::id::QueueId;

use super::calls::Order;
use super::{CallId, LiveEvent, LiveGpu, MemoryId};
use crate::ring::RingPage;

impl LiveGpu {
    /// A task opens a queue that is not on its device before somebody resumes it or puts it on a
    /// list.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn open_stopped_queue(
        &mut self,
        id: QueueId,
        device: usize,
        memory: MemoryId,
        page: Box<dyn RingPage>,
    ) {
        self.open_queue(id, device, memory, page);
        if let Some(queue) = self.gpu.queues.get_mut(&id) {
            queue.stopped = true;
        }
    }

    /// Takes every queue of a device off, in the middle of whatever it does, and then lets those
    /// on that are in the list. Its end, when all are off and the list is read, is an event; waves
    /// are restored after that.
    pub fn remap(&mut self, id: CallId, device: usize, runlist: BTreeSet<QueueId>) {
        if device < self.calls.len() {
            self.order(device, id, Order::Remap(runlist));
        } else {
            self.events.push_back(LiveEvent::Gone(id));
        }
    }

    /// The first half.
    pub(super) fn take_all_off(&mut self, device: usize) {
        let on =
            |queue: &crate::gpu::queue::HardwareQueue| queue.device == device && !queue.stopped;
        let queues = self.gpu.queues.iter().filter(|(_, queue)| on(queue));
        let awaited: BTreeSet<QueueId> = queues.map(|(&id, _)| id).collect();
        if let Some(current) = self.calls[device].current.as_mut() {
            current.awaited.clone_from(&awaited);
        }
        for &queue in &awaited {
            self.gpu.stop(queue);
        }
        if awaited.is_empty() {
            self.reach_after(device, self.gpu.model.control.resume);
        }
    }

    /// A queue is off, or gone: it may have been the last that was waited for.
    pub(super) fn is_off(&mut self, queue: QueueId) {
        for device in 0..self.calls.len() {
            let Some(current) = self.calls[device].current.as_mut() else { continue };
            if current.awaited.remove(&queue) && current.awaited.is_empty() {
                self.reach_after(device, self.gpu.model.control.resume);
            }
        }
    }

    /// The second half.
    pub(super) fn map_again(&mut self, device: usize) {
        let current = self.calls[device].current.as_ref();
        let Some(Order::Remap(runlist)) = current.map(|current| &current.order) else { return };
        let is_here =
            |id: &&QueueId| self.gpu.queues.get(id).is_some_and(|queue| queue.device == device);
        let queues: Vec<QueueId> = runlist.iter().filter(is_here).copied().collect();
        for id in queues {
            // The client may have gone on writing without a doorbell.
            if let Some(queue) = self.gpu.queues.get_mut(&id) {
                queue.ring.look();
            }
            self.gpu.resume(id);
        }
    }
}
